"""Pooling over windows: maximum (with indices), average, adaptive, fractional, unpooling, and their gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dtypes
from ._jax import jax, jnp, lax
from .context import out
from .registry import lowers

UNROLLED = 16


def _ranks(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare `fn(rank, ...)` as the lowering of the 2- and 3-dimensional ops, the name having a gap for the rank."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for rank in (2, 3):
            lowers(name.format(rank))(functools.partial(fn, rank))
        return fn

    return register


def _full(values: Sequence[int], rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    values = tuple(values) or tuple(default)
    return values * (rank if len(values) == 1 else 1)


def _wide(dtype: Any) -> Any:
    return dtypes.to_jax(dtypes.opmath(dtypes.to_torch(dtype)))


def _transpose(fn: Callable[[Any], Any], grad: Any, like: Any) -> Any:
    """The gradient to an argument of `like`'s shape and dtype of the linear `fn`."""
    wide = _wide(like.dtype)
    (value,) = jax.linear_transpose(fn, jax.ShapeDtypeStruct(like.shape, wide))(grad.astype(wide))
    return value.astype(like.dtype)


def _along(values: np.ndarray, axis: int, ndim: int) -> Any:
    """A constant vector as a factor along one axis of an array of `ndim` dimensions."""
    return jnp.asarray(values).reshape(-1, *(1,) * (ndim - 1 - axis))


# Maximum: one axis after the other, so the work is the sum of the window's sides. The index of the maximum is that of
# its first occurrence in row-major order, of the last NaN where there is one; both survive going axis by axis.


