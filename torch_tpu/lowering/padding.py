"""Padding: constant, reflection and replication, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from ._jax import jax, jnp, lax
from .context import out
from .registry import lowers

REFLECTION = tuple(f"aten::reflection_pad{n}d" for n in (1, 2, 3))
REPLICATION = tuple(f"aten::replication_pad{n}d" for n in (1, 2, 3))


@lowers("aten::constant_pad_nd", runtime=("value",))
def constant_pad(x: Any, pad: list[int], value: Any) -> Any:
    dtype = dtypes.to_jax(out().dtype)
    untouched = [(0, 0, 0)] * (x.ndim - len(pad) // 2)
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    # A scalar of another kind (True for a float tensor, 2.5 for an integer one) is cast, as fill_ casts it.
    return lax.pad(x, jnp.asarray(value).astype(dtype), untouched + pairs[::-1])


def _extend(x: Any, pad: list[int], source: Any) -> Any:
    """Each padded dimension of x read at `source(positions, size)`, the last dimension first in `pad`."""
    for i in range(len(pad) // 2):
        axis, size = x.ndim - 1 - i, x.shape[x.ndim - 1 - i]
        positions = np.arange(-pad[2 * i], size + pad[2 * i + 1])
        x = jnp.take(x, jnp.asarray(source(positions, size), jnp.int32), axis, mode="clip")
    return x


def _mirror(positions: np.ndarray, size: int) -> np.ndarray:
    last = size - 1
    return last - abs(last - abs(positions))


def _nearest(positions: np.ndarray, size: int) -> np.ndarray:
    return positions.clip(0, size - 1)


def _gradient(grad: Any, x: Any, pad: list[int], source: Any) -> Any:
    wide = jax.ShapeDtypeStruct(x.shape, dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype))))
    (value,) = jax.linear_transpose(lambda v: _extend(v, pad, source), wide)(grad.astype(wide.dtype))
    return value.astype(x.dtype)


@lowers(*REFLECTION)
def reflection_pad(x: Any, pad: list[int]) -> Any:
    return _extend(x, pad, _mirror)


@lowers(*(f"{name}_backward" for name in REFLECTION))
def reflection_pad_backward(grad: Any, x: Any, pad: list[int]) -> Any:
    return _gradient(grad, x, pad, _mirror)


@lowers(*REPLICATION)
def replication_pad(x: Any, pad: list[int]) -> Any:
    return _extend(x, pad, _nearest)


@lowers(*(f"{name}_backward" for name in REPLICATION))
def replication_pad_backward(grad: Any, x: Any, pad: list[int]) -> Any:
    return _gradient(grad, x, pad, _nearest)
