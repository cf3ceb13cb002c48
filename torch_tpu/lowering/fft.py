"""Discrete Fourier transforms over any dimensions: complex, from real, to real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._jax import jnp, lax
from .registry import lowers

# What the results are divided by: nothing, the square root of the number of elements, the number.
NONE, ROOT, COUNT = 0, 1, 2


def _scaled(x: Any, count: int, normalization: int) -> Any:
    factor = {NONE: 1.0, ROOT: math.sqrt(count), COUNT: float(count)}[normalization]
    return x if factor == 1 else x / jnp.asarray(factor, jnp.finfo(x.dtype).dtype)


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


def _factors(n: int) -> tuple[int, int]:
    """n as a product, the first factor at most its square root and as near to it as there is."""
    first = next(f for f in range(math.isqrt(n), 0, -1) if n % f == 0)
    return first, n // first


def _roots(rows: int, cols: int, n: int, sign: int) -> Any:
    """exp(sign * 2 pi i * row * col / n), the product reduced exactly before it is an angle."""
    kind = jnp.int32 if rows * cols < 2**31 else jnp.int64
    row, col = (lax.broadcasted_iota(kind, (rows, cols), d) for d in (0, 1))
    angle = ((row * col) % n).astype(jnp.float64) * (sign * 2 * math.pi / n)
    return lax.complex(jnp.cos(angle), jnp.sin(angle))


def _transform64(x: Any, sign: int) -> Any:
    """The transform of the last dimension in complex128, which the TPU has no FFT for: by products of matrices."""
    n = x.shape[-1]
    first, second = _factors(n)
    if first == 1:
        return jnp.matmul(x, _roots(n, n, n, sign), precision=lax.Precision.HIGHEST)
    # Element j1 * second + j2 of x goes to element k2 * first + k1.
    x = jnp.swapaxes(x.reshape(*x.shape[:-1], first, second), -1, -2)
    x = jnp.swapaxes(_transform64(x, sign) * _roots(second, first, n, sign), -1, -2)
    x = _transform64(x, sign)
    return jnp.swapaxes(x, -1, -2).reshape(*x.shape[:-2], n)


def _transform(x: Any, dims: Sequence[int], forward: bool) -> Any:
    """Unscaled transforms of complex x, one to three dimensions at a time."""
    if x.dtype == jnp.complex128:
        for d in dims:
            x = jnp.moveaxis(_transform64(jnp.moveaxis(x, d, -1), -1 if forward else 1), -1, d)
        return x
    for i in range(0, len(dims), 3):
        some = tuple(dims[i : i + 3])
        last = tuple(range(x.ndim - len(some), x.ndim))
        x = jnp.moveaxis(x, some, last)
        sizes = x.shape[x.ndim - len(some) :]
        x = lax.fft(x, "FFT" if forward else "IFFT", sizes)
        x = jnp.moveaxis(x if forward else x * math.prod(sizes), last, some)
    return x


def _positive(x: Any, dims: Sequence[int]) -> list[int]:
    return [d % x.ndim for d in dims]


@lowers("aten::_fft_c2c")
def fft_c2c(x: Any, dim: list[int], normalization: int, forward: bool) -> Any:
    if x.size == 0:
        return x
    dims = _positive(x, dim)
    return _scaled(_transform(x, dims, forward), _count(x.shape, dims), normalization)


@lowers("aten::_fft_r2c")
def fft_r2c(x: Any, dim: list[int], normalization: int, onesided: bool) -> Any:
    dims = _positive(x, dim)
    size = x.shape[dims[-1]]
    half = size // 2 + 1 if onesided else size
    count = _count(x.shape, dims)
    kind = jnp.complex128 if x.dtype == jnp.float64 else jnp.complex64
    if x.size == 0:
        return jnp.zeros([half if d == dims[-1] else n for d, n in enumerate(x.shape)], kind)
    if onesided and kind == jnp.complex64:
        x = jnp.moveaxis(lax.fft(jnp.moveaxis(x, dims[-1], -1), "RFFT", (size,)), -1, dims[-1])
        return _scaled(_transform(x, dims[:-1], True), count, normalization)
    x = lax.slice_in_dim(_transform(x.astype(kind), dims[-1:], True), 0, half, axis=dims[-1])
    return _scaled(_transform(x, dims[:-1], True), count, normalization)


@lowers("aten::_fft_c2r")
def fft_c2r(x: Any, dim: list[int], normalization: int, last_dim_size: int) -> Any:
    """The inverse of the one-sided transform; imaginary parts that a real signal can't have are not read."""
    dims = _positive(x, dim)
    last, size = dims[-1], last_dim_size
    count = _count(x.shape, dims[:-1]) * size
    real = jnp.finfo(x.dtype).dtype
    if x.size == 0:
        return jnp.zeros([size if d == last else n for d, n in enumerate(x.shape)], real)
    x = jnp.moveaxis(_transform(x, dims[:-1], False), last, -1)
    half = size // 2 + 1
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, max(half - x.shape[-1], 0))])[..., :half]
    if x.dtype == jnp.complex64:
        x = lax.fft(x, "IRFFT", (size,)) * size
    else:
        x = x.at[..., 0].set(x[..., 0].real)
        mirrored = jnp.flip(x[..., 1 : (size + 1) // 2].conj(), -1)
        x = _transform64(jnp.concatenate([x, mirrored], -1), 1).real
    return jnp.moveaxis(_scaled(x, count, normalization), -1, last)