def _first_largest(read: Callable[[Any], tuple[Any, Any, Any]], count: int) -> tuple[Any, Any]:
    """The largest of `count` candidates `read(k) = (value, index, whether to take it in any case)`."""

    def step(k: Any, best: tuple[Any, Any]) -> tuple[Any, Any]:
        value, index, forced = read(k)
        better = (value > best[0]) | forced
        if jnp.issubdtype(value.dtype, jnp.floating):
            better = better | jnp.isnan(value)
        return jnp.where(better, value, best[0]), jnp.where(better, index, best[1])

    best = read(0)[:2]
    best = best[0], jnp.broadcast_to(best[1], best[0].shape)
    if count > UNROLLED:
        return lax.fori_loop(1, count, step, best)
    for k in range(1, count):
        best = step(k, best)
    return best


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _max_axis(x: Any, index: Any, axis: int, pitch: int, size: int, k: int, s: int, p: int, d: int) -> tuple[Any, Any]:
    """Maximum and index along one axis: `size` windows of k elements; `pitch` is the flat distance of its elements."""
    span = (size - 1) * s + 1
    right = span + (k - 1) * d - x.shape[axis] - p
    margins = [(p, right, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    padded = lax.pad(x, jnp.asarray(_lowest(x.dtype), x.dtype), margins)
    indices = None if index is None else lax.pad(index, jnp.int32(0), margins)
    start = np.arange(size) * s - p
    first = _along(np.maximum(0, -(start // d)).astype(np.int32), axis, x.ndim)
    start = _along(start.astype(np.int32), axis, x.ndim)

    def window(v: Any, j: Any) -> Any:
        return lax.slice_in_dim(lax.dynamic_slice_in_dim(v, j * d, span, axis), 0, span, s, axis)

    def read(j: Any) -> tuple[Any, Any, Any]:
        position = (start + j * d) * pitch
        return window(padded, j), position if indices is None else position + window(indices, j), first == j

    return _first_largest(read, k)


@_ranks("aten::max_pool{}d_with_indices")
def max_pool(
    rank: int,
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Any, Any]:
    kernel = _full(kernel, rank)
    geometry = list(zip(kernel, _full(stride, rank, kernel), _full(padding, rank), _full(dilation, rank), strict=True))
    sizes, index, pitch, shape = out().shape[-rank:], None, 1, x.shape
    for i in reversed(range(rank)):
        axis = x.ndim - rank + i
        x, index = _max_axis(x, index, axis, pitch, sizes[i], *geometry[i])
        pitch *= shape[axis]
    return x, index.astype(jnp.int64)


@_ranks("aten::max_pool{}d_with_indices_backward")
def max_pool_backward(
    rank: int,
    grad: Any,
    x: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    kernel = _full(kernel, rank)
    if math.prod(kernel) > UNROLLED:
        return _put(grad, indices, x.shape[-rank:], add=True)
    stride, padding, dilation = _full(stride, rank, kernel), _full(padding, rank), _full(dilation, rank)
    sizes, outs = x.shape[-rank:], grad.shape[-rank:]
    indices, wide = indices.astype(jnp.int32), grad.astype(_wide(grad.dtype))
    total = jnp.zeros(x.shape, wide.dtype)
    # A scatter is slow on the TPU. Each offset in the window adds the gradients of the windows that chose it.
    for offset in itertools.product(*map(range, kernel)):
        lows = [j * d - p for j, d, p in zip(offset, dilation, padding, strict=True)]
        chosen = sum(
            _along((np.arange(n) * s + low) * math.prod(sizes[i + 1 :]), i, rank)
            for i, (n, s, low) in enumerate(zip(outs, stride, lows, strict=True))
        )
        part = jnp.where(indices == chosen.astype(jnp.int32), wide, 0)
        margins = [
            (low, size - low - (n - 1) * s - 1, s - 1)
            for size, n, s, low in zip(sizes, outs, stride, lows, strict=True)
        ]
        total += lax.pad(part, jnp.zeros((), wide.dtype), [(0, 0, 0)] * (x.ndim - rank) + margins)
    return total.astype(x.dtype)


def _put(values: Any, indices: Any, sizes: Sequence[int], add: bool) -> Any:
    """Values [..., *windows] written or added at flat indices of planes of `sizes` that are 0 elsewhere."""
    lead, plane = values.shape[: values.ndim - len(sizes)], math.prod(sizes)
    planes, windows, dtype = math.prod(lead), math.prod(values.shape[len(lead) :]), values.dtype
    flat = indices.reshape(planes, windows) + plane * jnp.arange(planes, dtype=indices.dtype)[:, None]
    if planes * plane < 2**31:
        flat = flat.astype(jnp.int32)
    target = jnp.zeros(planes * plane, _wide(dtype) if add else dtype).at[flat]
    values = values.reshape(planes, windows)
    result = target.add(values.astype(_wide(dtype)), mode="drop") if add else target.set(values, mode="drop")
    return result.astype(dtype).reshape(*lead, *sizes)


@_ranks("aten::max_unpool{}d")
def max_unpool(rank: int, x: Any, indices: Any, output_size: list[int], *geometry: Any) -> Any:
    return _put(x, indices, output_size, add=False)


# Average.


def _average(
    x: Any, outs: Sequence[int], kernel: Any, stride: Any, padding: Any, include_pad: bool, divisor: int | None
) -> Any:
    rank = len(outs)
    kernel = _full(kernel, rank)
    stride, padding = _full(stride, rank, kernel), _full(padding, rank)
    margins, counts = [(0, 0)] * (x.ndim - rank), []
    for i, (n, k, s, p) in enumerate(zip(outs, kernel, stride, padding, strict=True)):
        size = x.shape[x.ndim - rank + i]
        margins.append((p, max(0, (n - 1) * s + k - size - p)))
        start = np.arange(n) * s - p
        end = np.minimum(start + k, size + p)
        counts.append(end - start if include_pad else end.clip(max=size) - start.clip(min=0))
    ones = (1,) * (x.ndim - rank)
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(x, zero, lax.add, (*ones, *kernel), (*ones, *stride), margins)
    if divisor is not None or all((c == c[0]).all() for c in counts if len(c)):
        count = np.asarray(divisor if divisor is not None else math.prod(int(c[0]) for c in counts if len(c)))
    else:
        count = math.prod(_along(c, i, rank) for i, c in enumerate(counts))
    return lax.div(total, jnp.broadcast_to(count, total.shape).astype(total.dtype))


@_ranks("aten::avg_pool{}d")
def avg_pool(
    rank: int,
    x: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    geometry = out().shape[-rank:], kernel, stride, padding, count_include_pad, divisor_override
    return _average(x.astype(_wide(x.dtype)), *geometry).astype(x.dtype)


@_ranks("aten::avg_pool{}d_backward")
def avg_pool_backward(
    rank: int,
    grad: Any,
    x: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    geometry = grad.shape[-rank:], kernel, stride, padding, count_include_pad, divisor_override
    return _transpose(lambda v: _average(v, *geometry), grad, x)


# Adaptive: window o of n covers [floor(o * size / n), ceil((o + 1) * size / n)).


def _adaptive_windows(size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [count, n] of the windows' elements, the last one repeated in the shorter windows; their lengths."""
    o = np.arange(n)
    start, end = o * size // max(n, 1), -(-(o + 1) * size // max(n, 1))
    count = int((end - start).max(initial=1))
    return np.minimum(start + np.arange(count)[:, None], end - 1).astype(np.int32), end - start


def _adaptive_average(x: Any, outs: Sequence[int]) -> Any:
    rank = len(outs)
    for i, n in enumerate(outs):
        axis = x.ndim - rank + i
        size = x.shape[axis]
        if n and size % n == 0:
            x = x.reshape(*x.shape[:axis], n, size // n, *x.shape[axis + 1 :]).mean(axis + 1)
            continue
        positions, lengths = _adaptive_windows(size, n)
        share = np.where(np.arange(len(positions))[:, None] < lengths, 1.0 / lengths, 0).astype(x.dtype)
        share = _along(share.T.reshape(-1), axis, x.ndim)
        x = jnp.take(x, jnp.asarray(positions.T.reshape(-1)), axis, mode="clip") * share
        x = x.reshape(*x.shape[:axis], n, len(positions), *x.shape[axis + 1 :]).sum(axis + 1)
    return x


@_ranks("aten::_adaptive_avg_pool{}d")
def adaptive_avg_pool(rank: int, x: Any, output_size: list[int]) -> Any:
    return _adaptive_average(x.astype(_wide(x.dtype)), output_size).astype(x.dtype)


@_ranks("aten::_adaptive_avg_pool{}d_backward")
def adaptive_avg_pool_backward(rank: int, grad: Any, x: Any) -> Any:
    return _transpose(lambda v: _adaptive_average(v, grad.shape[-rank:]), grad, x)


def _max_gathered(x: Any, positions: Sequence[Any]) -> tuple[Any, Any]:
    """Maximum and flat index over windows: positions[axis][k, ..., o] is that of the k-th element of window o.

    The positions of an axis are the same for all planes, or have a plane's dimensions before the last one.
    """
    rank, index, pitch, shape = len(positions), None, 1, x.shape
    for i in reversed(range(rank)):
        axis = x.ndim - rank + i

        def read(k: Any, v: Any = x, index: Any = index, axis: int = axis, i: int = i, pitch: int = pitch) -> Any:
            at = positions[i][k]
            *lead, n = at.shape
            at = at.reshape(*lead, *(1,) * (axis - len(lead)), n, *(1,) * (v.ndim - 1 - axis))

            def take(v: Any) -> Any:
                return (
                    jnp.take_along_axis(v, at, axis, mode="clip")
                    if lead
                    else jnp.take(v, at.reshape(n), axis, mode="clip")
                )

            inner = 0 if index is None else index if index.shape[axis] == 1 else take(index)
            return take(v), at * pitch + inner, False

        # What is the same along an axis stays one element there: the CPU plugin reads wrong elements of a constant that
        # is broadcast and then gathered.
        count = len(positions[i])
        x, index = read(0)[:2] if count == 1 else _first_largest(read, count)
        pitch *= shape[axis]
    return x, jnp.broadcast_to(index, x.shape).astype(jnp.int64)


@_ranks("aten::adaptive_max_pool{}d")
def adaptive_max_pool(rank: int, x: Any, output_size: list[int]) -> tuple[Any, Any]:
    sizes = x.shape[-rank:]
    if all(n and size % n == 0 for size, n in zip(sizes, output_size, strict=True)):
        kernel = [size // n for size, n in zip(sizes, output_size, strict=True)]
        return max_pool(rank, x, kernel, kernel, [0], [1], False)
    positions = [jnp.asarray(_adaptive_windows(s, n)[0]) for s, n in zip(sizes, output_size, strict=True)]
    return _max_gathered(x, positions)


@_ranks("aten::adaptive_max_pool{}d_backward")
def adaptive_max_pool_backward(rank: int, grad: Any, x: Any, indices: Any) -> Any:
    return _put(grad, indices, x.shape[-rank:], add=True)


# Fractional: window starts drawn from random samples, one sequence a plane and axis.


@_ranks("aten::fractional_max_pool{}d")
def fractional_max_pool(rank: int, x: Any, kernel: list[int], output_size: list[int], samples: Any) -> tuple[Any, Any]:
    lead = x.shape[: x.ndim - rank]
    samples = samples.reshape(-1, rank)[: math.prod(lead)].reshape(*lead, rank)  # there may be more than planes
    positions = []
    for i, (k, n) in enumerate(zip(_full(kernel, rank), _full(output_size, rank), strict=True)):
        size = x.shape[x.ndim - rank + i]
        start = jnp.full((*lead, n), size - k, jnp.int32)
        if n > 1:
            alpha = np.asarray(size - k, samples.dtype) / np.asarray(n - 1, samples.dtype)
            # The samples of a plane are in the order of the axes in three dimensions, reversed in two.
            sample = samples[..., i if rank == 3 else 1 - i].reshape(*lead, 1)
            steps = jnp.arange(n - 1, dtype=samples.dtype)
            drawn = ((steps + sample) * alpha).astype(jnp.int32) - (sample * alpha).astype(jnp.int32)
            start = start.at[..., : n - 1].set(drawn)
        positions.append(start + jnp.arange(k, dtype=jnp.int32).reshape(-1, *(1,) * start.ndim))

    return _max_gathered(x, positions)


@_ranks("aten::fractional_max_pool{}d_backward")
def fractional_max_pool_backward(
    rank: int, grad: Any, x: Any, kernel: list[int], output_size: list[int], indices: Any
) -> Any:
    return _put(grad, indices, x.shape[-rank:], add=True)
