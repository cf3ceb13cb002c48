"""Reductions over segments, and their gradients."""

from __future__ import annotations

import pytest
import torch
from check import check

aten = torch.ops.aten
REDUCTIONS = ("max", "min", "sum", "mean", "prod")


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments(reduce: str, initial: float | None) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    x[1, 1] = x[2, 1] = x[3, 2] = 0
    deep = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(2))
    for data, lengths in ((x, torch.tensor([1, 0, 3])), (deep, torch.tensor([[1, 2], [3, 0], [0, 3]]))):
        axis = lengths.ndim - 1
        check(aten.segment_reduce.default, data, reduce, lengths=lengths, axis=axis, initial=initial)
        out = torch.segment_reduce(data, reduce, lengths=lengths, axis=axis, initial=initial)
        grad = torch.rand(out.shape) + 0.5
        check(
            aten._segment_reduce_backward.default,
            *(grad, out, data, reduce),
            lengths=lengths,
            axis=axis,
            initial=initial,
        )


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_offsets_and_nan(reduce: str) -> None:
    x = torch.tensor([1.0, float("nan"), 3, 3, -2])
    check(aten.segment_reduce.default, x, reduce, offsets=torch.tensor([0, 2, 2, 5]), initial=1)
    check(aten.segment_reduce.default, x[:0], reduce, offsets=torch.tensor([0, 0]))
