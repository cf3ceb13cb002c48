"""Views as functions, writes through them and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check import check

aten = torch.ops.aten
X = torch.arange(60.0).reshape(3, 4, 5)
M = torch.arange(24.0).reshape(4, 6)
NAN = float("nan")


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.view.default, (X, [12, 5])),
        (aten.view.default, (X, [-1])),
        (aten.view.default, (torch.zeros(0, 3), [3, 0])),
        (aten._unsafe_view.default, (X, [5, 12])),
        (aten.permute.default, (X, [-1, 0, 1])),
        (aten.permute.default, (torch.tensor(1.0), [])),
        (aten.transpose.int, (X, 0, -1)),
        (aten.transpose.int, (torch.tensor(1.0), 0, -1)),
        (aten.t.default, (M,)),
        (aten.t.default, (M[0],)),
        (aten.expand.default, (M[:, :1], [2, -1, 7])),
        (aten.expand.default, (torch.tensor(True), [2, 3])),
        (aten.squeeze.default, (X[:, :1, None],)),
        (aten.squeeze.dim, (X[:, :1], -2)),
        (aten.squeeze.dims, (X[:1, :1], [0, 1, 2])),
        (aten.unsqueeze.default, (X, -1)),
        (aten.unsqueeze.default, (torch.tensor(3), 0)),
        (aten.detach.default, (X,)),
        (aten.slice.Tensor, (X, 1, 1, 100, 2)),
        (aten.slice.Tensor, (X, -1, -3, -1)),
        (aten.slice.Tensor, (X, 0, 2, 1)),
        (aten.slice.Tensor, (X, 0, None, None)),
        (aten.select.int, (X, -1, -2)),
        (aten.narrow_copy.default, (X, 1, -2, 2)),
        (aten.split.Tensor, (X, 3, -1)),
        (aten.split.Tensor, (X, 9, 1)),
        (aten.split.Tensor, (torch.zeros(0, 2), 3)),
        (aten.split_with_sizes.default, (X, [1, 0, 4], 2)),
        (aten.unbind.int, (X, 1)),
        (aten.unbind.int, (torch.zeros(2, 0), 0)),
        (aten.diagonal.default, (X, 1, -1, 0)),
        (aten.diagonal.default, (M, -2)),
        (aten.diagonal.default, (M, 9)),
        (aten.unfold.default, (X, 2, 2, 1)),
        (aten.unfold.default, (X, 1, 2, 2)),
        (aten.unfold.default, (X, -1, 2, 3)),
        (aten.unfold.default, (torch.tensor(2.0), 0, 1, 1)),
        (aten.as_strided.default, (X, [2, 3], [1, 2], 5)),
        (aten.as_strided.default, (X, [5, 4, 3], [1, 5, 20])),
        (aten.as_strided.default, (X, [2, 2], [0, 1])),
        (aten.as_strided.default, (X, [], [], 7)),
        (aten.as_strided.default, (X, [0, 3], [3, 1])),
        (aten.view_as_real.default, (torch.tensor([1 + 2j, -3j]),)),
        (aten.view_as_complex.default, (M.reshape(-1, 2),)),
        (aten.alias_copy.default, (X,)),
        (aten.unbind_copy.int, (X, 0)),
    ],
)
def test_view(op: Any, args: Any) -> None:
    check(op, *args)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int16, torch.bfloat16),
        (torch.uint8, torch.int64),
        (torch.bool, torch.uint8),
        (torch.uint8, torch.bool),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.float64),
        (torch.complex64, torch.complex64),
        (torch.float64, torch.float16),
    ],
)
def test_view_as_another_dtype(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)) * 3
    x = torch.ones(3, 8, dtype=torch.uint8) if target == torch.bool else x.to(source)
    check(aten.view.dtype, x, target)


def test_view_of_a_complex_number_as_another_dtype() -> None:
    check(aten.view.dtype, torch.tensor(1 + 2j), torch.int64)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.slice_scatter.default, (X, X[:, 1:3] + 100, 1, 1, 3)),
        (aten.slice_scatter.default, (X, X[..., :2] + 100, -1, 1, None, 2)),
        (aten.slice_scatter.default, (X, X[..., :3] + 100, -1, 0, 9, 2)),
        (aten.slice_scatter.default, (X, -X)),
        (aten.slice_scatter.default, (X, X[:, :0], 1, 3, 2)),
        (aten.slice_scatter.default, (X.int(), X[:2].half(), 0, 0, 2)),
        (aten.select_scatter.default, (X, X[:, 0] - 9, 1, -1)),
        (aten.diagonal_scatter.default, (M, torch.full((4,), NAN), 1)),
        (aten.diagonal_scatter.default, (M, torch.ones(2), -2)),
        (aten.diagonal_scatter.default, (X, torch.ones(4, 3), 0, 0, 2)),
        (aten.as_strided_scatter.default, (M, torch.ones(2, 3), [2, 3], [2, 5], 1)),
        (aten.slice_backward.default, (X, [3, 9, 5], 1, 1, 9, 2)),
        (aten.slice_backward.default, (X, [3, 4, 8], -1, -5, 2**63 - 1, 1)),
        (aten.slice_backward.default, (X[:, :0], [3, 9, 5], 1, 4, 4, 1)),
        (aten.select_backward.default, (M, [4, 3, 6], 1, -1)),
        (aten.diagonal_backward.default, (M, [6, 9, 4], -3, 1, 0)),
        (aten.diag_embed.default, (M, -1, 0, -1)),
        (aten.diag_embed.default, (M.bool(), 2)),
        (aten.unfold_backward.default, (torch.ones(3, 4, 2), [3, 5], 1, 2, 1)),
        (aten.unfold_backward.default, (torch.ones(3, 2, 2), [3, 7], 1, 2, 3)),
        (aten.unfold_backward.default, (torch.ones(200, 4, dtype=torch.bfloat16), [203], 0, 4, 1)),
        (aten.unfold_backward.default, (torch.ones(1), [], 0, 1, 1)),
    ],
)
def test_write_or_gradient_through_a_view(op: Any, args: Any) -> None:
    check(op, *args)
