"""Activation functions and their gradients."""

from __future__ import annotations

import math
from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import lowers, pointwise


@pointwise("aten::relu")
def relu(x: Any) -> Any:
    return jnp.maximum(x, 0)


@pointwise("aten::hardtanh", runtime=("min_val", "max_val"), static=("low", "high"))
def hardtanh(x: Any, low: Any = -1, high: Any = 1) -> Any:
    return jnp.minimum(jnp.maximum(x, jnp.asarray(low).astype(x.dtype)), jnp.asarray(high).astype(x.dtype))


@pointwise("aten::hardtanh_backward", runtime=("min_val", "max_val"))
def hardtanh_backward(grad: Any, x: Any, low: Any, high: Any) -> Any:
    return jnp.where((x <= low) | (x >= high), 0, grad)


@pointwise("aten::threshold", runtime=("threshold", "value"), static=("limit", "value"))
def threshold(x: Any, limit: Any, value: Any) -> Any:
    return jnp.where(x <= jnp.asarray(limit).astype(x.dtype), jnp.asarray(value).astype(x.dtype), x)


@pointwise("aten::threshold_backward", runtime=("threshold",))
def threshold_backward(grad: Any, x: Any, limit: Any) -> Any:
    return jnp.where(x <= limit, 0, grad)


@pointwise("aten::leaky_relu", runtime=("negative_slope",))
def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    return jnp.where(x > 0, x, x * slope)


# Numbers that ops refuse for their sign are no runtime values: each call is looked at.
@pointwise("aten::leaky_relu_backward", static=("is_result",))
def leaky_relu_backward(grad: Any, x: Any, slope: Any, is_result: bool) -> Any:
    return jnp.where(x > 0, grad, grad * slope)


@pointwise("aten::_prelu_kernel")
def prelu(x: Any, weight: Any) -> Any:
    return jnp.where(x > 0, x, x * weight)


@lowers("aten::_prelu_kernel_backward", rows="pointwise")
def prelu_backward(grad: Any, x: Any, weight: Any) -> Any:
    positive = x > 0
    zero = jnp.zeros((), x.dtype)
    grad_x, grad_weight = jnp.where(positive, grad, weight * grad), jnp.where(positive, zero, x * grad)
    return tuple(jnp.broadcast_to(g, out(i).shape) for i, g in enumerate((grad_x, grad_weight)))


@pointwise("aten::elu", runtime=("alpha", "scale", "input_scale"))
def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return scale * jnp.where(x > 0, x, alpha * lax.expm1(jnp.where(x > 0, 0, x * input_scale)))


@pointwise("aten::elu_backward", runtime=("scale", "input_scale"), static=("is_result",))
def elu_backward(grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    left = x + alpha * scale if is_result else alpha * scale * lax.exp(jnp.where(x > 0, 0, x * input_scale))
    return grad * jnp.where(x <= 0, input_scale * left, scale)


@pointwise("aten::celu")
def celu(x: Any, alpha: Any = 1.0) -> Any:
    return jnp.where(x > 0, x, alpha * lax.expm1(jnp.where(x > 0, 0, x) / alpha))


@pointwise("aten::gelu", static=("approximate",))
def gelu(x: Any, *, approximate: str) -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + lax.tanh(_gelu_inner(x)))
    return 0.5 * x * lax.erfc(-x * math.sqrt(0.5))


@pointwise("aten::gelu_backward", static=("approximate",))
def gelu_backward(grad: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "tanh":
        t = lax.tanh(_gelu_inner(x))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * 0.5 * (1 + t + x * (1 - t * t) * slope)
    density = lax.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * lax.erfc(-x * math.sqrt(0.5)) + x * density)


def _gelu_inner(x: Any) -> Any:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@pointwise("aten::silu")
def silu(x: Any) -> Any:
    return x * lax.logistic(x)


@pointwise("aten::silu_backward")
def silu_backward(grad: Any, x: Any) -> Any:
    s = lax.logistic(x)
    return grad * s * (1 + x * (1 - s))


@pointwise("aten::mish")
def mish(x: Any) -> Any:
    return x * lax.tanh(log1p_exp(x))


@pointwise("aten::mish_backward")
def mish_backward(grad: Any, x: Any) -> Any:
    t = lax.tanh(log1p_exp(x))
    return grad * (t + x * lax.logistic(x) * (1 - t * t))


@pointwise("aten::sigmoid_backward")
def sigmoid_backward(grad: Any, y: Any) -> Any:
    return grad * _conj(y * (1 - y))


@pointwise("aten::tanh_backward")
def tanh_backward(grad: Any, y: Any) -> Any:
    return grad * _conj(1 - y * y)


