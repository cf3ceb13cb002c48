"""Jagged tensors (torch.nested with layout=torch.jagged): rows of different lengths laid end to end, and padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._jax import jnp
from .context import out
from .registry import lowers


@lowers("aten::_jagged_to_padded_dense_forward")
def jagged_to_padded_dense(values: Any, offsets: Sequence[Any], max_lengths: Sequence[int], padding: float) -> Any:
    """values: (total, ...), row b at offsets[b]:offsets[b + 1]; the result: (rows, max_length, ...)."""
    (offsets,), (length,) = offsets, max_lengths
    at = offsets[:-1, None] + jnp.arange(length)
    inside = (at < offsets[1:, None]).reshape(*at.shape, *[1] * (values.ndim - 1))
    padding = jnp.asarray(padding, values.dtype)
    if values.shape[0] == 0:
        return jnp.broadcast_to(padding, (*at.shape, *values.shape[1:]))
    return jnp.where(inside, jnp.take(values, at, axis=0, mode="clip"), padding)


@lowers("aten::_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(dense: Any, offsets: Sequence[Any], total: int | None) -> Any:
    """dense: (rows, max_length, ...); the result: (total, ...), what is beyond max_length being zero."""
    if total is None:
        raise NotImplementedError("_padded_dense_to_jagged_forward on device 'tpu' needs total_L, the number of rows")
    (offsets,) = offsets
    at = jnp.arange(total)
    row = jnp.clip(jnp.searchsorted(offsets, at, side="right") - 1, 0, dense.shape[0] - 1)
    column = at - offsets[row]
    inside = (column < dense.shape[1]).reshape(-1, *[1] * (dense.ndim - 2))
    taken = dense[row, jnp.clip(column, 0, dense.shape[1] - 1)]
    return jnp.where(inside, taken, jnp.zeros((), dense.dtype)).reshape(tuple(out().shape))
