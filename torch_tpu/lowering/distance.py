"""Distances between rows, in a p-norm: all pairs of two sets (cdist), of one (pdist), and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._jax import jnp, lax
from .context import out
from .registry import lowers

# Above this many rows, PyTorch takes Euclidean distances by a matrix product.
FEW_ROWS = 25


def _distances(a: Any, b: Any, p: float) -> Any:
    """[..., P, R] of a[..., P, M] and b[..., R, M]."""
    gap = abs(a[..., :, None, :] - b[..., None, :, :])
    if gap.shape[-1] == 0:
        return jnp.zeros(gap.shape[:-1], gap.dtype)
    if p == 0:
        return (gap != 0).sum(-1).astype(gap.dtype)
    if p == 1:
        return gap.sum(-1)
    if p == 2:
        return jnp.sqrt(jnp.square(gap).sum(-1))
    return gap.max(-1) if math.isinf(p) else (gap**p).sum(-1) ** (1 / p)


def _euclidean(a: Any, b: Any) -> Any:
    """Euclidean distances by one product of matrices."""
    dims = (((a.ndim - 1,), (b.ndim - 1,)), (tuple(range(a.ndim - 2)),) * 2)
    mixed = lax.dot_general(a, b, dims, precision=lax.Precision.HIGHEST)
    squares = jnp.square(a).sum(-1)[..., :, None] + jnp.square(b).sum(-1)[..., None, :]
    return jnp.sqrt(jnp.maximum(squares - 2 * mixed, 1e-30))


def _slopes(a: Any, b: Any, p: float, distance: Any) -> Any:
    """[..., P, R, M], the derivative of each distance to its row of a; 0 where the distance is."""
    gap = a[..., :, None, :] - b[..., None, :, :]
    distance = distance[..., None]
    if p == 0:
        return jnp.zeros_like(gap)
    if p == 1:
        return jnp.sign(gap)
    if math.isinf(p):
        return jnp.where(abs(gap) == distance, jnp.sign(gap), 0)
    safe = jnp.where(distance == 0, 1, distance)
    size = abs(gap)
    power = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1))
    return jnp.where(distance == 0, 0, jnp.sign(gap) * power / safe ** (p - 1))


def _batched(a: Any, b: Any) -> tuple[Any, Any]:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])


@lowers("aten::_cdist_forward")
def cdist(a: Any, b: Any, p: float, compute_mode: int | None) -> Any:
    a, b = _batched(a, b)
    many = max(a.shape[-2], b.shape[-2]) > FEW_ROWS
    if p == 2 and a.shape[-1] and (compute_mode == 1 or (not compute_mode and many)):
        return _euclidean(a, b)
    return _distances(a, b, p)


@lowers("aten::_cdist_backward")
def cdist_backward(grad: Any, a: Any, b: Any, p: float, distance: Any) -> Any:
    shape = tuple(out().shape)
    if math.prod(shape) == 0 or distance.size == 0:
        return jnp.zeros(shape, a.dtype)
    return (_slopes(*_batched(a, b), p, distance) * grad[..., None]).sum(-2).reshape(shape)


def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    row, col = np.triu_indices(n, 1)
    return row.astype(np.int32), col.astype(np.int32)


@lowers("aten::_pdist_forward")
def pdist(x: Any, p: float) -> Any:
    return _distances(x, x, p)[_pairs(x.shape[0])]


@lowers("aten::_pdist_backward")
def pdist_backward(grad: Any, x: Any, p: float, distance: Any) -> Any:
    pairs = _pairs(x.shape[0])
    grad, distance = (jnp.zeros((x.shape[0],) * 2, v.dtype).at[pairs].set(v) for v in (grad, distance))
    grad, distance = (v + v.T for v in (grad, distance))
    return (_slopes(x, x, p, distance) * grad[..., None]).sum(-2)
