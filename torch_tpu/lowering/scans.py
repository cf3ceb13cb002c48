"""Running sums, products, extrema and their logarithmic kin along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
    dtype = dtypes.to_torch(x.dtype)
    if dtype.is_complex:
        return lax.associative_scan(logaddexp, x, axis=dim % x.ndim)
    wide = jnp.moveaxis(x.astype(dtypes.to_jax(dtypes.opmath(dtype))), dim, -1)
    return jnp.moveaxis(_logcumsumexp(wide), -1, dim).astype(x.dtype)


def _logcumsumexp(x: Any, block: int = 32) -> Any:
    """Along the last axis: all prefixes of each block at once, then the blocks before it."""
    n = x.shape[-1]
    if n <= block:
        upto = np.tril(np.ones((n, n), bool))
        terms = jnp.where(upto, x[..., None, :], -jnp.inf)
        high = jnp.max(terms, -1, keepdims=True, initial=-jnp.inf)
        high = jnp.where(jnp.isinf(high), 0, high)
        return lax.log(jnp.sum(lax.exp(terms - high), -1)) + high[..., 0]
    inside = [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, [*inside, (0, -n % block)], constant_values=-jnp.inf)
    within = _logcumsumexp(x.reshape(*x.shape[:-1], -1, block))
    before = _logcumsumexp(within[..., -1])[..., :-1]
    before = jnp.pad(before, [*inside, (1, 0)], constant_values=-jnp.inf)
    return logaddexp(within, before[..., None]).reshape(x.shape)[..., :n]


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
