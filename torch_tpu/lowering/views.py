"""View ops as functions of logical tensors, their copying forms, and writes and gradients through a view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import lowers

# --- the same elements in another shape


@lowers(
    "aten::view",
    "aten::view_copy",
    "aten::_unsafe_view",
    "aten::_reshape_copy",
    "aten::_reshape_alias",
    "aten::_reshape_alias_copy",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::squeeze.dims",
    "aten::squeeze_copy",
    "aten::squeeze_copy.dim",
    "aten::squeeze_copy.dims",
    "aten::unsqueeze",
    "aten::unsqueeze_copy",
)
def reshape(x: Any, *_: Any) -> Any:
    return x.reshape(out().shape)


@lowers(
    "aten::alias",
    "aten::alias_copy",
    "aten::detach",
    "aten::detach_copy",
    "aten::lift",
    "aten::lift_fresh",
    "aten::lift_fresh_copy",
    "aten::_lazy_clone",
    "aten::_fw_primal",
    "aten::_fw_primal_copy",
)
def identity(x: Any, *_: Any) -> Any:
    return x


# --- dimensions in another order


@lowers("aten::permute", "aten::permute_copy")
def permute(x: Any, dims: Sequence[int]) -> Any:
    return lax.transpose(x, [d % x.ndim for d in dims])


@lowers("aten::transpose.int", "aten::transpose_copy.int")
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@lowers("aten::t", "aten::t_copy")
def t(x: Any) -> Any:
    return x.T


@lowers("aten::expand", "aten::expand_copy")
def expand(x: Any, size: Sequence[int], *, implicit: bool) -> Any:
    return jnp.broadcast_to(x, out().shape)


# --- parts


@lowers("aten::slice.Tensor", "aten::slice_copy.Tensor")
def slice_(x: Any, dim: int, start: int | None, end: int | None, step: int) -> Any:
    axis = dim % x.ndim
    first, last = bounds(x.shape[axis], start, end)
    return lax.slice_in_dim(x, first, last, step, axis)


@lowers("aten::narrow_copy")
def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    axis = dim % x.ndim
    first = start % x.shape[axis] if start < 0 else start
    return lax.slice_in_dim(x, first, first + length, 1, axis)


@lowers("aten::select.int", "aten::select_copy.int")
def select(x: Any, dim: int, index: int) -> Any:
    return lax.index_in_dim(x, index, dim, keepdims=False)


@lowers(
    "aten::split.Tensor",
    "aten::split_copy.Tensor",
    "aten::unsafe_split.Tensor",
    "aten::split_with_sizes",
    "aten::split_with_sizes_copy",
    "aten::unsafe_split_with_sizes",
)
def split(x: Any, size: int | Sequence[int], dim: int) -> list[Any]:
    length = x.shape[dim]
    if isinstance(size, int):
        pieces = max(1, -(-length // size)) if size else 1
        size = [min(size, length - i * size) for i in range(pieces)]
    return lax.split(x, size, dim % x.ndim) if len(size) > 1 else [x]


@lowers("aten::unbind.int", "aten::unbind_copy.int")
def unbind(x: Any, dim: int) -> list[Any]:
    n = x.shape[dim]
    return [lax.squeeze(part, [dim % x.ndim]) for part in lax.split(x, [1] * n, dim % x.ndim)] if n else []


@lowers("aten::diagonal", "aten::diagonal_copy")
def diagonal(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    return diagonal_view(jnp.moveaxis(x, (dim1, dim2), (-2, -1)), offset, out().shape[-1])


@lowers("aten::unfold", "aten::unfold_copy")
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    if x.ndim == 0:
        return jnp.broadcast_to(x, out().shape)
    axis = dim % x.ndim
    windows = out().shape[axis]
    if step == size:
        whole = lax.slice_in_dim(x, 0, windows * size, 1, axis)
        return jnp.moveaxis(whole.reshape(*x.shape[:axis], windows, size, *x.shape[axis + 1 :]), axis + 1, -1)
    where = window_positions(windows, size, step)
    return jnp.moveaxis(x.at[(slice(None),) * axis + (where,)].get(**EXACT), axis + 1, -1)


@lowers("aten::as_strided", "aten::as_strided_copy")
def as_strided(x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None) -> Any:
    """A view of the row-major storage of the logical tensor."""
    flat, start = x.reshape(-1), storage_offset or 0
    order = dense_order(size, stride)
    if order is not None:
        n = math.prod(size)
        block = lax.slice(flat, [start], [start + n]).reshape([size[d] for d in order])
        return lax.transpose(block, [order.index(d) for d in range(len(size))])
    return flat.at[strided_positions(size, stride, start)].get(**EXACT)


# --- the same bits as another dtype


@lowers("aten::view_as_real", "aten::view_as_real_copy")
def view_as_real(x: Any) -> Any:
    return jnp.stack([lax.real(x), lax.imag(x)], -1)


@lowers("aten::view_as_complex", "aten::view_as_complex_copy")
def view_as_complex(x: Any) -> Any:
    return lax.complex(x[..., 0], x[..., 1])


@lowers("aten::view.dtype", "aten::view_copy.dtype")
def view_dtype(x: Any, dtype: torch.dtype) -> Any:
    """XLA bitcasts neither bool nor complex: those go through bytes and pairs."""
    if x.dtype == dtypes.to_jax(dtype):
        return x
    if jnp.iscomplexobj(x):
        x = view_as_real(x).reshape(*x.shape[:-1], -1) if x.ndim else view_as_real(x)
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    parts = dtypes.to_jax(torch.uint8 if dtype == torch.bool else dtypes.real(dtype))
    ratio = parts.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], -1, ratio)
    x = lax.bitcast_convert_type(x, parts)
    if dtype == torch.bool:
        return (x != 0).reshape(out().shape)
    if dtype.is_complex:
        return view_as_complex(x.reshape(*out().shape, 2))
    return x.reshape(out().shape)


@lowers("aten::_conj_copy")
def conj(x: Any) -> Any:
    return lax.conj(x)


@lowers("aten::_neg_view_copy")
def neg_view(x: Any) -> Any:
    return lax.neg(x)


# --- writes through a view: the tensor with a part replaced


@lowers("aten::slice_scatter")
def slice_scatter(x: Any, src: Any, dim: int, start: int | None, end: int | None, step: int) -> Any:
    axis = dim % x.ndim
    first, last = bounds(x.shape[axis], start, end)
    src = src.astype(x.dtype)
    if src.shape == x.shape:
        return src
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, src, jnp.int32(first), axis)
    position = lax.broadcasted_iota(jnp.int32, x.shape, axis) - first
    inside = (position >= 0) & (position < last - first) & (position % step == 0)
    return lax.select(inside, spread(src, x.shape, axis, first, step), x)


@lowers("aten::slice_inverse")
def slice_inverse(x: Any, src: Any, dim: int, start: int | None, end: int | None, step: int) -> Any:
    return slice_scatter(src, x, dim, start, end, step)


@lowers("aten::select_scatter")
def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    axis = dim % x.ndim
    piece = jnp.expand_dims(src.astype(x.dtype), axis)
    return lax.dynamic_update_slice_in_dim(x, piece, jnp.int32(index % x.shape[axis]), axis)


@lowers("aten::diagonal_scatter")
def diagonal_scatter(x: Any, src: Any, offset: int, dim1: int, dim2: int) -> Any:
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    return jnp.moveaxis(on_diagonal(src.astype(x.dtype), x, offset), (-2, -1), (dim1, dim2))


@lowers("aten::as_strided_scatter")
def as_strided_scatter(x: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None) -> Any:
    where = strided_positions(size, stride, storage_offset or 0)
    return x.reshape(-1).at[where].set(src.astype(x.dtype), **EXACT).reshape(x.shape)


# --- gradients of parts: zeros outside


@lowers("aten::slice_backward")
def slice_backward(grad: Any, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    axis = dim % len(sizes)
    first, _ = bounds(sizes[axis], start, end)
    return spread(grad, sizes, axis, first, step)


@lowers("aten::select_backward")
def select_backward(grad: Any, sizes: Sequence[int], dim: int, index: int) -> Any:
    axis = dim % len(sizes)
    return spread(jnp.expand_dims(grad, axis), sizes, axis, index % sizes[axis], 1)


@lowers("aten::diagonal_backward")
def diagonal_backward(grad: Any, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Any:
    d1, d2 = dim1 % len(sizes), dim2 % len(sizes)
    batch = [s for d, s in enumerate(sizes) if d not in (d1, d2)]
    zeros = jnp.zeros((*batch, sizes[d1], sizes[d2]), grad.dtype)
    return jnp.moveaxis(on_diagonal(grad, zeros, offset), (-2, -1), (d1, d2))


@lowers("aten::diag_embed")
def diag_embed(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    return diagonal_backward(x, out().shape, offset, dim1, dim2)


@lowers("aten::unfold_backward")
def unfold_backward(grad: Any, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    if not sizes:
        return grad.reshape(-1).sum(dtype=grad.dtype)
    axis = dim % len(sizes)
    windows = grad.shape[axis]
    grad = jnp.moveaxis(grad, -1, axis + 1)
    if step >= size:  # windows don't overlap: each element has at most one gradient
        apart = spread(grad, (*grad.shape[: axis + 1], step, *grad.shape[axis + 2 :]), axis + 1, 0, 1)
        flat = apart.reshape(*sizes[:axis], windows * step, *sizes[axis + 1 :])
        return spread(flat, sizes, axis, 0, 1)
    where = window_positions(windows, size, step)
    compute = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(grad.dtype)))
    zeros = jnp.zeros(sizes, compute)
    return zeros.at[(slice(None),) * axis + (where,)].add(grad.astype(compute), **EXACT).astype(grad.dtype)


# --- shared

# Positions made here are neither negative nor out of range: no HLO to check that.
EXACT: dict[str, Any] = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """[start, end) of a slice as PyTorch clamps it, never negative in length."""
    first, last, _ = slice(start, end).indices(length)
    return first, max(first, last)


def spread(x: Any, sizes: Sequence[int], axis: int, first: int, step: int) -> Any:
    """x at first, first + step, ... of `axis`, cut to and zero elsewhere in a tensor of `sizes`."""
    span = (x.shape[axis] - 1) * step + 1 if x.shape[axis] else 0
    padding = [(0, 0, 0)] * len(sizes)
    padding[axis] = (first, sizes[axis] - first - span, step - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), padding)


def diagonal_view(x: Any, offset: int, length: int) -> Any:
    """A diagonal of the last two dimensions: of the flattened matrix, every (columns + 1)th element."""
    *batch, rows, columns = x.shape
    if length == 0:
        return jnp.zeros((*batch, 0), x.dtype)
    start = offset if offset >= 0 else -offset * columns
    stop = start + (length - 1) * (columns + 1) + 1
    return lax.slice_in_dim(x.reshape(*batch, rows * columns), start, stop, columns + 1, len(batch))


def on_diagonal(src: Any, x: Any, offset: int) -> Any:
    """x with the diagonal of its last two dimensions replaced; the last dimension of `src` runs along it."""
    rows = x.shape[-2]
    first = max(0, -offset)
    by_row = spread(src, (*src.shape[:-1], rows), src.ndim - 1, first, 1)
    row, column = (lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - i) for i in (2, 1))
    return lax.select(column - row == offset, jnp.broadcast_to(by_row[..., None], x.shape), x)


def window_positions(windows: int, size: int, step: int) -> Any:
    """int32[windows, size]: where the elements of each window are."""
    return jnp.arange(windows, dtype=jnp.int32)[:, None] * step + jnp.arange(size, dtype=jnp.int32)


def strided_positions(size: Sequence[int], stride: Sequence[int], start: int) -> Any:
    """int32 of shape `size`: where a strided view has its elements in the flat array."""
    where = jnp.full(tuple(size), start, jnp.int32)
    for d, s in enumerate(stride):
        where = where + lax.broadcasted_iota(jnp.int32, tuple(size), d) * s
    return where


def dense_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the slowest to the fastest, if the strided view is a permuted dense block; else None."""
    if 0 in size:
        return list(range(len(size)))
    order = sorted(range(len(size)), key=lambda d: (-stride[d], size[d] == 1))
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != expected:
            return None
        expected *= size[d]
    return order
