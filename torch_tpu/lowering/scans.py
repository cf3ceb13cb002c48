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
    return lax.associative_scan(logaddexp, wide, axis=dim % x.ndim).astype(x.dtype)


@lowers("aten::cummax")
def cummax(x: Any, dim: int) -> Any:
    return _extremum(x, dim, lambda a, b: a >= b)


@lowers("aten::cummin")
def cummin(x: Any, dim: int) -> Any:
    return _extremum(x, dim, lambda a, b: a <= b)


def _extremum(x: Any, dim: int, beats: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """The value so far that no earlier or equal one beats and its last index. NaN beats everything."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim

    def later(a: Any, b: Any) -> Any:
        (va, ia), (vb, ib) = a, b
        second = (vb != vb) | (beats(vb, va) & (va == va))
        return jnp.where(second, vb, va), jnp.where(second, ib, ia)

    index = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    values, index = lax.associative_scan(later, (x, index), axis=dim)
    return values, index.astype(jnp.int64)
