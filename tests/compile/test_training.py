"""Training under torch.compile: autocast, random numbers, checkpointing, gradient modes, buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import assert_as_eager
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def trained(model: nn.Module, step: Callable[[nn.Module], Tensor], fast: bool) -> list[Tensor]:
    """Losses of three steps and the state after, of a copy."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = torch.compile(model, fullgraph=True) if fast else model
    torch.manual_seed(1)
    losses = []
    for _ in range(3):
        loss = step(run)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *model.state_dict().values()]


def assert_trains_as_eagerly(model: nn.Module, step: Callable[[nn.Module], Tensor], **tolerance: float) -> None:
    torch.testing.assert_close(trained(model, step, True), trained(model, step, False), **tolerance)


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), *more, nn.GELU(), nn.Linear(16, 4)).to("tpu")


def test_autocast_around_and_inside() -> None:
    x = torch.randn(4, 8, device="tpu")

    def around(model: nn.Module) -> Tensor:
        with torch.autocast("tpu", dtype=torch.bfloat16):
            result = model(x)
        assert result.dtype == torch.bfloat16
        return result.float().square().mean()

    assert_trains_as_eagerly(network(), around, rtol=2e-2, atol=2e-2)
    weight = torch.randn(8, 8, device="tpu", requires_grad=True)

    def inside(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return (x @ weight).sin(), torch.softmax(x, 0)

    results = assert_as_eager(inside, x, weight, rtol=2e-2, atol=2e-2)
    assert [r.dtype for r in results] == [torch.bfloat16, torch.float32]


def test_grad_scaler_scales_and_skips() -> None:
    x = torch.randn(4, 8, device="tpu")
    outcomes = []
    for fast in (True, False):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=2)
        run = torch.compile(model, fullgraph=True) if fast else model
        for i in range(4):
            optimizer.zero_grad()
            with torch.autocast("tpu", dtype=torch.float16):
                loss = run(x).float().square().mean() * (float("inf") if i == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        outcomes.append((scaler.get_scale(), list(model.parameters())))
    assert outcomes[0][0] == outcomes[1][0] == 4.0  # grew once, was halved once
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1], rtol=1e-2, atol=1e-3)


def test_random_numbers_are_those_of_eager() -> None:
    def run(x: Tensor) -> list[Tensor]:
        noise = torch.rand(5, device=x.device) + torch.randn(3, 5, device=x.device)
        dropped = nn.functional.dropout(x * noise, 0.4)
        chosen = torch.randint(10, (4,), device=x.device), torch.randperm(6, device=x.device)
        return [dropped, torch.bernoulli(torch.full((7,), 0.5, device=x.device)), torch.rand_like(x), *chosen]

    x = torch.randn(3, 5, device="tpu", requires_grad=True)
    assert_as_eager(run, x)


def test_random_numbers_go_on_from_call_to_call() -> None:
    torch.manual_seed(3)
    run = torch.compile(lambda x: x + torch.rand(6, device="tpu"), fullgraph=True)
    x = torch.zeros(6, device="tpu")
    got = [run(x), torch.rand(6, device="tpu"), run(x)]
    torch.manual_seed(3)
    torch.testing.assert_close(got, [torch.rand(6, device="tpu") for _ in range(3)])


def test_dropout_trains_with_the_numbers_of_eager() -> None:
    x = torch.randn(4, 8, device="tpu")
    assert_trains_as_eagerly(network(nn.Dropout(0.5)), lambda model: model(x).square().mean())


class Checkpointed(nn.Module):
    """Blocks with dropout that are computed again in backward."""

    def __init__(self, preserve: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()) for _ in range(3))
        self.preserve = preserve

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.preserve)
        return x


def test_checkpointed_blocks_draw_the_same_numbers_again() -> None:
    x = torch.randn(4, 8, device="tpu")
    assert_trains_as_eagerly(Checkpointed().to("tpu"), lambda model: model(x).square().mean())


def test_checkpointing_saves_less() -> None:
    """What forward hands to backward: the inputs of blocks, not what is inside them."""
    saved: dict[bool, int] = {}
    x = torch.randn(64, 8, device="tpu")
    model = Checkpointed().to("tpu")
    for again in (True, False):
        torch._dynamo.reset()
        run = torch.compile(model if again else nn.Sequential(*model.blocks), fullgraph=True)
        run(x)
        torch.tpu.synchronize()
        before = torch.tpu.memory_allocated()
        result = run(x)
        saved[again] = torch.tpu.memory_allocated() - before
        del result
    assert saved[True] < 0.8 * saved[False]


def test_inference_mode_and_no_grad() -> None:
    x = torch.randn(4, device="tpu", requires_grad=True)

    @torch.no_grad()
    def without(x: Tensor) -> Tensor:
        return x * 2

    assert not assert_as_eager(without, x).requires_grad
    run = torch.compile(lambda x: x.sin() * 2, fullgraph=True)
    with torch.inference_mode():
        result = run(x)
    assert result.is_inference()
    torch.testing.assert_close(result, x.sin() * 2)
    assert run(x).requires_grad  # another graph than under inference_mode

    def partly(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        with torch.enable_grad():
            return x / scale

    assert_as_eager(partly, x)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_updates_its_buffers(training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to("tpu").train(training)
    x = torch.randn(2, 3, 6, 6, device="tpu")
    assert_trains_as_eagerly(model, lambda m: m(x).square().mean())


def test_a_step_of_all_three_is_one_program() -> None:
    """Forward, backward and optimizer in one function, with Dynamo's tracing of autograd."""
    x = torch.randn(4, 8, device="tpu")

    def outcome(fast: bool) -> Any:
        torch.manual_seed(0)
        model = network(nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

        def step() -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = torch.compile(step, fullgraph=True) if fast else step
        torch.manual_seed(1)
        return [run().detach() for _ in range(3)], list(model.parameters())

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.testing.assert_close(outcome(True), outcome(False))
