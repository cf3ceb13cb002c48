"""Histograms over one or more dimensions, with bins from counts or from edges."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .creation import even
from .registry import lowers
from .searching import insertion_points


@lowers("aten::histogram.bin_ct")
def histogram(x: Any, bins: int, *, range: Sequence[float] | None, weight: Any, density: bool) -> tuple[Any, Any]:
    points = x.reshape(-1, 1)
    edges = _edges(points, [bins], range)
    return _counts(points, edges, weight, density), edges[0]


@lowers("aten::histogram.bins_tensor")
def histogram_of_edges(x: Any, bins: Any, *, weight: Any, density: bool) -> tuple[Any, Any]:
    return _counts(x.reshape(-1, 1), [bins], weight, density), bins


@lowers("aten::_histogramdd_bin_edges")
def bin_edges(x: Any, bins: Sequence[int], *, range: Sequence[float] | None, weight: Any, density: bool) -> list[Any]:
    return _edges(_points(x, bins), bins, range)


@lowers("aten::_histogramdd_from_bin_cts")
def histogramdd(x: Any, bins: Sequence[int], *, range: Sequence[float] | None, weight: Any, density: bool) -> Any:
    points = _points(x, bins)
    return _counts(points, _edges(points, bins, range), weight, density)


@lowers("aten::_histogramdd_from_bin_tensors")
def histogramdd_of_edges(x: Any, bins: Sequence[Any], *, weight: Any, density: bool) -> Any:
    return _counts(_points(x, bins), bins, weight, density)


def _points(x: Any, bins: Sequence[Any]) -> Any:
    if x.shape[-1] != len(bins):
        raise RuntimeError("histogramdd: The size of bins must be equal to the innermost dimension of the input.")
    return x.reshape(-1, len(bins))


@lowers("aten::histc")
def histc(x: Any, bins: int, low: Any, high: Any) -> Any:
    """Counts in `bins` even parts of [low, high]; where those are equal, of the range of the values."""
    if low > high:
        raise ValueError("torch.histc: max must be larger than min")
    kind, x = x.dtype, x.reshape(-1)
    x = x.astype(jnp.promote_types(kind, jnp.int32)) if kind.kind in "iu" else x
    if low == high and x.size:
        low, high = x.min(), x.max()
    low, high = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    flat = low == high
    low, high = jnp.where(flat, low - 1, low), jnp.where(flat, high + 1, high)
    part = (x - low) * bins
    part = lax.div(part, jnp.broadcast_to(high - low, part.shape)).astype(jnp.int32)
    inside = (x >= low) & (x <= high)
    return jnp.zeros(bins, kind).at[jnp.clip(part, 0, bins - 1)].add(inside.astype(kind))


def _edges(points: Any, bins: Sequence[int], limits: Sequence[float] | None) -> list[Any]:
    """Evenly spaced edges from the least to the greatest value of each column, half away where those are equal."""
    if limits is not None:
        low, high = jnp.asarray(limits[::2], points.dtype), jnp.asarray(limits[1::2], points.dtype)
    elif points.shape[0] == 0:
        low, high = jnp.zeros(len(bins), points.dtype), jnp.ones(len(bins), points.dtype)
    else:
        low, high = points.min(0), points.max(0)
    flat = low == high
    low, high = jnp.where(flat, low - 0.5, low), jnp.where(flat, high + 0.5, high)
    return [even(low[d], high[d], n + 1, dtypes.to_torch(points.dtype)) for d, n in enumerate(bins)]


def _counts(points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """[bins of column 0, ...]: the weight of the points within; the last bin holds its upper edge."""
    shape = [e.shape[0] - 1 for e in edges]
    inside, where = jnp.ones(points.shape[0], bool), []
    for column, e, n in zip(points.T, edges, shape, strict=True):
        inside &= (column >= e[0]) & (column <= e[-1])
        where.append(jnp.clip(insertion_points(e, column, True) - 1, 0, n - 1))
    weight = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1)
    total = jnp.zeros(shape, points.dtype).at[tuple(where)].add(lax.select(inside, weight, jnp.zeros_like(weight)))
    if density:
        volume = functools.reduce(operator.mul, jnp.ix_(*(e[1:] - e[:-1] for e in edges)))
        total = total / total.sum() / volume
    return total
