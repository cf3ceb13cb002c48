"""Histograms."""

from __future__ import annotations

import pytest
import torch
from check import check

aten = torch.ops.aten
X = torch.randn(4, 10, generator=torch.Generator().manual_seed(4))
W = torch.rand(4, 10, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histogram(dtype: torch.dtype, density: bool) -> None:
    x, w = X.to(dtype), W.to(dtype)
    check(aten.histogram.bin_ct, x, 7, density=density)
    check(aten.histogram.bin_ct, x, 3, range=[-1.0, 0.5], weight=w, density=density)
    check(aten.histogram.bin_ct, torch.ones(3, dtype=dtype), 3)
    check(aten.histogram.bin_ct, torch.zeros(0, dtype=dtype), 3)
    check(aten.histogram.bins_tensor, x, torch.tensor([-1, 0, 0.25, 2], dtype=dtype), weight=w, density=density)
    check(aten.histogram.bins_tensor, torch.tensor([1, 2, 3, 0], dtype=dtype), torch.tensor([1, 2, 3], dtype=dtype))


def test_histogram_of_points() -> None:
    points, w = X.reshape(4, 5, 2), W[:, :5]
    check(aten._histogramdd_bin_edges.default, points, [3, 2])
    check(aten._histogramdd_bin_edges.default, points, [3, 2], range=[-1, 1, 0, 3])
    check(aten._histogramdd_from_bin_cts.default, points, [3, 2], weight=w, density=True)
    check(aten._histogramdd_from_bin_tensors.default, points, [torch.tensor([-1.0, 0, 3]), torch.arange(-2.0, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check(aten.histc.default, x, 7)
    check(aten.histc.default, x, 5, -0.5, 1)
    check(aten.histc.default, torch.tensor([0, 1, 2, 2, 3, 4, 5, float("nan")], dtype=dtype), 5, 0, 4)
    check(aten.histc.default, torch.ones(3, dtype=dtype), 4)
    check(aten.histc.default, torch.zeros(0, dtype=dtype), 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histc_of_integers(dtype: torch.dtype) -> None:
    """As on CUDA; the CPU has none."""
    x = torch.tensor([0, 3, 1, 3, 3, 7, 90], dtype=dtype, device="tpu")
    counts = torch.histc(x, bins=8, min=0, max=7)
    assert counts.dtype == dtype and counts.tolist() == [1, 1, 0, 3, 0, 0, 0, 1]
