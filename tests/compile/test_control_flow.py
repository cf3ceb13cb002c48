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


def test_cond_keeps_random_numbers_outside() -> None:
    run = torch.compile(lambda x: cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x + 1, (x,)))
    with pytest.raises(Exception, match="random numbers inside torch.cond"):
        run(torch.ones(3, device="tpu"))


def test_while_loop() -> None:
    def run(x: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda n, x: x.sum() < limit, lambda n, x: (n + 1, x * 2), (count, x))

    count, x = assert_as_eager(run, torch.ones(2, device="tpu"), torch.tensor(100.0, device="tpu"))
    assert count.item() == 6 and x.tolist() == [64.0, 64.0]


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

    assert_as_eager(
        run, torch.randn(4, 3, device="tpu", requires_grad=True), torch.randn(3, device="tpu", requires_grad=True)
    )


def test_loops_in_conditions_in_loops() -> None:
    def run(x: Tensor, n: Tensor) -> Tensor:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))

        return while_loop(lambda i, x: i < n, body, (torch.zeros_like(n), x))[1]

    assert assert_as_eager(run, torch.zeros(2, device="tpu"), torch.tensor(5, device="tpu")).tolist() == [7.0, 7.0]
