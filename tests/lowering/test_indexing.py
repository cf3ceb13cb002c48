"""Reads and writes at positions held in tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check import check

aten = torch.ops.aten
X = torch.arange(60.0).reshape(3, 4, 5)
NAN, INF = float("nan"), float("inf")


def T(*values: Any, dtype: Any = None) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).mul(4).to(dtype)


@pytest.mark.parametrize(
    "indices",
    [
        [T(2, 0, -1)],
        [None, T(2, 0, -1)],
        [T(0, 1), T(-1, 2)],
        [T(0, 1), None, T(-1, 2)],
        [None, T(0, 1), T(-1, 2)],
        [T([0], [1]), T(-1, 2, 0)],
        [None, T([0], [1]), T(-1, 2, 0)],
        [torch.tensor(1), None, T(1, 2)],
        [None, torch.tensor(-1)],
        [T(0, 1, dtype=torch.int32)],
        [torch.zeros(0, dtype=torch.int64)],
        [torch.zeros(2, 0, dtype=torch.int64), None, T([0], [1])],
    ],
)
def test_index(indices: list[Any]) -> None:
    check(aten.index.Tensor, X, indices)


def test_index_of_other_dtypes_and_sizes() -> None:
    check(aten.index.Tensor, torch.tensor(True).reshape(1), [T(0, -1)])
    check(aten.index.Tensor, X.to(torch.complex64), [None, T(1)])
    check(aten.index.Tensor, torch.zeros(0, 3), [torch.zeros(0, dtype=torch.int64)])
    check(aten._unsafe_index.Tensor, X, [None, T(1, 0)])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("indices", "values"),
    [
        ([T(2, 0)], torch.tensor(-1.0)),
        ([T(2, -1)], rand(1, 4, 5)),
        ([T(0, 2)], rand(2, 4, 5)),
        ([T(0, 2)], rand(5)),
        ([T(0, 2), None, T(-1, 0)], rand(2, 4)),
        ([None, T(0, 2), T(-1, 0)], rand(3, 1)),
        ([T([0], [2]), T(1, 2)], rand(2, 2, 5)),
        ([torch.zeros(0, dtype=torch.int64)], torch.zeros(0, 4, 5)),
        # Masks.
        ([T(True, False, True)], torch.tensor(9.0)),
        ([T(True, False, True)], rand(2, 4, 5)),
        ([T(True, False, True)], rand(1, 4, 5)),
        ([T(True, False, True)], rand(4, 5)),
        ([T(1, 0, 1, dtype=torch.uint8)], rand(2, 4, 5)),
        ([None, T(True, False, True, True)], rand(3, 3, 5)),
        ([None, T(True, False, True, True)], rand(3, 5)),
        ([X[..., 0] % 2 == 0], rand(6, 5)),
        ([X % 7 < 3], rand(27)),
        ([X > 100], torch.zeros(0)),
        ([None, X[0] % 2 == 1], rand(3, 10)),
        ([None, None, T(False, False, False, False, False)], rand(1)),
        ([T(True, False, True), T(0, 2)], rand(2, 5)),
        ([T(True, False, True), T(-1)], rand(2, 5)),
        ([T(True, False, True), torch.tensor(-1)], torch.tensor(5.0)),
        ([T(True, False, True), None, T(True, False, False, False, True)], rand(2, 4)),
        ([T(True, False, False), T(True, False, True, True)], rand(3, 5)),
        ([T(True, False, False), T(True, False, True, True)], rand(5)),
    ],
)
def test_index_put(indices: list[Any], values: torch.Tensor, accumulate: bool) -> None:
    check(aten.index_put.default, X, indices, values, accumulate)


def test_index_put_adds_up_repeated_positions() -> None:
    check(aten.index_put.default, torch.zeros(3), [T(1, 1, -2)], T(1.0, 2.0, 4.0), True)
    check(aten.index_put.default, T(False, False), [T(1, 1)], T(True, True), True)
    check(aten.index_put.default, T(250, 1, dtype=torch.uint8), [T(0, 0)], T(5, 5, dtype=torch.uint8), True)
    # 16-bit floats in float32: 1 would be lost against 256 otherwise.
    check(aten.index_put.default, torch.zeros(1), [torch.zeros(300, dtype=torch.int64)], torch.ones(300), True)


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_dimension(dtype: torch.dtype) -> None:
    x, i = rand(3, 4, dtype=dtype), T(1, 0)
    check(aten.index_select.default, x, -1, T(3, 3, 0))
    check(aten.index_select.default, x[0, 0], 0, T(0))
    check(aten.index_select.default, x, 0, torch.tensor(2, dtype=torch.int32))
    check(aten.index_copy.default, x, 1, i, x[:, 2:])
    check(aten.index_add.default, x, 1, T(1, 1, 0), x[:, :3])
    check(aten.index_add.default, x[0, 0], 0, T(0), x[0, 1])
    check(aten.index_fill.int_Scalar, x, 1, T(-1, 0), 1)
    check(aten.index_fill.int_Tensor, x[0, 0], 0, T(0), x[1, 1])
    check(aten.gather.default, x, 0, torch.tensor([[2, 0], [1, 1]]))
    check(aten.gather.default, x[0, 0], 0, T(0))
    check(aten.gather.default, x[0], -1, torch.tensor(3))
    check(aten.gather.default, x, 1, torch.zeros(3, 0, dtype=torch.int64))
    check(aten.take.default, x, torch.tensor([[-1, 0], [5, 5]]))
    check(aten.put.default, x, T(-1, 0), x[1, :2])
    check(aten.put.default, x, T(-1, 0, 0), x[1, :3], True)
    check(aten.scatter.src, x, 1, torch.tensor([[3, 0], [1, 2]]), x)
    check(aten.scatter.value, x, 0, torch.tensor([[2, 0, 1, 1]]), 1)
    check(aten.scatter.value, x[0, 0], 0, torch.tensor(0), 1)
    check(aten.scatter_add.default, x, 0, torch.tensor([[2, 0], [2, 2], [2, 0], [1, 1]]), rand(4, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_reduction(dtype: torch.dtype, reduce: str) -> None:
    x, i = rand(3, 4, dtype=dtype), torch.tensor([[1, 1, 0, 3]])
    check(aten.scatter.reduce, x, 1, i, rand(2, 4, dtype=dtype), reduce=reduce)
    if dtype != torch.bool:
        check(aten.scatter.value_reduce, x, 1, i, 2, reduce=reduce)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_reductions_into_positions(reduce: str, include_self: bool) -> None:
    i, rows = torch.tensor([[0, 0, 2, 0], [1, 1, 1, 2]]), T(2, 0, 2, 2)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int8):
        x, src = rand(3, 4, dtype=dtype), rand(4, 4, dtype=dtype)
        check(aten.scatter_reduce.two, x, 0, i, src, reduce, include_self=include_self)
        if reduce != "sum":
            check(aten.index_reduce.default, x, 0, rows, src, reduce, include_self=include_self)
    if reduce in ("sum", "prod", "mean"):
        x, src = rand(3, 4, dtype=torch.complex64), rand(4, 4, dtype=torch.complex64)
        check(aten.scatter_reduce.two, x, 0, i, src, reduce, include_self=include_self)
    holes = T(1.0, NAN, -INF, INF, NAN)
    check(aten.scatter_reduce.two, torch.zeros(3), 0, T(0, 0, 1, 1, 2), holes, reduce, include_self=include_self)
    check(aten.scatter_reduce.two, torch.tensor(2.0), 0, T(0), T(3.0), reduce, include_self=include_self)


def test_elements_under_a_mask() -> None:
    mask = X[0] % 3 == 0
    check(aten.masked_scatter.default, X, mask, rand(60))
    check(aten.masked_scatter.default, X[0], X % 2 == 0, rand(60))
    check(aten.masked_scatter.default, X, torch.tensor(False), torch.zeros(0))
    check(aten.masked_scatter_backward.default, X[0], mask, [3, 4])
    for x in (X % 4, T(0.0, NAN), torch.tensor(3), torch.zeros(0, 2)):
        check(aten.nonzero_static.default, x, size=5)
        check(aten.nonzero_static.default, x, size=0, fill_value=3)
    check(aten.nonzero_static.default, X % 4, size=60, fill_value=7)


def test_masked_positions() -> None:
    i, mask = [torch.tensor([[-1], [2]]), T(0, 9, 1)], torch.tensor([[False, False, False], [True, False, True]])
    check(aten._unsafe_masked_index.default, rand(3, 4), mask, i, 5)
    check(aten._unsafe_masked_index_put_accumulate.default, rand(3, 4), mask, i, rand(2, 3))
