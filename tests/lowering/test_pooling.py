"""Pooling and its gradients against torch on CPU."""

from __future__ import annotations

import pytest
import torch
from check import check

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(*shape) * 4).to(dtype)


# (input, kernel, stride, padding, dilation, ceil mode)
MAX = {
    "2d": ((2, 3, 7, 8), [3, 2], [2, 1], [1, 1], [1, 1], False),
    "ceil mode": ((1, 2, 7, 8), [3, 3], [2, 2], [1, 0], [1, 1], True),
    "dilated": ((1, 2, 9, 9), [3, 2], [1, 2], [1, 0], [2, 3], False),
    "no stride, no batch": ((3, 6, 6), [2], [], [0], [1], False),
    "large window": ((1, 2, 20, 20), [18, 17], [1, 1], [2, 3], [1, 1], False),
    "empty batch": ((0, 3, 6, 6), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "3d": ((2, 2, 5, 5, 6), [2, 2, 3], [2, 1, 2], [1, 0, 1], [1, 1, 1], False),
}


@pytest.mark.parametrize("case", MAX)
def test_max_pool(case: str) -> None:
    shape, *how = MAX[case]
    name = f"max_pool{3 if case == '3d' else 2}d_with_indices"
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    x = tensor(*shape)
    check(forward.default, x, *how)
    value, indices = forward(x, *how)
    check(backward.default, torch.randn_like(value), x, *how, indices)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_max_pool_dtypes(dtype: torch.dtype) -> None:
    check(aten.max_pool2d_with_indices.default, tensor(1, 2, 5, 5, dtype=dtype), [3, 3], [2, 2], [1, 1])


def test_max_pool_of_ties_nan_and_infinity() -> None:
    x = torch.zeros(1, 1, 6, 6)
    check(aten.max_pool2d_with_indices.default, x, [3, 3], [1, 1], [1, 1])
    x[0, 0, 2, 3], x[0, 0, 4, 1] = NAN, NAN
    check(aten.max_pool2d_with_indices.default, x, [3, 3], [1, 1], [1, 1])
    check(aten.adaptive_max_pool2d.default, x, [4, 4])
    check(aten.max_pool2d_with_indices.default, torch.full((1, 1, 4, 4), -INF), [2, 2], [2, 2], [1, 1])


@pytest.mark.parametrize("include_pad", [True, False])
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_avg_pool(ceil_mode: bool, include_pad: bool) -> None:
    for rank, shape in ((2, (2, 3, 7, 8)), (3, (1, 2, 5, 6, 7))):
        how = [3] * rank, [2] * rank, [1] * rank, ceil_mode, include_pad
        x = tensor(*shape)
        forward, backward = getattr(aten, f"avg_pool{rank}d"), getattr(aten, f"avg_pool{rank}d_backward")
        check(forward.default, x, *how)
        check(backward.default, torch.randn_like(forward(x, *how)), x, *how, None)
    check(aten.avg_pool2d.default, tensor(2, 5, 5), [2], [], [0], ceil_mode, include_pad, 3)
    check(aten.avg_pool2d.default, tensor(0, 2, 5, 5), [2, 2])
    check(aten.avg_pool2d.default, tensor(1, 1, 5, 5, dtype=torch.int64), [2, 2])


@pytest.mark.parametrize("outs", [[4, 2], [3, 5], [1, 1], [9, 7], [8, 6]])
def test_adaptive_pools(outs: list[int]) -> None:
    x = tensor(2, 3, 8, 6)
    check(aten._adaptive_avg_pool2d.default, x, outs)
    check(aten._adaptive_avg_pool2d_backward.default, tensor(2, 3, *outs), x)
    check(aten.adaptive_max_pool2d.default, x, outs)
    value, indices = aten.adaptive_max_pool2d(x, outs)
    check(aten.adaptive_max_pool2d_backward.default, torch.randn_like(value), x, indices)


def test_adaptive_pools_3d_and_empty() -> None:
    x = tensor(2, 4, 5, 6)
    check(aten._adaptive_avg_pool3d.default, x, [2, 3, 4])
    check(aten._adaptive_avg_pool3d_backward.default, tensor(2, 2, 3, 4), x)
    check(aten.adaptive_max_pool3d.default, x, [2, 3, 4])
    value, indices = aten.adaptive_max_pool3d(x, [2, 3, 4])
    check(aten.adaptive_max_pool3d_backward.default, torch.randn_like(value), x, indices)
    check(aten._adaptive_avg_pool2d.default, tensor(0, 3, 8, 6), [3, 3])
    check(aten.adaptive_max_pool2d.default, tensor(0, 3, 8, 6), [3, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_16_bit_floats_are_summed_in_float32(dtype: torch.dtype) -> None:
    x = tensor(1, 1, 6, 6, dtype=dtype)
    how = [3, 3], [1, 1], [1, 1]
    check(aten.avg_pool2d.default, x, *how)
    value, indices = aten.max_pool2d_with_indices(x, *how)
    check(aten.max_pool2d_with_indices_backward.default, torch.ones_like(value), x, *how, [1, 1], False, indices)


def test_fractional_max_pools() -> None:
    x2, x3 = tensor(2, 3, 8, 9), tensor(2, 3, 6, 7, 8)
    for x, rank, samples in ((x2, 2, torch.rand(2, 3, 2)), (x3, 3, torch.rand(2, 3, 3))):
        forward, backward = (getattr(aten, f"fractional_max_pool{rank}d{s}") for s in ("", "_backward"))
        how = [2, 3, 2][:rank], [3, 4, 4][:rank]
        check(forward.default, x, *how, samples)
        value, indices = forward(x, *how, samples)
        check(backward.default, torch.randn_like(value), x, *how, indices)


def test_max_unpool() -> None:
    value, indices = aten.max_pool2d_with_indices(tensor(2, 3, 6, 6), [2, 2], [2, 2])
    check(aten.max_unpool2d.default, value, indices, [6, 7])
    value, indices = aten.max_pool3d_with_indices(tensor(2, 4, 4, 4), [2, 2, 2], [2, 2, 2])
    check(aten.max_unpool3d.default, value, indices, [4, 4, 4], [2, 2, 2], [0, 0, 0])
