"""Reads and writes at positions held in tensors: index, gather, scatter, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .context import context, out
from .registry import lowers
from .rows import Specialise, is_padded, mask_rows, needs_exact, pads_rows
from .views import EXACT

# A read out of range is undefined, a write is dropped. Only some ops take negative positions.
READ: dict[str, Any] = {"mode": "promise_in_bounds"}
WRITE: dict[str, Any] = {"mode": "drop"}
WRITE_UNSIGNED: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}

# --- index: positions in several dimensions at once


@lowers("aten::index.Tensor", "aten::_unsafe_index.Tensor", rows="masked")
def index(x: Any, indices: Sequence[Any]) -> Any:
    """x[indices], where PyTorch's rules are NumPy's: indexed dimensions side by side stay in place, others come first.

    With masks see dynamic.py.
    """
    if any(is_padded(i) for i in indices):
        _require_leading(indices)
        pads_rows()
    if is_padded(x):
        if indices[0] is None:
            raise Specialise
        first = indices[0].astype(jnp.int32)
        indices = [jnp.where(first < 0, first + context().rows, first), *indices[1:]]
    return x.at[key(indices)].get(**READ)


@lowers("aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl", rows="masked")
def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool, unsafe: bool = False) -> Any:
    """x with x[indices] = values, or += values."""
    masks = [i for i in indices if is_mask(i)]
    if len(masks) == 1 and sum(i is not None for i in indices) == 1:
        return _mask_put(x, indices, masks[0], values, accumulate)
    needs_exact(x, *masks)
    if any(is_padded(i) for i in indices):
        _require_leading(indices)
        if not is_padded(values) and values.ndim == out().ndim and values.shape[0] != 1:
            raise Specialise
        indices = [i if i is None else _dropping(i, n) for i, n in zip(indices, x.shape, strict=False)]
    else:
        needs_exact(values)
    if masks:
        sizes = [static_rows(indices), _value_rows(x, indices, values), max(m.size for m in masks)]
        indices = mask_positions(indices, next(n for n in sizes if n is not None))
    return _put(x, key(indices), values, accumulate)


@lowers("aten::_unsafe_masked_index")
def unsafe_masked_index(x: Any, mask: Any, indices: Sequence[Any], fill: Any) -> Any:
    """x[indices] where the mask is set, `fill` elsewhere: positions there may be anything."""
    return jnp.where(mask, x.at[key(indices)].get(**READ), dtypes.as_array(fill, dtypes.to_torch(x.dtype)))


@lowers("aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(x: Any, mask: Any, indices: Sequence[Any], values: Any) -> Any:
    return accumulated(x, key(indices), jnp.where(mask, values, jnp.zeros((), x.dtype)), WRITE)


# --- slices along one dimension


@lowers("aten::index_select", rows="masked")
def index_select(x: Any, dim: int, index: Any) -> Any:
    if is_padded(index) if dim % max(x.ndim, 1) == 0 else is_padded(x):
        pads_rows()
    elif is_padded(index):
        raise Specialise
    if x.ndim == 0:
        return jnp.broadcast_to(x, out().shape)
    return x.at[_along(x, dim, index.reshape(-1))].get(**EXACT)


@lowers("aten::index_add", rows="masked")
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any) -> Any:
    whole = jnp.atleast_1d(x)
    where, slices = _slice_writes(whole, dim, index, source)
    if alpha != 1:
        slices = slices * dtypes.as_array(alpha, dtypes.to_torch(x.dtype))
    return accumulated(whole, where, slices, WRITE_UNSIGNED).reshape(x.shape)


@lowers("aten::index_copy", rows="masked")
def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    whole = jnp.atleast_1d(x)
    where, slices = _slice_writes(whole, dim, index, source)
    return whole.at[where].set(slices, **WRITE_UNSIGNED).reshape(x.shape)


@lowers("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", runtime=("value",), rows="masked")
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    needs_exact(x)
    whole = jnp.atleast_1d(x)
    where = _along(whole, dim, _dropping(index, whole.shape[dim]).reshape(-1))
    return whole.at[where].set(dtypes.as_array(value, dtypes.to_torch(x.dtype)), **WRITE).reshape(x.shape)


@lowers("aten::index_reduce")
def index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool) -> Any:
    whole = jnp.atleast_1d(x)
    where, slices = _slice_writes(whole, dim, index, source)

    def write(target: Any, method: str, values: Any) -> Any:
        return getattr(target.at[where], method)(values, **WRITE_UNSIGNED)

    return reduced(whole, slices, write, reduce, include_self).reshape(x.shape)


# --- elements along one dimension


@lowers("aten::gather", rows="masked")
def gather(x: Any, dim: int, index: Any, *, sparse_grad: bool) -> Any:
    """out[i][j] = x[index[i][j]][j] for dim 0; an index may be smaller than x in the other dimensions."""
    axis = dim % max(x.ndim, 1)
    if is_padded(index):
        if axis:
            raise Specialise
        pads_rows()
    if x.ndim == 0 or index.ndim == 0:
        return jnp.broadcast_to(x.reshape(-1)[index.reshape(-1)], (index.size,)).reshape(index.shape)
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    numbers = lax.GatherDimensionNumbers((), (axis,), (axis,), *[_others(x, axis)] * 2)
    positions = index.astype(jnp.int32)[..., None]
    return lax.gather(_cut(x, index.shape, axis), positions, numbers, (1,) * x.ndim, mode="promise_in_bounds")


@lowers("aten::scatter.src", rows="masked")
def scatter_src(x: Any, dim: int, index: Any, src: Any) -> Any:
    return scatter(x, dim, index, src, "set")


@lowers("aten::scatter.value", runtime=("value",), rows="masked")
def scatter_value(x: Any, dim: int, index: Any, value: Any) -> Any:
    return scatter(x, dim, index, dtypes.as_array(value, dtypes.to_torch(x.dtype)), "set")


@lowers("aten::scatter.reduce", rows="masked")
def scatter_reduce_src(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    return scatter(x, dim, index, src, {"add": "add", "multiply": "mul"}[reduce])


@lowers("aten::scatter.value_reduce", runtime=("value",), rows="masked")
def scatter_reduce_value(x: Any, dim: int, index: Any, value: Any, *, reduce: str) -> Any:
    value = dtypes.as_array(value, dtypes.to_torch(x.dtype))
    return scatter(x, dim, index, value, {"add": "add", "multiply": "mul"}[reduce])


@lowers("aten::scatter_add", rows="masked")
def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    return scatter(x, dim, index, src, "add")


@lowers("aten::scatter_reduce.two")
def scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool) -> Any:
    def write(target: Any, method: str, values: Any) -> Any:
        return scatter(target, dim, index, values, method)

    return reduced(x, src, write, reduce, include_self)


# --- elements of the flat tensor


@lowers("aten::take", rows="masked")
def take(x: Any, index: Any) -> Any:
    needs_exact(x)
    if is_padded(index):
        pads_rows()
    return x.reshape(-1).at[index.astype(jnp.int32)].get(**READ) if index.size else jnp.zeros(index.shape, x.dtype)


@lowers("aten::put", rows="masked")
def put(x: Any, index: Any, source: Any, accumulate: bool) -> Any:
    needs_exact(x)
    if is_padded(index) != is_padded(source):
        raise Specialise
    where = (_dropping(index, x.size).reshape(-1),)
    return _put(x.reshape(-1), where, source.reshape(-1), accumulate).reshape(x.shape) if index.size else x


# --- elements under a mask


@lowers("aten::masked_scatter")
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The elements under the mask become those of `source`, one after the other."""
    if source.size == 0:
        return jnp.broadcast_to(x, out().shape)
    return jnp.where(mask, source.reshape(-1).at[ranks(jnp.broadcast_to(mask, out().shape))].get(mode="clip"), x)


