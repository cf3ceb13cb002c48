"""Fake quantization, as quantization-aware training does it: values rounded to the steps of an integer type."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from ._jax import jnp
from .registry import lowers

# Scales below are raised to it.
SMALLEST_SCALE = float(np.float32(6.1e-5))


def _wide(x: Any) -> Any:
    return x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype))))


def _steps(x: Any, scale: Any, zero_point: Any) -> tuple[Any, Any]:
    """(x in steps of the scale from the zero point, rounded; the scale, a float32 as PyTorch has it)."""
    scale = jnp.asarray(scale, jnp.float32)
    x = _wide(x) * (1 / scale)
    if jnp.issubdtype(zero_point.dtype, jnp.floating):
        return jnp.round(x + zero_point), scale
    return jnp.round(x) + zero_point.astype(x.dtype), scale


def _quantized(x: Any, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Any, Any]:
    """(x rounded and clipped to the steps `low` to `high`, where it was within them)."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"fake quantization is not implemented for {x.dtype}")
    zero_point = jnp.asarray(zero_point)
    steps, scale = _steps(x, scale, zero_point)
    clipped = jnp.where(jnp.isnan(steps), low, jnp.clip(steps, low, high))
    value = (clipped - zero_point.astype(clipped.dtype)) * scale
    return value.astype(x.dtype), (steps >= low) & (steps <= high)


def _check(low: int, high: int) -> None:
    if low > high:
        raise ValueError("`quant_min` should be less than or equal to `quant_max`.")


def _along(v: Any, axis: int, x: Any) -> Any:
    """[channels] as a factor of x."""
    if v.ndim != 1 or v.shape[0] != x.shape[axis]:
        raise ValueError("dimensions of scale and zero-point are not consistent with input tensor")
    return v.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


@lowers("aten::fake_quantize_per_tensor_affine_cachemask")
def per_tensor(x: Any, scale: float, zero_point: int, low: int, high: int) -> tuple[Any, Any]:
    _check(low, high)
    if not low <= zero_point <= high:
        raise ValueError("`zero_point` must be between `quant_min` and `quant_max`.")
    return _quantized(x, scale, zero_point, low, high)


