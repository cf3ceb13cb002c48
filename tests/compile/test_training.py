"""Training under torch.compile: autocast, random numbers, checkpointing, gradient modes, buffers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import assert_as_eager, module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_tpu import cache, compiler


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

    def __init__(self, blocks: int = 3, wide: int = 8, dropout: float = 0.5) -> None:
        super().__init__()
        drop = nn.Dropout(dropout) if dropout else nn.Identity()
        layers = (nn.Sequential(nn.Linear(8, wide), drop, nn.Tanh(), nn.Linear(wide, 8)) for _ in range(blocks))
        self.blocks = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def test_checkpointed_blocks_draw_the_same_numbers_again() -> None:
    x = torch.randn(4, 8, device="tpu")
    assert_trains_as_eagerly(Checkpointed().to("tpu"), lambda model: model(x).square().mean())


@pytest.mark.parametrize("together", [False, True])
def test_what_is_computed_again_waits_behind_a_barrier(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else XLA could compute all blocks again at once, or find that one program computes the same twice."""
    model, x = Checkpointed(dropout=0.0).to("tpu"), torch.randn(4, 8, device="tpu")
    programs: list[bytes] = []
    monkeypatch.setattr(compiler, "observers", [*compiler.observers, programs.append])
    monkeypatch.setattr(cache, "load", lambda key: None)  # what other runs compiled

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()

    if together:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            torch.compile(step, fullgraph=True)()
    else:
        model.compile(fullgraph=True)
        step()
    texts = [module(p) for p in programs]
    backward = max(texts, key=lambda text: text.count("optimization_barrier"))
    assert [t.count("optimization_barrier") for t in texts if "optimization_barrier" in t] == [3]  # none in forward
    assert backward.count("stablehlo.tanh") == (6 if together else 3)


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


@pytest.mark.parametrize("again", [False, True])
def test_forward_and_backward_in_one_function_are_one_program(again: bool) -> None:
    """With Dynamo's tracing of autograd, which is off unless asked for."""
    x = torch.randn(4, 8, device="tpu")
    # PyTorch computes no random numbers again in such a graph.
    model = Checkpointed(dropout=0.0).to("tpu") if again else network(nn.Dropout(0.5))

    def step() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def outcome(run: Callable[[], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        return [run(), *(p.grad for p in model.parameters())]

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = torch.compile(step, fullgraph=True)
        torch.testing.assert_close(outcome(run), outcome(step))
        model.zero_grad()
        before = torch.tpu.cache_stats()["launches"]
        run()
        assert torch.tpu.cache_stats()["launches"] == before + 1


class Whole:
    """A training step in one function: `zero_grad`, forward, backward, clipping, the optimizer's step."""

    def __init__(self, model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        self.model, self.optimizer = model, optimizer(model.parameters())

    def step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> list[Tensor]:
        state = self.optimizer.state_dict()["state"].values()
        kept = [x for s in state for x in s.values() if isinstance(x, Tensor)]
        return [*self.model.parameters(), *(p.grad for p in self.model.parameters()), *kept]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "Adagrad": torch.optim.Adagrad,
    "NAdam": torch.optim.NAdam,
    "Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_training_step_is_one_program(name: str) -> None:
    """Forward, backward and a stock optimizer's step, from the first step on."""
    model = network(nn.Dropout(0.5))
    plain, whole = (Whole(copy.deepcopy(model), OPTIMIZERS[name]) for _ in range(2))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = torch.compile(whole.step, fullgraph=True)
        for i in range(4):
            x = torch.randn(4, 8, device="tpu")
            torch.manual_seed(i)
            expected = plain.step(x)
            torch.manual_seed(i)
            before = torch.tpu.cache_stats()["launches"]
            got = run(x)
            # Adafactor reads norms back as Python's numbers.
            assert torch.tpu.cache_stats()["launches"] == before + 1 or name == "Adafactor"
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(whole.tensors(), plain.tensors(), check_device=False)


def test_a_scheduler_changes_the_rate_of_a_whole_step_without_a_compile() -> None:
    def with_rate(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=torch.tensor(0.1, device="tpu"))

    model = network()
    plain, whole = (Whole(copy.deepcopy(model), with_rate) for _ in range(2))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(w.optimizer, 0.5) for w in (plain, whole)]
    x = torch.randn(4, 8, device="tpu")
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = torch.compile(whole.step, fullgraph=True)
        for i in range(4):
            with torch.tpu.forbid_compiles() if i > 1 else contextlib.nullcontext():
                run(x)
            plain.step(x)
            for scheduler in schedulers:
                scheduler.step()
            torch.testing.assert_close(whole.tensors(), plain.tensors())