@lowers("aten::masked_scatter_backward")
def masked_scatter_backward(grad: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """The gradients under the mask, one after the other, then zeros."""
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    return compact(mask, grad.reshape(-1), math.prod(sizes), 0).reshape(tuple(sizes))


@lowers("aten::nonzero_static")
def nonzero_static(x: Any, *, size: int, fill_value: int) -> Any:
    positions, count = nonzero_positions(x, size)
    there = lax.iota(jnp.int32, size) < count
    return jnp.where(there[:, None], positions, fill_value).astype(jnp.int64)


# --- shared: masks as positions


def is_mask(i: Any) -> bool:
    """True for an index tensor that is a mask."""
    return i is not None and str(i.dtype).removeprefix("torch.") in ("bool", "uint8")


def static_rows(indices: Sequence[Any]) -> int | None:
    """How many elements each mask among the indices must select for the others to fit; None if they don't say."""
    lengths = [i.shape[-1] for i in indices if i is not None and not is_mask(i) and i.ndim]
    return next((n for n in lengths if n != 1), None)


def ranks(mask: Any) -> Any:
    """int32 of the mask's shape: how many set elements come before each one in row-major order."""
    flat = mask.reshape(-1).astype(jnp.int32)
    return (lax.cumsum(flat) - flat).reshape(mask.shape)


def compact(mask: Any, x: Any, size: int, fill: Any) -> Any:
    """[size, ...]: the rows of x that bool[n] `mask` selects, in order, then `fill`."""
    where = jnp.where(mask, ranks(mask), size)
    return jnp.full((size, *x.shape[1:]), fill, x.dtype).at[where].set(x, **WRITE_UNSIGNED)


def nonzero_positions(x: Any, size: int) -> tuple[Any, Any]:
    """(int32[size, ndim] where x isn't zero, followed by positions past the end of dimension 0; int32, how many)."""
    mask = (x != 0).reshape(-1)
    where = compact(mask, lax.iota(jnp.int32, x.size), size, x.size)
    columns: list[Any] = []
    for n in x.shape[:0:-1]:
        columns.insert(0, where % max(n, 1))
        where = where // max(n, 1)
    stacked = jnp.stack([where, *columns], 1) if x.ndim else jnp.zeros((size, 0), jnp.int32)
    return stacked, mask.sum(dtype=jnp.int32)


def mask_positions(indices: Sequence[Any], size: int) -> list[Any]:
    """`indices` with `size` positions a dimension for each mask.

    A mask that selects one element stands for it throughout, as it would broadcast.
    """
    result: list[Any] = []
    for i in indices:
        if is_mask(i):
            positions, count = nonzero_positions(i, size)
            positions = jnp.where(count == 1, positions[:1], positions)
            result += [positions[:, d] for d in range(i.ndim)]
        else:
            result.append(i)
    return result


def _value_rows(x: Any, indices: Sequence[Any], values: Any) -> int | None:
    """How many positions the values of a write are for; None if they broadcast over them."""
    present = [d for d, i in enumerate(indices) if i is not None]
    in_place = present == list(range(present[0], present[-1] + 1))
    indexed = sum(i.ndim if is_mask(i) else 1 for i in indices if i is not None)
    behind = x.ndim - indexed - (present[0] if in_place else 0)
    return values.shape[-behind - 1] if values.ndim > behind and values.shape[-behind - 1] != 1 else None


def _mask_put(x: Any, indices: Sequence[Any], mask: Any, values: Any, accumulate: bool) -> Any:
    """x[:, ..., mask] = values as a select, the k-th row of the values going to the k-th element of the mask."""
    axis = next(d for d, i in enumerate(indices) if i is not None)
    if axis:
        needs_exact(mask, values)
    if is_padded(x):
        pads_rows()
    behind = x.ndim - axis - mask.ndim
    before = values.ndim - behind - 1
    if values.size == 0:  # then the mask selects nothing
        return x
    if before >= 0:
        rows = ranks(mask != 0)
        if is_padded(values):  # one row broadcasts
            rows = jnp.minimum(rows, context().rows - 1)
        values = values.at[(slice(None),) * before + (rows,)].get(mode="clip")
    values = x | values if accumulate and x.dtype == bool else x + values if accumulate else values
    return jnp.where((mask != 0).reshape(*mask.shape, *[1] * behind), values, x)


# --- shared: writes


def accumulated(x: Any, where: tuple[Any, ...], values: Any, mode: dict[str, Any]) -> Any:
    """x with `values` added at positions that may repeat; 16-bit floats add up in float32."""
    if x.dtype == bool:
        return x.at[where].max(values, **mode)
    compute = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))
    return x.astype(compute).at[where].add(values.astype(compute), **mode).astype(x.dtype)


