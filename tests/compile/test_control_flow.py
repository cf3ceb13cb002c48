"""Higher-order ops in compiled functions: conditions, loops and scans, with their gradients."""

from __future__ import annotations

import pytest
import torch
from alike import assert_as_eager
from torch import Tensor
from torch._higher_order_ops import associative_scan, cond, map, scan, while_loop


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign: float) -> None:
    weight = torch.randn(3, device="tpu", requires_grad=True)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return cond(x.sum() > 0, lambda x: (x * weight).sin(), lambda x: x.cos() - weight, (x,))

    assert_as_eager(run, torch.full((3,), sign, device="tpu", requires_grad=True), weight)


def test_random_numbers_inside_are_those_of_eager() -> None:
    def run(x: Tensor) -> Tensor:
        return cond(x.sum() > 0, lambda x: torch.rand_like(x) + x, lambda x: x + 1, (x * 2,)) + torch.rand_like(x)

    for sign in (1.0, -1.0):
        assert_as_eager(run, torch.full((3,), sign, device="tpu"))


@torch.library.custom_op("torch_tpu_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    """x / 2, through NumPy."""
    return torch.from_numpy(x.cpu().numpy() / 2).to(x.device)


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_custom_ops_inside() -> None:
    assert_as_eager(lambda x: cond(x.sum() > 0, lambda x: halved(x), lambda x: -x, (x,)), torch.ones(3, device="tpu"))


def test_while_loop() -> None:
    def run(x: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda n, x: x.sum() < limit, lambda n, x: (n + 1, x * 2), (count, x))

    count, x = assert_as_eager(run, torch.ones(2, device="tpu"), torch.tensor(100.0, device="tpu"))
    assert count.item() == 6 and x.tolist() == [64.0, 64.0]


def test_gradient_of_a_while_loop() -> None:
    def run(x: Tensor, limit: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda n, x: n < limit, lambda n, x: (n + 1, (x * 2).sin()), (count, x))[1]

    def unrolled(x: Tensor) -> Tensor:
        for _ in range(5):
            x = (x * 2).sin()
        return x

    x, y = (torch.tensor([1.0, 0.3], device="tpu", requires_grad=True) for _ in range(2))
    torch.compile(run, fullgraph=True)(x, torch.tensor(5, device="tpu")).sum().backward()
    unrolled(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_scan() -> None:
    weight = torch.randn(4, 4, device="tpu", requires_grad=True)

    def run(init: Tensor, xs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            carry = torch.tanh(carry @ weight + x)
            return carry, carry * 2

        return scan(step, init, xs)

    init = torch.zeros(2, 4, device="tpu", requires_grad=True)
    assert_as_eager(run, init, torch.randn(5, 2, 4, device="tpu", requires_grad=True), weight)


def test_scan_in_reverse() -> None:
    def run(init: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda c, x: (c + x, (c * x).clone()), init, xs, reverse=True)

    assert_as_eager(run, torch.ones(3, device="tpu"), torch.randn(4, 3, device="tpu"))


def test_associative_scan() -> None:
    x = torch.randn(6, 3, device="tpu", requires_grad=True)
    assert_as_eager(lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"), x)
    pair = (torch.rand(6, 3, device="tpu"), torch.randn(6, 3, device="tpu"))

    def linear(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return a[0] * b[0], a[1] * b[0] + b[1]

    assert_as_eager(lambda p: associative_scan(linear, p, 1, combine_mode="generic"), pair)


def test_map() -> None:
    def run(xs: Tensor, y: Tensor) -> Tensor:
        return map(lambda x, y: (x * y).sin(), xs, y)

    xs, y = (torch.randn(*sizes, device="tpu", requires_grad=True) for sizes in ((4, 3), (3,)))
    assert_as_eager(run, xs, y)


def test_loops_in_conditions_in_loops() -> None:
    def run(x: Tensor, n: Tensor) -> Tensor:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))

        return while_loop(lambda i, x: i < n, body, (torch.zeros_like(n), x))[1]

    assert assert_as_eager(run, torch.zeros(2, device="tpu"), torch.tensor(5, device="tpu")).tolist() == [7.0, 7.0]
