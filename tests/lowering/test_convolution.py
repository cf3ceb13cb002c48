"""Convolutions and their gradients against torch on CPU."""

from __future__ import annotations

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten

# (input, weight, stride, padding, dilation, transposed, output padding, groups)
CASES = {
    "1d": ((2, 3, 9), (4, 3, 3), [2], [1], [1], False, [0], 1),
    "2d": ((2, 3, 7, 8), (4, 3, 3, 2), [1, 2], [1, 0], [1, 1], False, [0, 0], 1),
    "3d": ((1, 2, 5, 5, 5), (2, 2, 3, 2, 1), [1, 2, 1], [1, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
    "dilated": ((1, 2, 9, 9), (2, 2, 3, 3), [1, 1], [2, 2], [2, 3], False, [0, 0], 1),
    "grouped": ((2, 4, 6, 6), (6, 2, 3, 3), [1, 1], [0, 0], [1, 1], False, [0, 0], 2),
    "depthwise": ((2, 4, 6, 6), (8, 1, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 4),
    "a row left over": ((1, 1, 6, 6), (1, 1, 3, 3), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    "transposed": ((2, 3, 5, 5), (3, 4, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    "transposed, grouped": ((1, 4, 5), (4, 3, 3), [3], [0], [2], True, [2], 2),
    "transposed, padded beyond the kernel": ((1, 2, 8, 8), (2, 2, 2, 2), [1, 1], [3, 2], [1, 1], True, [0, 0], 1),
    "no batch": ((0, 3, 7, 7), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
}


def operands(case: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list]:
    torch.manual_seed(0)
    x, w, *geometry = CASES[case]
    channels = w[1] * geometry[-1] if geometry[4 - 1] else w[0]
    return torch.randn(x, dtype=dtype), torch.randn(w, dtype=dtype), torch.randn(channels, dtype=dtype), geometry


@pytest.mark.parametrize("case", CASES)
def test_convolution(case: str) -> None:
    x, w, bias, geometry = operands(case, torch.float64)
    check(aten.convolution.default, x, w, bias, *geometry)
    grad = torch.randn_like(aten.convolution(x, w, bias, *geometry))
    check(aten.convolution_backward.default, grad, x, w, [bias.numel()], *geometry, [True, True, True])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_dtypes(dtype: torch.dtype) -> None:
    def small(*shape: int) -> torch.Tensor:
        # Whole numbers, whose products and sums are exact in every type.
        return torch.randint(-4, 5, shape).to(dtype)

    for transposed in (False, True):
        geometry = [2, 2], [1, 1], [1, 1], transposed, [0, 0], 1
        x, w = small(2, 3, 5, 5), small(3, 3, 3, 3)
        check(aten.convolution.default, x, w, None, *geometry)
        if dtype != torch.int64:
            grad = small(*aten.convolution(x, w, None, *geometry).shape)
            check(aten.convolution_backward.default, grad, x, w, [3], *geometry, [True, True, True])


def test_only_the_gradients_asked_for() -> None:
    x, w, _, geometry = operands("2d", torch.float32)
    grad = torch.randn_like(aten.convolution(x, w, None, *geometry))
    every = aten.convolution_backward(grad, x, w, [4], *geometry, [True, True, True])
    for i, expected in enumerate(every):
        mask = [i == j for j in range(3)]
        got = lowered(aten.convolution_backward.default, grad, x, w, [4], *geometry, mask)
        torch.testing.assert_close(got[i], expected)
        assert [g is None for g in got] == [not m for m in mask]


def test_lists_of_one() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3)
    check(aten.convolution.default, x, w, None, [2], [1], [1], False, [0], 1)
