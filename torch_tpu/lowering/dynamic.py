"""Ops whose output size depends on values: they compact into as many rows as there may be, and count the valid ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from ._jax import jnp, lax
from .indexing import READ, WRITE_UNSIGNED, compact, is_mask, key, mask_positions, nonzero_positions, static_rows
from .registry import lowers, lowers_dynamic
from .rows import Compacted, Specialise, is_padded, mask_rows, needs_exact, valid

# --- elements under a mask


@lowers_dynamic("aten::nonzero")
def nonzero(x: Any) -> Compacted:
    positions, count = nonzero_positions(mask_rows(x, 0), x.size)
    return Compacted((positions.astype(jnp.int64),), (count,))


@lowers_dynamic("aten::masked_select")
def masked_select(x: Any, mask: Any) -> Compacted:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    for operand in (x, mask):
        if is_padded(operand):
            if operand.ndim < len(shape) or operand.shape[0] != shape[0]:
                raise Specialise
            mask = mask & valid(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    mask = jnp.broadcast_to(mask, shape).reshape(-1)
    return _select_rows(mask, jnp.broadcast_to(x, shape).reshape(-1))


def _sized_by_mask(x: Any, indices: Sequence[Any]) -> bool:
    return any(is_mask(i) for i in indices)


@lowers_dynamic("aten::index.Tensor", "aten::_unsafe_index.Tensor", when=_sized_by_mask)
def index(x: Any, indices: Sequence[Any]) -> Compacted:
    """x[indices] with masks among the indices."""
    present = [d for d, i in enumerate(indices) if i is not None]
    masks = [i for i in indices if is_mask(i)]
    if len(present) == 1:
        axis, mask = present[0], mask_rows(masks[0], 0) != 0
        if axis:
            needs_exact(x, masks[0])
        elif is_padded(x) != is_padded(masks[0]):
            raise Specialise
        rows = jnp.moveaxis(x, range(axis, axis + mask.ndim), range(mask.ndim))
        return _select_rows(mask.reshape(-1), rows.reshape(mask.size, *rows.shape[mask.ndim :]), axis)
    needs_exact(x, *(i for i in indices if i is not None))
    # Masks that select one element broadcast.
    counts = [(m != 0).sum(dtype=jnp.int32) for m in masks]
    known = static_rows(indices)
    count = functools.reduce(lambda a, b: jnp.where(a == 1, b, a), counts) if known is None else jnp.int32(known)
    indices = mask_positions(indices, max(m.size for m in masks) if known is None else known)
    present = [d for d, i in enumerate(indices) if i is not None]
    in_place = present == list(range(present[0], present[-1] + 1))
    last = max(indices[d].ndim for d in present) - 1
    axis = (present[0] if in_place else 0) + last
    return Compacted((jnp.moveaxis(x.at[key(indices)].get(**READ), axis, 0),), (count,), axis)


# --- unique


@lowers_dynamic("aten::_unique2")
def unique2(x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Compacted:
    needs_exact(x)
    values, order = lax.sort((x.reshape(-1), lax.iota(jnp.int32, x.size)), num_keys=1)
    return _groups(values, order, x.shape, return_inverse, return_counts)


@lowers_dynamic("aten::_unique")
def unique(x: Any, sorted: bool = True, return_inverse: bool = False) -> Compacted:
    result = unique2(x, sorted, return_inverse)
    return Compacted(result.outputs[:2], result.counts[:2])


@lowers_dynamic("aten::unique_consecutive")
def unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Compacted:
    needs_exact(x)
    if dim is not None:
        return unique_dim_consecutive(x, dim)
    return _groups(x.reshape(-1), lax.iota(jnp.int32, x.size), x.shape, return_inverse, return_counts)


@lowers_dynamic("aten::unique_dim_consecutive")
def unique_dim_consecutive(x: Any, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Compacted:
    """PyTorch returns inverse and counts whether asked for or not."""
    needs_exact(x)
    rows = jnp.moveaxis(x, dim, 0)
    n = rows.shape[0]
    return _groups(rows, lax.iota(jnp.int32, n), (n,), True, True)._replace(dim=dim % x.ndim)


@lowers_dynamic("aten::unique_dim")
def unique_dim(
    x: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Compacted:
    """Rows are sorted by their last element, then, stably, by each one before it."""
    needs_exact(x)
    rows = jnp.moveaxis(x, dim, 0)
    n = rows.shape[0]
    table = rows.reshape(n, math.prod(rows.shape[1:])).T

    def by_column(i: Any, order: Any) -> Any:
        column = lax.dynamic_index_in_dim(table, table.shape[0] - 1 - i, keepdims=False)
        return lax.sort((column[order], order), is_stable=True, num_keys=1)[1]

    order = lax.fori_loop(0, table.shape[0], by_column, lax.iota(jnp.int32, n)) if n else lax.iota(jnp.int32, n)
    return _groups(rows[order], order, (n,), True, True)._replace(dim=dim % x.ndim)


@lowers("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Any, *, output_size: int) -> Any:
    """Position j holds how many runs end at or before j."""
    ends = lax.cumsum(repeats.astype(jnp.int32))
    past = jnp.zeros(output_size, jnp.int32).at[ends].add(1, **WRITE_UNSIGNED)
    return lax.cumsum(past).astype(repeats.dtype)


# --- shared


def _select_rows(mask: Any, rows: Any, dim: int = 0) -> Compacted:
    """The rows that bool[n] `mask` selects."""
    count = mask.sum(dtype=jnp.int32)
    if rows.ndim == 1:
        return Compacted((compact(mask, rows, mask.size, 0),), (count,), dim)
    where = compact(mask, lax.iota(jnp.int32, mask.size), mask.size, 0)
    return Compacted((rows.at[where].get(mode="promise_in_bounds", wrap_negative_indices=False),), (count,), dim)


def _groups(rows: Any, order: Any, shape: Sequence[int], inverse: bool, counts: bool) -> Compacted:
    """One row of each run of equal rows; for each element of the original which run it is in; the runs' lengths.

    order: where in the original, whose positions have `shape`, each row was.
    """
    n = rows.shape[0]
    differs = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
    first = jnp.concatenate([jnp.ones(min(n, 1), bool), differs])
    count = first.sum(dtype=jnp.int32)
    group = lax.cumsum(first.astype(jnp.int32)) - 1
    values = _select_rows(first, rows).outputs[0]
    none = jnp.zeros(0, jnp.int64)
    which = jnp.zeros(n, jnp.int64).at[order].set(group.astype(jnp.int64), **WRITE_UNSIGNED).reshape(shape)
    lengths = jnp.zeros(n, jnp.int64).at[group].add(1, **WRITE_UNSIGNED)
    return Compacted(
        (values, which if inverse else none, lengths if counts else none),
        (count, None, count if counts else None),
    )
