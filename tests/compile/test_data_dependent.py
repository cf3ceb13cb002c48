"""Sizes and branches that depend on values: graph breaks, or unbacked symbols where Dynamo is told to make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from alike import assert_as_eager
from torch import Tensor

CAPTURING = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def positive(x: Tensor) -> Tensor:
    return (x * 2)[x > 0] + 1


def found(x: Tensor) -> Tensor:
    return torch.nonzero(x > 0) * 2


def item(x: Tensor) -> Tensor:
    return x * x.abs().sum().item()


def distinct(x: Tensor) -> Tensor:
    return torch.unique((x * 2).round()) + 1


def rows_of_found(x: Tensor) -> Tensor:
    (rows,) = torch.where(x > 0)
    return x[rows].sin().sum() + rows.shape[0]


def selected(x: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0).exp()


def repeated(x: Tensor) -> Tensor:
    return torch.repeat_interleave(x, (x.abs() * 3).long())


ALL = [positive, found, item, distinct, rows_of_found, selected, repeated]


@pytest.mark.parametrize("fn", ALL)
def test_by_graph_break(fn: Callable[[Tensor], Tensor]) -> None:
    for seed in (0, 1):
        torch.manual_seed(seed)
        assert_as_eager(fn, torch.randn(9, device="tpu"), fullgraph=False)


@pytest.mark.parametrize("fn", ALL)
def test_by_unbacked_symbols(fn: Callable[[Tensor], Tensor]) -> None:
    with torch._dynamo.config.patch(CAPTURING):
        run = torch.compile(fn, fullgraph=True)
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(9, device="tpu")
            torch.testing.assert_close(run(x), fn(x))


@pytest.mark.parametrize("fn", [positive, selected, rows_of_found])
def test_gradients_by_unbacked_symbols(fn: Callable[[Tensor], Tensor]) -> None:
    with torch._dynamo.config.patch(CAPTURING):
        assert_as_eager(fn, torch.randn(9, device="tpu", requires_grad=True))


def test_branches_on_values() -> None:
    def run(x: Tensor) -> Tensor:
        return x.sin() if x.sum() > 0 else x.cos()

    for sign in (1, -1):
        assert_as_eager(run, torch.full((3,), float(sign), device="tpu"), fullgraph=False)


def test_integers_of_values_as_sizes() -> None:
    def run(x: Tensor, n: Tensor) -> Tensor:
        length = n.item()
        torch._check(length >= 0)
        torch._check(length <= x.shape[0])
        return x.narrow(0, 0, length) * 2 + length

    x = torch.randn(8, device="tpu")
    with torch._dynamo.config.patch(CAPTURING):
        fast = torch.compile(run, fullgraph=True)
        for n in (3, 0, 8):
            count = torch.tensor(n, device="tpu")
            torch.testing.assert_close(fast(x, count), run(x, count))


FLOATS = {
    "added": lambda x, y, a: x.add(y, alpha=a / 3) * 2,
    "written": lambda x, y, a: x.clone().add_(y, alpha=max(a, 0.25) + 1).sin(),
    "filled": lambda x, y, a: torch.full_like(x, a * 0.3) + torch.full((8,), a, device=x.device),
    "clamped": lambda x, y, a: x.clamp(max=a) + y.clamp(min=-a),
    "lerped": lambda x, y, a: x.lerp(y, a / 7),
    "listed": lambda x, y, a: torch._foreach_add([x, y], [y, x], alpha=-a)[0].cos(),
    "rows": lambda x, y, a: x[: int(a) % 8] * a,
}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_keep_their_fractions(name: str, dynamic: bool | None) -> None:
    fn = FLOATS[name]

    def of_value(x: Tensor, y: Tensor) -> Tensor:
        return fn(x, y, y.norm().item())

    for arguments in ([(0.5,), (1.75,), (2.3,)], [(), ()]):
        # fullgraph=True has Dynamo capture the numbers that `item()` gives.
        fast = torch.compile(fn if arguments[0] else of_value, fullgraph=True, dynamic=dynamic)
        for a in arguments:
            x, y = torch.randn(2, 8, device="tpu")
            torch.testing.assert_close(fast(x, y, *a), (fn if a else of_value)(x, y, *a))
