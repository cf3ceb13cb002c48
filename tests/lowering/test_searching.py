"""Membership and buckets."""

from __future__ import annotations

import pytest
import torch
from check import check

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
X = torch.tensor([[3.0, NAN, -INF], [0.0, 250.0, 7.5]])
MANY = torch.arange(300.0) * 2.5


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("among", [torch.tensor([7.5, NAN, 0.0]), MANY.flip(0), torch.zeros(0), torch.tensor(3.0)])
def test_isin(among: torch.Tensor, invert: bool) -> None:
    check(aten.isin.Tensor_Tensor, X, among, invert=invert)
    check(aten.isin.Tensor_Tensor, X.nan_to_num().int(), among.nan_to_num().int(), invert=invert)
    check(aten.isin.Scalar_Tensor, 250, among, invert=invert)


def test_isin_a_number() -> None:
    check(aten.isin.Tensor_Scalar, X, 7.5)
    check(aten.isin.Tensor_Scalar, torch.arange(4), 2, invert=True)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("boundaries", [torch.tensor([0.0, 3.0, 3.0, 7.5]), MANY, torch.zeros(0)])
def test_bucketize(boundaries: torch.Tensor, right: bool) -> None:
    check(aten.bucketize.Tensor, X, boundaries, right=right)
    check(aten.bucketize.Tensor, X, boundaries, out_int32=True, right=right)
    check(aten.bucketize.Tensor, torch.tensor(3.0), boundaries, right=right)
    check(aten.bucketize.Scalar, 7.5, boundaries, right=right)
    check(aten.bucketize.Tensor, torch.arange(9), boundaries.nan_to_num().long(), right=right)


def test_searchsorted_of_nothing():
    check(aten.searchsorted.Tensor, torch.empty(0, 0), torch.empty(0, 0))
    check(aten.searchsorted.Tensor, torch.arange(3.0), torch.empty(2, 0))
