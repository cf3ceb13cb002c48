"""Running sums, products, extrema and their logarithmic kin along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .pointwise import logaddexp
from .registry import lowers


@lowers("aten::cumsum")
def cumsum(x: Any, dim: int, *, dtype: torch.dtype | None) -> Any:
    return _running(lax.cumsum, x, dim)


@lowers("aten::cumprod")
def cumprod(x: Any, dim: int, *, dtype: torch.dtype | None) -> Any:
    return _running(lax.cumprod, x, dim)


def _running(scan: Callable[..., Any], x: Any, dim: int) -> Any:
    x = dtypes.cast(x, dtypes.opmath(out().dtype))
    return dtypes.cast(scan(x, axis=dim % x.ndim) if x.ndim else x, out().dtype)


@lowers("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(x: Any, dim: int) -> Any:
    if x.ndim == 0:
        return x
    wide = x.astype(dtypes.to_jax(dtypes.opmath(out().dtype)))
    if out().dtype.is_complex:
        return lax.associative_scan(logaddexp, wide, axis=dim % x.ndim)
    return lax.cumlogsumexp(wide, axis=dim % x.ndim).astype(x.dtype)


@lowers("aten::cummax")
def cummax(x: Any, dim: int) -> Any:
    return _extremum(lax.cummax, x, dim)


@lowers("aten::cummin")
def cummin(x: Any, dim: int) -> Any:
    return _extremum(lax.cummin, x, dim)


def _extremum(scan: Callable[..., Any], x: Any, dim: int) -> tuple[Any, Any]:
    """The largest or smallest value so far and its last index. NaN beats everything."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim
    # The value is sought again: it must have the same bits then.
    x = lax.optimization_barrier(x.astype(jnp.int8) if x.dtype == bool else x)
    values = scan(x, axis=dim)
    place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    index = lax.cummax(jnp.where((x == values) | (x != x), place, 0), axis=dim)
    return dtypes.cast(values, out().dtype), index.astype(jnp.int64)
