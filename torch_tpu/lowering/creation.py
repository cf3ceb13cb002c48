"""Tensors made of nothing or of one value, sequences, triangles, copies and conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import lowers


def _filled(value: Any) -> Any:
    """The promised output with `value` everywhere."""
    promised = out()
    return jnp.broadcast_to(dtypes.as_array(value, promised.dtype), tuple(promised.shape))


@lowers("aten::full_like", runtime=("fill_value",), rows="pointwise")
@lowers("aten::full", "aten::new_full", runtime=("fill_value",))
def full(like: Any, *args: Any, **kwargs: Any) -> Any:
    # new_full(x, size, value), full(size, value) and full_like(x, value) all end in the value.
    return _filled(args[-1])


@lowers("aten::fill.Scalar", "aten::fill.Tensor", runtime=("value",), rows="pointwise")
def fill(x: Any, value: Any) -> Any:
    return _filled(value)


@lowers("aten::scalar_tensor", runtime=("s",))
def scalar_tensor(s: Any, *, dtype: torch.dtype | None) -> Any:
    return _filled(s)


# Memory that is to be written later has to hold something inside a program.
@lowers("aten::zeros_like", "aten::zero", "aten::empty_like", rows="pointwise")
@lowers(
    "aten::zeros", "aten::new_zeros", "aten::_efficientzerotensor", "aten::empty.memory_format", "aten::empty_strided",
    "aten::empty_permuted", "aten::new_empty", "aten::new_empty_strided",
)  # fmt: skip
def zeros(like: Any, *args: Any, **kwargs: Any) -> Any:
    return _filled(0)


@lowers("aten::ones_like", rows="pointwise")
@lowers("aten::ones", "aten::new_ones")
def ones(like: Any, *args: Any, **kwargs: Any) -> Any:
    return _filled(1)


@lowers("aten::arange", "aten::arange.start", "aten::arange.start_step")
def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: torch.dtype | None) -> Any:
    if end is None:
        start = 0
    return _sequence(start, step)


@lowers("aten::range", "aten::range.step")
def range_(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None) -> Any:
    return _sequence(start, step)


def _sequence(start: Any, step: Any) -> Any:
    """start + i * step: in 64-bit integers exactly where both are integers, in the promised type otherwise."""
    promised = out()
    integral = not promised.dtype.is_floating_point or all(
        isinstance(v, int) and abs(v) + abs(step) * promised.numel() < 2**62 for v in (start, step)
    )
    compute = jnp.int64 if integral else dtypes.to_jax(dtypes.opmath(promised.dtype))
    count = lax.iota(compute, promised.numel())
    return dtypes.cast(count * np.asarray(step).astype(compute) + np.asarray(start).astype(compute), promised.dtype)


@lowers(
    "aten::linspace", "aten::linspace.Tensor_Tensor", "aten::linspace.Tensor_Scalar", "aten::linspace.Scalar_Tensor",
    runtime=("start", "end"),
)  # fmt: skip
def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None) -> Any:
    return dtypes.cast(even(start, end, steps), out().dtype)


@lowers(
    "aten::logspace", "aten::logspace.Tensor_Tensor", "aten::logspace.Tensor_Scalar", "aten::logspace.Scalar_Tensor",
    runtime=("start", "end"),
)  # fmt: skip
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: torch.dtype | None) -> Any:
    exponent = even(start, end, steps)
    return dtypes.cast(lax.pow(jnp.full_like(exponent, base), exponent), out().dtype)


def even(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None) -> Any:
    """`steps` values from start to end. Counted from the nearer end, so both ends are exact.

    dtype: of the result they are for, that of the op's if None.
    """
    promised = out().dtype if dtype is None else dtype
    inexact = promised.is_floating_point or promised.is_complex
    compute = dtypes.opmath(promised) if inexact else torch.float64
    start, end = dtypes.as_array(start, compute), dtypes.as_array(end, compute)
    if not inexact:
        start, end = jnp.trunc(start), jnp.trunc(end)
    step = (end - start) / np.asarray(max(steps - 1, 1), start.dtype)
    i = lax.iota(jnp.int32, steps)
    rising, falling = i.astype(step.dtype), (steps - 1 - i).astype(step.dtype)
    return jnp.where(i < (steps + 1) // 2, start + step * rising, end - step * falling)


@lowers("aten::eye", "aten::eye.m")
def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None) -> Any:
    return dtypes.cast(_diagonal_offset((n, n if m is None else m)) == 0, out().dtype)


@lowers("aten::tril")
def tril(x: Any, diagonal: int) -> Any:
    return jnp.where(_diagonal_offset(x.shape) <= diagonal, x, jnp.zeros((), x.dtype))


@lowers("aten::triu")
def triu(x: Any, diagonal: int) -> Any:
    return jnp.where(_diagonal_offset(x.shape) >= diagonal, x, jnp.zeros((), x.dtype))


def _diagonal_offset(shape: tuple[int, ...]) -> Any:
    """Column minus row of the last two dimensions."""
    return lax.broadcasted_iota(jnp.int32, shape[-2:], 1) - lax.broadcasted_iota(jnp.int32, shape[-2:], 0)


@lowers("aten::tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, **kwargs: Any) -> Any:
    rows = np.arange(row)
    return _row_spans(np.zeros_like(rows), np.clip(rows + offset + 1, 0, col))


@lowers("aten::triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, **kwargs: Any) -> Any:
    first = np.clip(np.arange(row) + offset, 0, col)
    return _row_spans(first, col - first)


def _row_spans(first: np.ndarray, length: np.ndarray) -> Any:
    """(row, column) of the entries, where row r holds columns first[r] to first[r] + length[r]."""
    begin = np.cumsum(length) - length
    entry = lax.iota(jnp.int32, out().shape[1])
    row = jnp.searchsorted(jnp.asarray(begin + length, jnp.int32), entry, side="right")
    return dtypes.cast(jnp.stack([row, entry + jnp.asarray(first - begin, jnp.int32)[row]]), out().dtype)


@lowers("aten::_to_copy", "prims::convert_element_type", rows="pointwise")
def to_copy(x: Any, *args: Any, **kwargs: Any) -> Any:
    return dtypes.cast(x, out().dtype)


@lowers("aten::copy", rows="pointwise")
def copy(x: Any, source: Any) -> Any:
    return jnp.broadcast_to(dtypes.cast(source, out().dtype), x.shape)


@lowers("aten::clone", rows="pointwise")
def clone(x: Any) -> Any:
    return x


@lowers("aten::bartlett_window", "aten::bartlett_window.periodic")
def bartlett_window(length: int, periodic: bool = True, **kwargs: Any) -> Any:
    return _window(length, periodic, lambda t: 1 - jnp.abs(2 * t - 1))


@lowers("aten::hann_window", "aten::hann_window.periodic")
def hann_window(length: int, periodic: bool = True, **kwargs: Any) -> Any:
    return hamming_window(length, periodic, 0.5, 0.5)


@lowers(
    "aten::hamming_window", "aten::hamming_window.periodic", "aten::hamming_window.periodic_alpha",
    "aten::hamming_window.periodic_alpha_beta",
)  # fmt: skip
def hamming_window(length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **kwargs: Any) -> Any:
    return _window(length, periodic, lambda t: alpha - beta * jnp.cos(2 * math.pi * t))


@lowers("aten::blackman_window", "aten::blackman_window.periodic")
def blackman_window(length: int, periodic: bool = True, **kwargs: Any) -> Any:
    return _window(length, periodic, lambda t: 0.42 - 0.5 * jnp.cos(2 * math.pi * t) + 0.08 * jnp.cos(4 * math.pi * t))


@lowers("aten::kaiser_window", "aten::kaiser_window.periodic", "aten::kaiser_window.beta")
def kaiser_window(length: int, periodic: bool = True, beta: float = 12.0, **kwargs: Any) -> Any:
    shape = lambda t: jnp.i0(beta * jnp.sqrt(jnp.maximum(1 - (2 * t - 1) ** 2, 0))) / jnp.i0(beta * jnp.ones(()))  # noqa: E731
    return _window(length, periodic, shape)


def _window(length: int, periodic: bool, shape: Any) -> Any:
    """shape(t) at `length` points of [0, 1], without the last one where periodic."""
    compute = dtypes.to_jax(dtypes.opmath(out().dtype))
    intervals = length if periodic else length - 1
    value = shape(lax.iota(compute, length) / max(intervals, 1)) if length > 1 else jnp.ones(length, compute)
    return value.astype(dtypes.to_jax(out().dtype))
