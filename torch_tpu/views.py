"""Views inside programs: reading an operand out of its storage's buffer and writing it back.

The C++ core decides how a tensor lies in its buffer (csrc/views.h); here that recipe becomes array operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .lowering import dtypes
from .lowering._jax import jnp, lax

EMPTY, WHOLE, SLICE, GATHER = range(4)


@dataclass(frozen=True)
class Storage:
    """A storage among a call's operands: its buffer's dims and dtype.

    written: False before the first write; it reads as zeros then.
    nbytes: of a storage that was never written, which has no buffer to tell; 0 of others.
    """

    dims: tuple[int, ...]
    dtype: torch.dtype
    written: bool
    nbytes: int


@dataclass(frozen=True)
class TensorOperand:
    """A tensor among a call's operands: where it lies in its storage. What `repr` shows decides the program."""

    index: int
    storage: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = field(repr=False)
    kind: int
    radix: tuple[int, ...]
    extent: tuple[int, ...]
    step: tuple[int, ...]
    axis: tuple[int, ...]
    starts: int
    row_dim: int
    conj: bool
    neg: bool

    def sizes_in(self, storage: Storage) -> tuple[int, ...]:
        """The sizes inside the program: all rows of the buffer along `row_dim`, -1 for operands of their true size."""
        return tuple(storage.dims[0] if i == self.row_dim else n for i, n in enumerate(self.sizes))


@dataclass(frozen=True)
class ScalarOperand:
    """A number among a call's operands; only its kind decides the program."""

    index: int
    value: Any = field(repr=False)
    dtype: torch.dtype
    is_number: bool


def storage_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The dimensions of a dense tensor in the order of its memory, outermost first."""
    return sorted(range(len(sizes)), key=lambda i: (-strides[i], i))


def read(buffer: Any, storage: Storage, operand: TensorOperand, starts: Any) -> Any:
    """The operand's array, of its logical shape. buffer: the storage's array, None before its first write.

    starts: int64[operand.starts], where slices begin.
    """
    sizes, dtype = operand.sizes_in(storage), dtypes.to_jax(operand.dtype)
    if operand.kind == EMPTY or buffer is None:
        return jnp.zeros(sizes, dtype)
    if operand.kind == WHOLE:
        order = storage_order(sizes, operand.strides)
        array = as_dtype(buffer, storage, operand.dtype).reshape([sizes[i] for i in order])
        value = lax.transpose(array, np.argsort(order)) if order != sorted(order) else array
    elif operand.kind == SLICE:
        value = _read_slice(as_dtype(buffer, storage, operand.dtype), sizes, operand, starts)
    else:
        flat = as_dtype(buffer, storage, operand.dtype).reshape(-1)
        value = flat[starts[0] + _flat_index(sizes, operand.strides)]
    if operand.conj:
        value = lax.conj(value)
    return lax.neg(value) if operand.neg else value


def write(buffer: Any, storage: Storage, operand: TensorOperand, starts: Any, value: Any) -> Any:
    """The storage's array after the operand took `value`, an array of its logical shape and dtype."""
    if operand.kind == EMPTY:
        return buffer
    if operand.neg:
        value = lax.neg(value)
    if operand.conj:
        value = lax.conj(value)
    sizes = operand.sizes_in(storage)
    if operand.kind == WHOLE:
        order = storage_order(sizes, operand.strides)
        whole = lax.transpose(value, order) if order != sorted(order) else value
        keeps_dims = storage.written and storage.dtype == operand.dtype
        return whole.reshape(storage.dims) if keeps_dims else whole
    if buffer is None:
        total = storage.nbytes // operand.dtype.itemsize
        array = jnp.zeros((total,), dtypes.to_jax(operand.dtype))
    else:
        array = as_dtype(buffer, storage, operand.dtype)
    if operand.kind == SLICE:
        new = _write_slice(array, sizes, operand, starts, value)
    else:
        flat = array.reshape(-1)
        new = flat.at[starts[0] + _flat_index(sizes, operand.strides)].set(value)
    if buffer is None:
        return new
    return as_dtype(new.reshape(array.shape), Storage(array.shape, operand.dtype, True, 0), storage.dtype).reshape(
        storage.dims
    )


