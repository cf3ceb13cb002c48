"""Order of values, NaN, ties."""

from __future__ import annotations

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
FLOATS = torch.tensor([[2.0, NAN, -INF, -0.0, 0.0, 2.0], [INF, 1.0, NAN, NAN, 0.0, -1.0]])
NEGATIVE_NAN = torch.tensor([0xFFC00000, 0x3F800000, 0x7FC00000], dtype=torch.uint32).view(torch.float32)
INTS = torch.tensor([3, -128, 127, 3, 0, -128], dtype=torch.int8)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("x", "dim"),
    [
        (FLOATS, -1),
        (FLOATS, 0),
        (FLOATS.to(torch.bfloat16), 1),
        (FLOATS.half(), 1),
        (INTS, 0),
        (INTS.view(torch.uint8), 0),
        (torch.tensor([2**62, -(2**63), 5]), 0),
        (torch.tensor([True, False, True, False]), 0),
        (NEGATIVE_NAN, 0),
        (torch.tensor(5.0), 0),
        (torch.zeros(0, 3), 0),
        (torch.zeros(2, 0), 1),
    ],
)
def test_sort(x: torch.Tensor, dim: int, descending: bool) -> None:
    check(aten.sort.stable, x, stable=True, dim=dim, descending=descending)
    check(aten.sort.default, x, dim, descending)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    x = torch.randperm(60, generator=torch.Generator().manual_seed(2)).reshape(3, 20).to(dtype)
    for k in (0, 1, 7, 20):
        check(aten.topk.default, x, k, 1, largest, True)
    check(aten.topk.default, x, 2, 0, largest, True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("x", [FLOATS, INTS, NEGATIVE_NAN])
def test_topk_of_ties_and_nan(x: torch.Tensor, largest: bool) -> None:
    for k in range(1, x.shape[-1] + 1):
        expected = torch.topk(x, k, -1, largest)
        values, positions = lowered(aten.topk.default, x, k, -1, largest, True)
        torch.testing.assert_close(values, expected.values, equal_nan=True)
        torch.testing.assert_close(x.gather(-1, positions), values, equal_nan=True)
        assert all(len(set(row.tolist())) == k for row in positions.reshape(-1, k))


def test_topk_of_a_number() -> None:
    check(aten.topk.default, torch.tensor(2.0), 1)
    check(aten.topk.default, torch.tensor(2.0), 0)
