"""Sorting: NaN is the greatest value, equal elements keep their order."""

from __future__ import annotations

from typing import Any

from ._jax import jnp, lax
from .registry import lowers
from .rows import each_row


@lowers("aten::sort", rows="masked")
def sort(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    return sort_stable(x, stable=True, dim=dim, descending=descending)


@lowers("aten::sort.stable", rows="masked")
def sort_stable(x: Any, *, stable: bool | None, dim: int, descending: bool) -> tuple[Any, Any]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    each_row([dim % x.ndim], x)
    values, positions = sorted_with_positions(x, dim % x.ndim, descending)
    return values, positions.astype(jnp.int64)


@lowers("aten::topk", rows="masked")
def topk(x: Any, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Any, Any]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = dim % x.ndim
    each_row([axis], x)
    if largest:
        if jnp.issubdtype(x.dtype, jnp.floating):  # top_k puts NaN with the sign bit, x86's usual one, below everything
            x = jnp.where(x != x, jnp.full((), jnp.nan, x.dtype), x)
        values, positions = (jnp.moveaxis(v, -1, axis) for v in lax.top_k(jnp.moveaxis(x, axis, -1), k))
    else:
        values, positions = (lax.slice_in_dim(v, 0, k, 1, axis) for v in sorted_with_positions(x, axis, False))
    return values, positions.astype(jnp.int64)


def sorted_with_positions(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    """(x sorted, int32: where each element was). Descending is the ascending order of x reversed, read backwards:
    that puts NaN first and keeps the order of equal elements."""
    positions = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    if descending:
        x, positions = lax.rev(x, [axis]), x.shape[axis] - 1 - positions
    x, positions = lax.sort((x, positions), dimension=axis, is_stable=True, num_keys=1)
    return (lax.rev(x, [axis]), lax.rev(positions, [axis])) if descending else (x, positions)