def _conj(x: Any) -> Any:
    return lax.conj(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


def log1p_exp(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return jnp.maximum(x, 0) + lax.log1p(lax.exp(-jnp.abs(x)))


@pointwise("aten::softplus", runtime=("beta", "threshold"))
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    return jnp.where(x * beta > threshold, x, log1p_exp(x * beta) / beta)


@pointwise("aten::softplus_backward", runtime=("beta", "threshold"))
def softplus_backward(grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    return jnp.where(x * beta > threshold, grad, grad * lax.logistic(x * beta))


@pointwise("aten::softshrink")
def softshrink(x: Any, width: Any = 0.5) -> Any:
    return jnp.where(x > width, x - width, jnp.where(x < -width, x + width, x * 0))


@pointwise("aten::hardshrink", runtime=("lambd",))
def hardshrink(x: Any, width: Any = 0.5) -> Any:
    return jnp.where((x >= -width) & (x <= width), 0, x)


@pointwise("aten::softshrink_backward", "aten::hardshrink_backward", runtime=("lambd",))
def shrink_backward(grad: Any, x: Any, width: Any) -> Any:
    return jnp.where((x >= -width) & (x <= width), 0, grad)


@pointwise("aten::hardsigmoid")
def hardsigmoid(x: Any) -> Any:
    return jnp.clip(x + 3, 0, 6) / 6


@pointwise("aten::hardsigmoid_backward")
def hardsigmoid_backward(grad: Any, x: Any) -> Any:
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


@pointwise("aten::hardswish")
def hardswish(x: Any) -> Any:
    return x * jnp.clip(x + 3, 0, 6) / 6


@pointwise("aten::hardswish_backward")
def hardswish_backward(grad: Any, x: Any) -> Any:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


@lowers("aten::log_sigmoid_forward", rows="pointwise")
def log_sigmoid(x: Any) -> Any:
    compute = x.astype(dtypes.to_jax(dtypes.opmath(out().dtype)))
    small = lax.exp(-jnp.abs(compute))
    # The buffer is exp(-|x|) where PyTorch keeps one, empty elsewhere.
    buffer = small.astype(x.dtype) if out(1).numel() else jnp.zeros(out(1).shape, x.dtype)
    return (jnp.minimum(compute, 0) - lax.log1p(small)).astype(x.dtype), buffer


@pointwise("aten::log_sigmoid_backward", static=("buffer",))
def log_sigmoid_backward(grad: Any, x: Any, buffer: Any) -> Any:
    return grad * lax.logistic(-x)


@pointwise("aten::logit", static=("eps",), to="float")
def logit(x: Any, eps: float | None = None) -> Any:
    if eps is not None:
        x = jnp.clip(x, eps, 1 - eps)
    return lax.log(x / (1 - x))


@pointwise("aten::logit_backward", static=("eps",))
def logit_backward(grad: Any, x: Any, eps: float | None = None) -> Any:
    low, outside = (0.0, jnp.nan) if eps is None else (eps, 0.0)
    return jnp.where((x < low) | (x > 1 - low), outside, grad / (x * (1 - x)))


@lowers("aten::glu")
def glu(x: Any, dim: int) -> Any:
    a, b = _halves(x, dim)
    return (a * lax.logistic(b)).astype(x.dtype)


@lowers("aten::glu_backward")
def glu_backward(grad: Any, x: Any, dim: int) -> Any:
    a, b = _halves(x, dim)
    gate = lax.logistic(b)
    grad = grad.astype(a.dtype)
    return jnp.concatenate([grad * gate, grad * a * gate * (1 - gate)], dim).astype(x.dtype)


@lowers("aten::glu_jvp")
def glu_jvp(glu_x: Any, x: Any, dx: Any, dim: int) -> Any:
    (a, b), (da, db) = _halves(x, dim), _halves(dx, dim)
    gate = lax.logistic(b)
    return (da * gate + a * gate * (1 - gate) * db).astype(x.dtype)


@lowers("aten::glu_backward_jvp")
def glu_backward_jvp(grad_x: Any, grad: Any, x: Any, dgrad: Any, dx: Any, dim: int) -> Any:
    (a, b), (da, db) = _halves(x, dim), _halves(dx, dim)
    grad, dgrad = grad.astype(a.dtype), dgrad.astype(a.dtype)
    gate = lax.logistic(b)
    slope = gate * (1 - gate)
    d_first = dgrad * gate + grad * slope * db
    d_second = dgrad * a * slope + grad * da * slope + grad * a * slope * (1 - 2 * gate) * db
    return jnp.concatenate([d_first, d_second], dim).astype(x.dtype)


def _halves(x: Any, dim: int) -> Any:
    return jnp.split(x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))), 2, dim)