def scatter(x: Any, dim: int, index: Any, src: Any, method: str) -> Any:
    """x[index[i][j]][j] = src[i][j] for dim 0, or +=, *=, max, min by `method`.

    index may be smaller than x in the other dimensions, and smaller than src in all. A 0-d src goes everywhere.
    """
    needs_exact(x)
    if x.ndim == 0 or index.ndim == 0:
        return scatter(x.reshape(-1), 0, index.reshape(-1), src.reshape(-1), method).reshape(x.shape)
    if index.size == 0:
        return x
    axis = dim % x.ndim
    if src.ndim == 0:
        _require_rows(index, index, axis)
        src = jnp.broadcast_to(src, index.shape)
    else:
        _require_rows(index, src, axis)
    positions = _dropping(index, x.shape[axis])[..., None]
    numbers = lax.ScatterDimensionNumbers((), (axis,), (axis,), *[_others(x, axis)] * 2)
    part, src = _cut(x, index.shape, axis), lax.slice(src, [0] * src.ndim, index.shape)
    if x.dtype == bool:
        method = {"add": "max", "mul": "min"}.get(method, method)
    compute = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype))) if method in ("add", "mul") else x.dtype
    write = getattr(lax, "scatter" if method == "set" else f"scatter_{method}")
    part = write(part.astype(compute), positions, src.astype(compute), numbers, mode="drop").astype(x.dtype)
    return part if part.shape == x.shape else lax.dynamic_update_slice(x, part, [jnp.int32(0)] * x.ndim)


