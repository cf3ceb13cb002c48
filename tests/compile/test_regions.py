"""What of a program is compiled: whole graphs, parts left out, functions, operators and hooks of users."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import assert_as_eager, module
from torch import Tensor, nn

from torch_tpu import cache, compiler


def graphs(fn: Any, *args: Any) -> int:
    """How many graphs a function is compiled to."""
    return torch._dynamo.explain(fn)(*args).graph_count


def test_fullgraph_raises_at_a_graph_break() -> None:
    x = torch.ones(3, device="tpu")

    def broken(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, fullgraph=True)(x)
    assert_as_eager(broken, x, fullgraph=False)


def test_a_disabled_function_runs_eagerly_between_programs() -> None:
    seen = []

    @torch.compiler.disable
    def outside(x: Tensor) -> Tensor:
        seen.append(type(x))
        return x * 2

    x = torch.randn(4, device="tpu", requires_grad=True)
    assert_as_eager(lambda x: outside(x.sin()).cos(), x, fullgraph=False)
    assert seen == [torch.Tensor] * 2  # real tensors, eagerly and between the programs


@torch._dynamo.allow_in_graph
def allowed(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()  # Dynamo doesn't look inside
    return torch.where(x > 0, x, x.exp())


def test_allow_in_graph_is_traced_below_dynamo() -> None:
    assert_as_eager(lambda x: allowed(x) + 1, torch.randn(6, device="tpu", requires_grad=True))


class Cube(torch.autograd.Function):
    """x ** 3 with half its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 1.5 * x**2


def test_an_autograd_function_keeps_its_own_gradient() -> None:
    x = torch.tensor([1.0, -2.0], device="tpu", requires_grad=True)
    assert_as_eager(Cube.apply, x)
    torch.compile(lambda x: Cube.apply(x).sum(), fullgraph=True)(x).backward()
    assert x.grad.tolist() == [1.5, 6.0]


@torch.library.custom_op("torch_tpu_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    """x times factor, through NumPy."""
    return torch.from_numpy(x.detach().cpu().numpy() * factor).to(x.device, x.dtype)


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (scaled(gradient, ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("torch_tpu_tests::accumulate", mutates_args=("total",))
def accumulate(total: Tensor, x: Tensor) -> None:
    """total += x, through NumPy."""
    total.copy_(torch.from_numpy(total.cpu().numpy() + x.cpu().numpy()))


@accumulate.register_fake
def _(total: Tensor, x: Tensor) -> None:
    return None


def test_custom_ops_run_between_programs() -> None:
    x = torch.randn(5, device="tpu", requires_grad=True)
    assert_as_eager(lambda x: scaled(x.sin(), 3.0).cos() + x, x)


def test_custom_ops_write_to_their_arguments() -> None:
    def run(total: Tensor, x: Tensor) -> Tensor:
        accumulate(total, x * 2)
        own = torch.zeros_like(x)
        accumulate(own, x)
        accumulate(total[:2], own[:2])
        return own + total

    assert_as_eager(run, torch.zeros(4, device="tpu"), torch.arange(4.0, device="tpu"))


def test_hooks_of_tensors_change_gradients() -> None:
    def run(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 10)
        return y * 2

    assert_as_eager(run, torch.randn(3, device="tpu", requires_grad=True))


def test_hooks_of_modules_are_part_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("tpu")
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda module, args, result: result + args[0])
    model[1].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 3,))
    x = torch.randn(2, 4, device="tpu", requires_grad=True)
    assert_as_eager(model, x, fullgraph=False)
    assert graphs(lambda x: model[0](x), x) == 1


class Nested(nn.Module):
    """Modules in lists and dicts, one of them twice, and a weight that is another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.LayerNorm(4)}) for _ in range(2)])
        self.blocks.append(self.blocks[0])
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block["b"](block["a"](x)).relu()
        return self.head(x)


def test_nested_modules_and_tied_weights() -> None:
    model = Nested().to("tpu")
    tokens = torch.tensor([[1, 2, 3], [6, 0, 1]], device="tpu")
    gradients = []
    for run in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        run(tokens).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_matmul_precision_is_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another precision is another program, and the former one's comes back with it."""
    programs: list[bytes] = []
    run = torch.compile(lambda a, b: (a @ b).sin(), fullgraph=True)
    a, b = torch.randn(16, 17, device="tpu"), torch.randn(17, 18, device="tpu")
    monkeypatch.setattr(compiler, "observers", [*compiler.observers, programs.append])
    monkeypatch.setattr(cache, "load", lambda key: None)  # what other runs compiled
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            run(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    texts = [module(p) for p in programs]
    assert len(texts) == 2
    assert "HIGHEST" in texts[0] and "HIGHEST" not in texts[1]


def test_matmul_precision_can_be_set_inside() -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("medium")
        try:
            return a @ b
        finally:
            torch.set_float32_matmul_precision("highest")

    a, b = torch.randn(8, 8, device="tpu"), torch.randn(8, 8, device="tpu")
    assert_as_eager(run, a, b, fullgraph=False)
    assert torch.get_float32_matmul_precision() == "highest"