def as_dtype(array: Any, storage: Storage, dtype: torch.dtype) -> Any:
    """The storage's elements read as another dtype of the same memory; the array itself if it is of that dtype."""
    if storage.dtype == dtype:
        return array
    flat = _to_bits(array.reshape(-1), storage.dtype)
    return _from_bits(flat, dtype)


def _to_bits(flat: Any, dtype: torch.dtype) -> Any:
    """Unsigned integers of the element's width (for complex: of its parts')."""
    if dtype == torch.bool:
        return flat.astype(jnp.uint8)
    if dtype.is_complex:
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
    return lax.bitcast_convert_type(flat, f"uint{flat.dtype.itemsize * 8}")


def _from_bits(bits: Any, dtype: torch.dtype) -> Any:
    part = dtypes.to_jax(dtypes.real(dtype))
    have, want = bits.dtype.itemsize, part.itemsize
    if want > have:
        ratio = want // have
        bits = bits[: bits.shape[0] // ratio * ratio].reshape(-1, ratio)
    if dtype == torch.bool:
        return lax.bitcast_convert_type(bits, jnp.uint8).reshape(-1) != 0
    parts = lax.bitcast_convert_type(bits, part).reshape(-1)
    if not dtype.is_complex:
        return parts
    pairs = parts[: parts.shape[0] // 2 * 2].reshape(-1, 2)
    return lax.complex(pairs[:, 0], pairs[:, 1])


def _arranged(array: Any, operand: TensorOperand) -> Any:
    """The elements, padded up to a multiple, in the shape the recipe slices."""
    total, numel = math.prod(operand.radix), array.size
    if total != numel:
        flat = array.reshape(-1)
        array = lax.pad(flat, jnp.zeros((), flat.dtype), [(0, total - numel, 0)])
    return array.reshape(operand.radix)


def _moving_axes(operand: TensorOperand) -> list[int]:
    return [a for a in operand.axis if a >= 0]


def _read_slice(array: Any, sizes: tuple[int, ...], operand: TensorOperand, starts: Any) -> Any:
    arranged = _arranged(array, operand)
    cut = lax.dynamic_slice(arranged, _starts(operand, starts), operand.extent)
    if any(s > 1 for s in operand.step):
        cut = lax.slice(cut, [0] * cut.ndim, cut.shape, operand.step)
    axes = _moving_axes(operand)
    cut = cut.reshape([sizes[a] for a in axes])
    ordered = sorted(axes)
    if axes != ordered:
        cut = lax.transpose(cut, [axes.index(a) for a in ordered])
    return lax.broadcast_in_dim(cut, sizes, ordered)


def _write_slice(array: Any, sizes: tuple[int, ...], operand: TensorOperand, starts: Any, value: Any) -> Any:
    axes = _moving_axes(operand)
    # A dimension of stride 0 (expanded) takes one of its values: the last write, as on any device, is undefined.
    picked = value[tuple(slice(None) if a in axes else 0 for a in range(len(sizes)))]
    ordered = sorted(axes)
    if axes != ordered:
        picked = lax.transpose(picked, [ordered.index(a) for a in axes])
    stepped = [(e - 1) // s + 1 for e, s in zip(operand.extent, operand.step, strict=True)]
    picked = picked.reshape(stepped)
    arranged, begin = _arranged(array, operand), _starts(operand, starts)
    if any(s > 1 for s in operand.step):
        between = [(0, 0, s - 1) for s in operand.step]
        spread = lax.pad(picked, jnp.zeros((), picked.dtype), between)
        mask = lax.pad(jnp.ones(stepped, bool), jnp.zeros((), bool), between)
        picked = lax.select(mask, spread, lax.dynamic_slice(arranged, begin, operand.extent))
    new = lax.dynamic_update_slice(arranged, picked, begin)
    return new.reshape(-1)[: array.size].reshape(array.shape)


def _starts(operand: TensorOperand, starts: Any) -> list[Any]:
    """Where the slice begins, in 32 bits where the sizes allow it."""
    kind = jnp.int32 if max(operand.radix) < 2**31 else jnp.int64
    return [starts[i].astype(kind) for i in range(len(operand.radix))]


def _flat_index(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    index = jnp.zeros(sizes, jnp.int64)
    for axis, stride in enumerate(strides):
        index = index + lax.broadcasted_iota(jnp.int64, sizes, axis) * stride
    return index
