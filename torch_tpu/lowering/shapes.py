"""Tensors joined, repeated, rolled, flipped, padded and rearranged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .context import context, out
from .registry import lowers
from .rows import Specialise, row_dim
from .views import EXACT, diagonal_view, spread


@lowers("aten::cat", rows="any")
def cat(tensors: Sequence[Any], dim: int) -> Any:
    """A tensor of shape [0] joins with anything, for PyTorch's old times' sake."""
    dtype = dtypes.to_jax(out().dtype)
    parts = [x.astype(dtype) for x in tensors if x.shape != (0,)]
    if any(row_dim(x) is not None for x in tensors):
        return _append(tensors, dim % out().ndim)
    return lax.concatenate(parts, dim % parts[0].ndim) if parts else jnp.zeros(0, dtype)


def _append(tensors: Sequence[Any], dim: int) -> Any:
    """The first operand, which has room behind its rows (the caller sees to it), with the others written there."""
    first, *others = tensors
    if row_dim(first) != dim or any(row_dim(x) is not None or x.dtype != first.dtype for x in others):
        raise Specialise
    added = lax.concatenate(others, dim)
    context().grown[0] = (dim, added.shape[dim])
    return lax.dynamic_update_slice_in_dim(first, added, context().rows, dim)


@lowers("aten::stack", "aten::_stack")
def stack(tensors: Sequence[Any], dim: int) -> Any:
    dtype = dtypes.to_jax(out().dtype)
    axis = dim % out().ndim
    return lax.concatenate([jnp.expand_dims(x.astype(dtype), axis) for x in tensors], axis)


@lowers("aten::repeat")
def repeat(x: Any, repeats: Sequence[int]) -> Any:
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    pairs = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    return lax.broadcast_in_dim(x.reshape(shape), pairs, range(1, len(pairs), 2)).reshape(out().shape)


@lowers("aten::roll")
def roll(x: Any, shifts: Sequence[int], dims: Sequence[int]) -> Any:
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        n, axis = x.shape[dim] if x.ndim else 0, dim % max(x.ndim, 1)
        first = n - shift % n if n else 0
        if first not in (0, n):
            parts = [lax.slice_in_dim(x, first, n, axis=axis), lax.slice_in_dim(x, 0, first, axis=axis)]
            x = lax.concatenate(parts, axis)
    return x


@lowers("aten::flip")
def flip(x: Any, dims: Sequence[int]) -> Any:
    return lax.rev(x, [d % x.ndim for d in dims]) if x.ndim else x


@lowers("aten::rot90")
def rot90(x: Any, k: int, dims: Sequence[int]) -> Any:
    return jnp.rot90(x, k % 4, tuple(dims))


@lowers("aten::trace")
def trace(x: Any) -> Any:
    return diagonal_view(x, 0, min(x.shape)).astype(dtypes.to_jax(out().dtype)).sum()


@lowers("aten::block_diag")
def block_diag(tensors: Sequence[Any]) -> Any:
    """Each block is a matrix; a vector is a row."""
    shape = out().shape
    blocks = [jnp.atleast_2d(x).astype(dtypes.to_jax(out().dtype)) for x in tensors]
    rows, column = [], 0
    for block in blocks:
        rows.append(spread(block, (block.shape[0], shape[1]), 1, column, 1))
        column += block.shape[1]
    return lax.concatenate(rows, 0)


@lowers("aten::_chunk_cat")
def chunk_cat(tensors: Sequence[Any], dim: int, num_chunks: int) -> Any:
    """Each tensor in `num_chunks` chunks along `dim` (zeros fill the last), flattened and joined chunk by chunk."""
    dtype, axis = dtypes.to_jax(out().dtype), dim % tensors[0].ndim
    parts = []
    for x in tensors:
        rows = -(-x.shape[axis] // num_chunks) * num_chunks
        x = spread(x.astype(dtype), (*x.shape[:axis], rows, *x.shape[axis + 1 :]), axis, 0, 1)
        parts.append(x.reshape(*x.shape[:axis], num_chunks, -1))
    return lax.concatenate(parts, axis + 1)


# --- images


@lowers("aten::pixel_shuffle")
def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    *batch, channels, height, width = x.shape
    r, n = upscale_factor, len(batch)
    x = x.reshape(*batch, channels // r**2, r, r, height, width)
    return _swap(x, n, (0, 3, 1, 4, 2)).reshape(out().shape)


@lowers("aten::pixel_unshuffle")
def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    *batch, channels, height, width = x.shape
    r, n = downscale_factor, len(batch)
    x = x.reshape(*batch, channels, height // r, r, width // r, r)
    return _swap(x, n, (0, 2, 4, 1, 3)).reshape(out().shape)


@lowers("aten::channel_shuffle")
def channel_shuffle(x: Any, groups: int) -> Any:
    batch, channels, *rest = x.shape
    return jnp.swapaxes(x.reshape(batch, groups, channels // groups, *rest), 1, 2).reshape(x.shape)


@lowers("aten::im2col")
def im2col(
    x: Any, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """[N, C, H, W] to [N, C * kernel, windows]."""
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 2) + [(p, p, 0) for p in padding])
    for axis, k, d, s in zip((x.ndim - 2, x.ndim), kernel_size, dilation, stride, strict=True):
        x = x.at[(slice(None),) * axis + (_taps(x.shape[axis], k, d, s),)].get(**EXACT)
    # [..., C, kernel height, height, kernel width, width]
    return _swap(x, x.ndim - 5, (0, 1, 3, 2, 4)).reshape(out().shape)


@lowers("aten::col2im")
def col2im(
    x: Any,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """The transpose of `im2col`: overlapping windows add up."""
    compute = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))
    padded = [n + 2 * p for n, p in zip(output_size, padding, strict=True)]
    taps = [_taps(*args) for args in zip(padded, kernel_size, dilation, stride, strict=True)]
    *batch, _, _ = x.shape
    channels = out().shape[-3]
    windows = [t.shape[1] for t in taps]
    x = x.astype(compute).reshape(*batch, channels, *kernel_size, *windows)
    x = _swap(x, x.ndim - 5, (0, 1, 3, 2, 4))
    for axis, width, tap in ((x.ndim - 2, padded[1], taps[1]), (x.ndim - 4, padded[0], taps[0])):
        canvas = jnp.zeros((*x.shape[:axis], width, *x.shape[axis + 2 :]), compute)
        x = canvas.at[(slice(None),) * axis + (tap,)].add(x, **EXACT)
    cropped = lax.pad(x, jnp.zeros((), compute), [(0, 0, 0)] * (x.ndim - 2) + [(-p, -p, 0) for p in padding])
    return cropped.astype(dtypes.to_jax(out().dtype))


# --- shared


def _swap(x: Any, batch: int, order: Sequence[int]) -> Any:
    """The dimensions behind the first `batch` ones in another order."""
    return lax.transpose(x, [*range(batch), *(batch + d for d in order)])


def _taps(length: int, kernel: int, dilation: int, stride: int) -> Any:
    """int32[kernel, windows]: the positions each tap of a kernel sees."""
    windows = (length - dilation * (kernel - 1) - 1) // stride + 1
    return jnp.arange(kernel, dtype=jnp.int32)[:, None] * dilation + jnp.arange(windows, dtype=jnp.int32) * stride