@lowers("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_of_tensors(x: Any, scale: Any, zero_point: Any, enabled: Any, low: int, high: int) -> tuple[Any, Any]:
    _check(low, high)
    value, within = _quantized(x, scale.reshape(()), zero_point.reshape(()), low, high)
    on = enabled.reshape(-1)[0] != 0
    return jnp.where(on, value, x), within | ~on


@lowers("aten::fake_quantize_per_channel_affine_cachemask")
def per_channel(x: Any, scale: Any, zero_point: Any, axis: int, low: int, high: int) -> tuple[Any, Any]:
    _check(low, high)
    return _quantized(x, _along(scale, axis, x), _along(zero_point, axis, x), low, high)


# Learnable: scales and zero points have gradients, zero points are floats that are rounded.


@lowers("aten::_fake_quantize_learnable_per_tensor_affine")
def learnable_per_tensor(x: Any, scale: Any, zero_point: Any, low: int, high: int, grad_factor: float) -> Any:
    _check(low, high)
    zero_point = jnp.clip(jnp.round(zero_point.reshape(-1)[0]), low, high).astype(jnp.int32)
    return _quantized(x, scale.reshape(-1)[0], zero_point, low, high)[0]


@lowers("aten::_fake_quantize_learnable_per_channel_affine")
def learnable_per_channel(
    x: Any, scale: Any, zero_point: Any, axis: int, low: int, high: int, grad_factor: float
) -> Any:
    zero_point = jnp.clip(jnp.round(zero_point), low, high).astype(jnp.int32)
    return per_channel(x, scale, zero_point, axis, low, high)[0]


def _learnable_gradients(
    grad: Any, x: Any, scale: Any, zero_point: Any, low: int, high: int, factor: float
) -> tuple[Any, Any, Any]:
    """Gradients to x and, by element, to the scale and the zero point."""
    steps, scale = _steps(x, scale, zero_point)
    within = (steps >= low) & (steps <= high)
    zero, wide = zero_point.astype(steps.dtype), _wide(grad)
    rounded = (steps - zero) * scale
    clipped = jnp.where(steps < low, low - zero, high - zero)
    to_scale = wide * jnp.where(within, (rounded - _wide(x)) / scale, clipped) * factor
    to_zero = jnp.where(within, 0, -wide * scale * factor)
    return jnp.where(within, grad, jnp.zeros_like(grad)), to_scale, to_zero


@lowers("aten::_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_per_tensor_backward(
    grad: Any, x: Any, scale: Any, zero_point: Any, low: int, high: int, grad_factor: float
) -> tuple[Any, Any, Any]:
    # Here the zero point is cut off after adding a half, not rounded to even.
    zero = jnp.clip(zero_point.reshape(-1)[0] + 0.5, low, high).astype(jnp.int32)
    to_x, to_scale, to_zero = _learnable_gradients(grad, x, scale.reshape(-1)[0], zero, low, high, grad_factor)
    return (
        to_x,
        to_scale.sum().reshape(1).astype(scale.dtype),
        to_zero.sum().reshape(1).astype(zero_point.dtype),
    )


@lowers("aten::_fake_quantize_learnable_per_channel_affine_backward")
def learnable_per_channel_backward(
    grad: Any, x: Any, scale: Any, zero_point: Any, axis: int, low: int, high: int, grad_factor: float
) -> tuple[Any, Any, Any]:
    zero = jnp.clip(jnp.round(zero_point), low, high).astype(jnp.int32)
    to_x, to_scale, to_zero = _learnable_gradients(
        grad, x, _along(scale, axis, x), _along(zero, axis, x), low, high, grad_factor
    )
    others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    return to_x, to_scale.sum(others).astype(scale.dtype), to_zero.sum(others).astype(zero_point.dtype)


# Observed: scales and zero points follow moving averages of the extremes.


def _parameters(least: Any, most: Any, low: int, high: int, symmetric: bool) -> tuple[Any, Any]:
    """The scale and the zero point that map [least, most], and 0, to the steps `low` to `high`."""
    least, most = (v.astype(jnp.float64) for v in (jnp.minimum(least, 0), jnp.maximum(most, 0)))
    if symmetric:
        half = (high - low) // 2
        widest = jnp.maximum(abs(least / -(half + 1)), abs(most / half))
        least, most = (v.astype(jnp.float32).astype(jnp.float64) for v in (widest * -(half + 1), widest * half))
    scale = (most - least) / (high - low)
    single = scale.astype(jnp.float32)
    scale = jnp.where((single == 0) | jnp.isinf(1 / single), 0.1, scale)
    small, raise_by = scale < SMALLEST_SCALE, SMALLEST_SCALE / scale
    least, most = (jnp.where(small, v * raise_by, v) for v in (least, most))
    scale = jnp.where(small, SMALLEST_SCALE, scale)
    from_least, from_most = low - least / scale, high - most / scale
    nearer = abs(low) - abs(least / scale) < abs(high) - abs(most / scale)
    zero = jnp.where(nearer, from_least, from_most)
    if symmetric:
        zero = jnp.where((least < 0) & (most > 0), (low + high) / 2, zero)
    return scale.astype(jnp.float32), jnp.round(jnp.clip(zero, low, high)).astype(jnp.int32)


def _moved(running: Any, seen: Any, weight: float) -> Any:
    """A moving average that begins with the first value seen."""
    running = running.reshape(seen.shape)
    return jnp.where(jnp.isinf(running), seen, running + weight * (seen - running))


@lowers("aten::_fused_moving_avg_obs_fq_helper_functional")
def observed(
    x: Any,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Any,
    running_max: Any,
    scale: Any,
    zero_point: Any,
    weight: float,
    low: int,
    high: int,
    axis: int,
    per_row: bool,
    symmetric: bool,
) -> tuple[Any, ...]:
    """(x quantized, where it was within, the new running extremes, the new scale and zero point)."""
    others = tuple(i for i in range(x.ndim) if not per_row or i != axis % x.ndim)
    observing, quantizing = (flag.reshape(-1)[0] != 0 for flag in (observer_on, fake_quant_on))
    states = running_min, running_max, scale, zero_point
    shape = (x.shape[axis],) if per_row else (1,)
    seen = (x.min(others).reshape(shape), x.max(others).reshape(shape))
    averages = [_moved(r, s.astype(r.dtype), weight) for r, s in zip(states[:2], seen, strict=True)]
    new = (*averages, *_parameters(*averages, low, high, symmetric))
    kept = [s.reshape(shape) for s in states]
    running_min, running_max, scale, zero_point = (
        jnp.where(observing, n.astype(k.dtype), k) for n, k in zip(new, kept, strict=True)
    )
    if per_row:
        value, within = per_channel(x, scale, zero_point, axis, low, high)
    else:
        value, within = _quantized(x, scale[0], zero_point[0], low, high)
    new = (running_min, running_max, scale, zero_point)
    new = (n.reshape(s.shape) for n, s in zip(new, states, strict=True))
    return jnp.where(quantizing, value, x), within | ~quantizing, *new
