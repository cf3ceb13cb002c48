"""Sampling of images at the points of a grid, and its gradients."""

from __future__ import annotations

import math
from typing import Any

from . import dtypes
from ._jax import jax, jnp, lax
from .registry import lowers

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _unnormalise(coordinate: Any, size: int, align: bool) -> Any:
    """[-1, 1] as positions of elements."""
    return (coordinate + 1) / 2 * (size - 1) if align else ((coordinate + 1) * size - 1) / 2


def _reflect(position: Any, size: int, align: bool) -> Any:
    low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(position)
    distance = abs(position - low)
    turns = lax.stop_gradient(jnp.floor(distance / span))
    rest = distance - turns * span
    return low + jnp.where(turns % 2 == 0, rest, span - rest)


def _pad(position: Any, size: int, padding: int, align: bool) -> Any:
    """Positions outside the image brought inside as the padding mode says."""
    if padding == REFLECTION:
        position = _reflect(position, size, align)
    if padding == ZEROS:
        return position
    position = jnp.where(jnp.isnan(position), 0, position)
    # clamp has no gradient at its bounds, as PyTorch; minimum and maximum have half of it.
    return lax.clamp(jnp.asarray(0, position.dtype), position, jnp.asarray(size - 1, position.dtype))


def _read(x: Any, positions: list[Any]) -> Any:
    """x[n, :, positions[n, ...]] as [N, C, ...]; 0 where a position (an integral float, broadcast) is outside."""
    n, channels, *sizes = x.shape
    flat, inside = 0, True
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position < size)
        flat = flat * size + jnp.clip(position, 0, size - 1).astype(jnp.int32)
    rows = x.reshape(n, channels, math.prod(sizes))
    values = jax.vmap(lambda row, at: row[:, at.reshape(at.size)])(rows, flat)
    return jnp.where(inside[:, None], values.reshape(n, channels, *flat.shape[1:]), 0)


def _cubic_weights(t: Any) -> list[Any]:
    """Weights of the elements at -1, 0, 1, 2 from a fraction t past 0."""
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((x - 5) * x + 8) * a * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(point: Any, size: int, mode: int, padding: int, align: bool) -> tuple[Any, Any]:
    """Positions and weights [N, taps, points] of the elements of one axis that a point mixes."""
    if mode != BICUBIC:
        point = _pad(point, size, padding, align)
    if mode == NEAREST:
        return jnp.round(point)[:, None], jnp.ones_like(point)[:, None]
    corner = lax.stop_gradient(jnp.floor(point))
    t = point - corner
    weights = [1 - t, t] if mode == BILINEAR else _cubic_weights(t)
    first = 0 if mode == BILINEAR else -1
    at = jnp.stack([corner + (first + k) for k in range(len(weights))], 1)
    if mode == BICUBIC:
        at = jnp.round(_pad(at, size, padding, align))
    return at, jnp.stack(weights, 1)


def _sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    sizes = x.shape[2:]
    rank = len(sizes)
    if math.prod(x.shape) == 0 or math.prod(grid.shape) == 0:
        return jnp.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    # Points in one dimension: XLA's CPU backend of jaxlib 0.10 crashes on sums over 8.
    points = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), rank)
    positions, weight = [], 1
    for i, size in enumerate(sizes):
        # The grid names the last axis first.
        point = _unnormalise(points[..., rank - 1 - i], size, align)
        at, w = (
            v.reshape(v.shape[0], *(1,) * i, v.shape[1], *(1,) * (rank - 1 - i), v.shape[2])
            for v in _taps(point, size, mode, padding, align)
        )
        positions.append(at)
        weight = weight * w
    value = (_read(x, positions) * weight[:, None]).sum(range(2, 2 + rank))
    return value.reshape(*x.shape[:2], *grid.shape[1:-1])


def _wide(*xs: Any) -> Any:
    return [x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))) for x in xs]


@lowers("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::_grid_sampler_2d_cpu_fallback")
def grid_sampler(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    return _sample(*_wide(x, grid), mode, padding, align).astype(x.dtype)


@lowers("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    grad: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, output_mask: list[bool]
) -> tuple[Any, Any]:
    wide, points = _wide(x, grid)
    (grad,) = _wide(grad)
    grad_x = None
    if output_mask[0]:
        (grad_x,) = jax.linear_transpose(lambda v: _sample(v, points, mode, padding, align), wide)(grad)
        grad_x = grad_x.astype(x.dtype)
    (grad_grid,) = jax.vjp(lambda v: _sample(wide, v, mode, padding, align), points)[1](grad)
    return grad_x, grad_grid.astype(grid.dtype)