def reduced(x: Any, src: Any, write: Callable[[Any, str, Any], Any], reduce: str, include_self: bool) -> Any:
    """x with sources reduced into it where `write(target, method, sources)` puts them."""
    dtype, is_inexact = x.dtype, jnp.issubdtype(x.dtype, jnp.inexact)
    compute = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(dtype)))
    x, src = x.astype(compute), src.astype(compute)
    method = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
    if not include_self:
        if method in ("add", "mul"):
            neutral = int(method == "mul")
        else:
            neutral = dtypes.limits(dtypes.to_torch(dtype))[method == "min"]
        x = write(x, "set", jnp.full(src.shape, neutral, compute))
    total = write(x, method, src)
    if reduce == "mean":
        counts = write(jnp.full(x.shape, include_self, compute), "add", jnp.ones(src.shape, compute))
        counts = jnp.where(counts == 0, 1, counts)
        total = total / counts if is_inexact else total // counts
    return total.astype(dtype)


def _put(x: Any, where: tuple[Any, ...], values: Any, accumulate: bool) -> Any:
    return accumulated(x, where, values, WRITE) if accumulate else x.at[where].set(values, **WRITE)


def _slice_writes(x: Any, dim: int, index: Any, source: Any) -> tuple[tuple[Any, ...], Any]:
    """(where, what) of writes of slices of `source` along a dimension of x."""
    needs_exact(x)
    axis = dim % x.ndim
    _require_rows(index, source, axis)
    slices = source.reshape(*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    return _along(x, dim, _dropping(index, x.shape[dim]).reshape(-1)), slices


def _dropping(index: Any, length: int) -> Any:
    """The index with positions in its padding past the end, where writes are dropped."""
    return mask_rows(index, length).astype(jnp.int32)


def _require_rows(index: Any, values: Any, axis: int) -> None:
    """Padded positions and what is written there must be padded alike, and be positions of rows."""
    if is_padded(values) != is_padded(index) or (is_padded(index) and axis):
        raise Specialise


def _require_leading(indices: Sequence[Any]) -> None:
    """Padded positions give padded rows if all are padded and the dimension they make comes first."""
    present = [d for d, i in enumerate(indices) if i is not None]
    in_place = present == list(range(present[0], present[-1] + 1))
    same = {i.ndim for i in indices if i is not None}
    if not all(is_padded(indices[d]) for d in present) or len(same) > 1 or (in_place and present[0]):
        raise Specialise


def key(indices: Sequence[Any]) -> tuple[Any, ...]:
    """The indices as JAX takes them."""
    return tuple(slice(None) if i is None else i.astype(jnp.int32) for i in indices)


def _along(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % x.ndim) + (index.astype(jnp.int32),)


def _others(x: Any, axis: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != axis)


def _cut(x: Any, shape: Sequence[int], axis: int) -> Any:
    """x cut to `shape` in all dimensions but one."""
    return lax.slice(x, [0] * x.ndim, [n if d == axis else shape[d] for d, n in enumerate(x.shape)])
