"""Resizing of images: nearest, linear, cubic and antialiased interpolation, and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dtypes
from ._jax import jax, jnp, lax
from .registry import lowers

# Above this many elements, the matrix that resizes an axis gives way to a gather.
DENSE_ELEMENTS = 1 << 22

# The source positions [out, taps] and weights [out, taps] of one axis, from (size, size of the result, align_corners,
# the scale the user gave or None).
Taps = Callable[[int, int, bool, float | None], tuple[np.ndarray, np.ndarray]]


def _step(size: int, n: int, align: bool, scale: float | None) -> float:
    """The distance in the source between neighbours of the result."""
    if align:
        return (size - 1) / (n - 1) if n > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / n


def _nearest(offset: float, size: int, n: int, align: bool, scale: float | None) -> np.ndarray:
    # In float32 as PyTorch does: the floor depends on it.
    step = np.float32(1.0 / scale if scale is not None and scale > 0 else np.float32(size) / np.float32(n))
    at = np.arange(n, dtype=np.float32)
    if offset == 0 and n in (size, 2 * size):
        step = np.float32(size / n)
    return np.floor((at + np.float32(offset)) * step).astype(np.int32).clip(0, max(size - 1, 0))


def _linear_taps(size: int, n: int, align: bool, scale: float | None) -> tuple[np.ndarray, np.ndarray]:
    step, at = _step(size, n, align, scale), np.arange(n)
    source = step * at if align else np.maximum(step * (at + 0.5) - 0.5, 0)
    first = np.minimum(np.floor(source).astype(np.int32), size - 1)
    fraction = np.clip(source - first, 0, 1)
    return np.stack([first, np.minimum(first + 1, size - 1)], 1), np.stack([1 - fraction, fraction], 1)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    x = abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * a * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _cubic_taps(size: int, n: int, align: bool, scale: float | None) -> tuple[np.ndarray, np.ndarray]:
    step, at = _step(size, n, align, scale), np.arange(n)
    source = step * at if align else step * (at + 0.5) - 0.5
    positions = np.floor(source)[:, None] + np.arange(-1, 3)
    return positions.astype(np.int32).clip(0, size - 1), _cubic(source[:, None] - positions, -0.75)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - abs(x), 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialias_taps(
    kernel: Callable[[np.ndarray], np.ndarray], reach: int, size: int, n: int, align: bool, scale: float | None
) -> tuple[np.ndarray, np.ndarray]:
    step = _step(size, n, align, scale)
    stretch = max(step, 1.0)
    centre = step * (np.arange(n) + 0.5)
    first = (centre - reach * stretch + 0.5).astype(np.int64).clip(min=0)
    last = (centre + reach * stretch + 0.5).astype(np.int64).clip(max=size)
    positions = first[:, None] + np.arange(max(int((last - first).max(initial=1)), 1))
    weights = np.where(positions < last[:, None], kernel((positions - centre[:, None] + 0.5) / stretch), 0)
    total = weights.sum(1, keepdims=True)
    return positions.clip(0, size - 1).astype(np.int32), weights / np.where(total == 0, 1, total)


_triangle_taps = functools.partial(_antialias_taps, _triangle, 1)
_smooth_cubic_taps = functools.partial(_antialias_taps, functools.partial(_cubic, a=-0.5), 2)
_lanczos_taps = functools.partial(_antialias_taps, _lanczos, 3)


def _combine(x: Any, axis: int, positions: np.ndarray, weights: np.ndarray) -> Any:
    """Element o of the result along `axis` is the sum over t of weights[o, t] * x[positions[o, t]]."""
    size, (n, taps) = x.shape[axis], positions.shape
    weights = jnp.asarray(weights.astype(x.dtype))
    if size * n <= DENSE_ELEMENTS:
        # A product with a matrix is what the TPU is made for, the gradient's too.
        source = lax.broadcasted_iota(jnp.int32, (n, taps, size), 2)
        matrix = jnp.where(source == jnp.asarray(positions)[..., None], weights[..., None], 0).sum(1)
        value = lax.dot_general(x, matrix, (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(value, -1, axis)
    value = jnp.take(x, jnp.asarray(positions.reshape(-1)), axis, mode="clip")
    value = value.reshape(*x.shape[:axis], n, taps, *x.shape[axis + 1 :])
    return (value * weights.reshape(n, taps, *(1,) * (x.ndim - 1 - axis))).sum(axis + 1)


def _combine_bytes(x: Any, axis: int, positions: np.ndarray, weights: np.ndarray) -> Any:
    """`_combine` of uint8 in fixed point: 16-bit weights, the result rounded and saturated."""
    bits = next(b for b in range(22) if b == 21 or 0.5 + weights.max() * (2 << b) >= 1 << 15)
    fixed = np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5)).astype(np.int32)
    total = _combine(x.astype(jnp.int32), axis, positions, fixed)
    return jnp.clip((total + (1 << bits >> 1)) >> bits, 0, 255).astype(x.dtype)


def _resize(taps: Taps, x: Any, sizes: Sequence[int], align: bool, scales: Sequence[float | None]) -> Any:
    combine = _combine_bytes if x.dtype.kind == "u" else _combine
    # The last axis first, on which the rounding of bytes depends.
    for axis in reversed(range(2, x.ndim)):
        n, scale = sizes[axis - 2], scales[axis - 2]
        scaled = taps is not _linear_taps and scale is not None and not align
        if n != x.shape[axis] or taps not in (_linear_taps, _cubic_taps) or scaled:
            x = combine(x, axis, *taps(x.shape[axis], n, align, scale))
    return x


def _pick(offset: float, x: Any, sizes: Sequence[int], scales: Sequence[float | None]) -> Any:
    for axis, n, scale in zip(range(2, x.ndim), sizes, scales, strict=True):
        size = x.shape[axis]
        positions = _nearest(offset, size, n, False, scale)
        if size and n % size == 0 and (positions == np.arange(n) // (n // size)).all():
            x = jnp.repeat(x, n // size, axis, total_repeat_length=n) if n != size else x
        else:
            x = jnp.take(x, jnp.asarray(positions), axis, mode="clip")
    return x


def _wide(dtype: Any) -> Any:
    return dtypes.to_jax(dtypes.opmath(dtypes.to_torch(dtype)))


def _forward(resize: Callable[..., Any], x: Any, sizes: Sequence[int], *how: Any) -> Any:
    return resize(x.astype(_wide(x.dtype)), sizes, *how).astype(x.dtype)


def _backward(resize: Callable[..., Any], grad: Any, sizes: Sequence[int], shape: Sequence[int], *how: Any) -> Any:
    wide = _wide(grad.dtype)
    forward = jax.linear_transpose(lambda v: resize(v, sizes, *how), jax.ShapeDtypeStruct(tuple(shape), wide))
    return forward(grad.astype(wide))[0].astype(grad.dtype)


def _declare_weighted(name: str, taps: Taps) -> None:
    """The op and its gradient: (x, output size[, input size], align_corners, a scale for each axis)."""

    def resize(x: Any, sizes: Sequence[int], align: bool, *scales: float | None) -> Any:
        return _resize(taps, x, sizes, align, scales)

    lowers(f"aten::{name}")(functools.partial(_forward, resize))
    lowers(f"aten::{name}_backward")(functools.partial(_backward, resize))


def _declare_nearest(name: str, offset: float) -> None:
    """The op and its gradient: (x, output size[, input size], a scale for each axis)."""

    def resize(x: Any, sizes: Sequence[int], *scales: float | None) -> Any:
        return _pick(offset, x, sizes, scales)

    lowers(f"aten::{name}")(lambda x, sizes, *scales: resize(x, sizes, *scales))
    lowers(f"aten::{name}_backward")(functools.partial(_backward, resize))


for _name, _taps in {
    "upsample_linear1d": _linear_taps,
    "upsample_bilinear2d": _linear_taps,
    "upsample_trilinear3d": _linear_taps,
    "upsample_bicubic2d": _cubic_taps,
    "_upsample_bilinear2d_aa": _triangle_taps,
    "_upsample_bicubic2d_aa": _smooth_cubic_taps,
    "_upsample_lanczos2d_aa": _lanczos_taps,
}.items():
    _declare_weighted(_name, _taps)

for _rank in (1, 2, 3):
    _declare_nearest(f"upsample_nearest{_rank}d", 0.0)
    _declare_nearest(f"_upsample_nearest_exact{_rank}d", 0.5)
