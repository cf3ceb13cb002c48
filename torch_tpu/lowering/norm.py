"""Normalisations: layer, group, batch, RMS and weight norm, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import lowers
from .rows import each_row


def _wide(*xs: Any) -> Any:
    """Operands in the type PyTorch computes in."""
    return tuple(None if x is None else x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))) for x in xs)


def _promised(*values: Any) -> tuple[Any, ...]:
    """The values in the dtypes of the outputs PyTorch promises."""
    return tuple(None if v is None else v.astype(dtypes.to_jax(out(i).dtype)) for i, v in enumerate(values))


def _moments(x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """Mean and biased variance along `axes`, which are kept.

    What rounding left of the mean comes back from the differences, or equal elements would differ from it.
    """
    mean = x.mean(axes, keepdims=True)
    off = x - mean
    rest = off.mean(axes, keepdims=True)
    return mean + rest, jnp.maximum(jnp.square(off).mean(axes, keepdims=True) - rest * rest, 0)


def _backward(grad: Any, normal: Any, rstd: Any, axes: Sequence[int]) -> Any:
    """Gradient to x of normal = (x - mean(x)) * rstd(x), statistics being taken along `axes`."""
    along = grad.mean(axes, keepdims=True) + normal * (grad * normal).mean(axes, keepdims=True)
    return (grad - along) * rstd


# Layer norm and RMS norm: statistics over the last dimensions.


def _layer_norm(x: Any, rank: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """(x normalised over its last `rank` dimensions, mean, 1 / deviation) in the type computed in."""
    x, weight, bias = _wide(x, weight, bias)
    mean, var = _moments(x, range(x.ndim - rank, x.ndim))
    rstd = lax.rsqrt(var + eps)
    value = (x - mean) * rstd
    value = value if weight is None else value * weight
    return value if bias is None else value + bias, mean, rstd


def normalised(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Layer norm over the last dimension."""
    return _layer_norm(x, 1, weight, bias, eps)[0].astype(x.dtype)


@lowers("aten::native_layer_norm", rows="masked")
def layer_norm(x: Any, shape: list[int], weight: Any, bias: Any, eps: float) -> Any:
    each_row(range(x.ndim - len(shape), x.ndim), x)
    return _promised(*_layer_norm(x, len(shape), weight, bias, eps))


@lowers("aten::native_layer_norm_backward")
def layer_norm_backward(
    grad: Any, x: Any, shape: list[int], mean: Any, rstd: Any, weight: Any, bias: Any, output_mask: list[bool]
) -> Any:
    grad, x, mean, rstd, weight = _wide(grad, x, mean, rstd, weight)
    first = x.ndim - len(shape)
    inner, outer = range(first, x.ndim), tuple(range(first))
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * weight
    return _promised(
        _backward(scaled, normal, rstd, inner) if output_mask[0] else None,
        (grad * normal).sum(outer) if output_mask[1] else None,
        grad.sum(outer) if output_mask[2] else None,
    )


@lowers("aten::_fused_rms_norm", rows="masked")
def rms_norm(x: Any, shape: list[int], weight: Any, eps: float | None) -> Any:
    each_row(range(x.ndim - len(shape), x.ndim), x)
    x, weight = _wide(x, weight)
    if eps is None:
        eps = float(jnp.finfo(x.dtype).eps)
    power = (x * x).mean(range(x.ndim - len(shape), x.ndim), keepdims=True)
    rstd = lax.rsqrt(power + eps)
    value = x * rstd
    return _promised(value if weight is None else value * weight, rstd)


@lowers("aten::_fused_rms_norm_backward")
def rms_norm_backward(grad: Any, x: Any, shape: list[int], rstd: Any, weight: Any, output_mask: list[bool]) -> Any:
    grad, x, rstd, weight = _wide(grad, x, rstd, weight)
    first = x.ndim - len(shape)
    normal = x * rstd
    scaled = grad if weight is None else grad * weight
    along = (scaled * normal).mean(range(first, x.ndim), keepdims=True)
    return _promised(
        (scaled - normal * along) * rstd if output_mask[0] else None,
        (grad * normal).sum(range(first)) if output_mask[1] and weight is not None else None,
    )


# Group norm: statistics over the positions and the channels of a group.


def _channels(v: Any, groups: int) -> Any:
    """[C] as a factor of [N, groups, C / groups, positions]."""
    return v.reshape(1, groups, -1, 1)


@lowers("aten::native_group_norm")
def group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, positions: int, groups: int, eps: float) -> Any:
    shape = x.shape
    x, weight, bias = _wide(x.reshape(n, groups, c // groups, positions), weight, bias)
    mean, var = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + eps)
    value = (x - mean) * rstd
    value = value if weight is None else value * _channels(weight, groups)
    value = value if bias is None else value + _channels(bias, groups)
    return _promised(value.reshape(shape), mean.reshape(n, groups), rstd.reshape(n, groups))


@lowers("aten::native_group_norm_backward")
def group_norm_backward(
    grad: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    n: int,
    c: int,
    positions: int,
    groups: int,
    output_mask: list[bool],
) -> Any:
    shape = x.shape
    grad, x, mean, rstd, weight = _wide(grad, x, mean, rstd, weight)
    grad, x = (v.reshape(n, groups, c // groups, positions) for v in (grad, x))
    mean, rstd = (v.reshape(n, groups, 1, 1) for v in (mean, rstd))
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * _channels(weight, groups)
    return _promised(
        _backward(scaled, normal, rstd, (2, 3)).reshape(shape) if output_mask[0] else None,
        (grad * normal).sum((0, 3)).reshape(c) if output_mask[1] else None,
        grad.sum((0, 3)).reshape(c) if output_mask[2] else None,
    )


# Batch norm: statistics over all but dimension 1.


def _batch_axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channel(v: Any, x: Any) -> Any:
    """[C] as a factor of x[N, C, ...]."""
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def _affine(x: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> Any:
    value = (x - _channel(mean, x)) * _channel(invstd, x)
    value = value if weight is None else value * _channel(weight, x)
    return value if bias is None else value + _channel(bias, x)


def _running(old: Any, new: Any, momentum: float) -> Any:
    return old.astype(new.dtype) * (1 - momentum) + new * momentum


def _running_promised(*stats: Any) -> tuple[Any, ...]:
    """New running statistics, the last outputs of the ops that give them, in the dtypes promised."""
    return tuple(None if v is None else v.astype(dtypes.to_jax(out(i - 2).dtype)) for i, v in enumerate(stats))


def _unbiased(var: Any, count: Any) -> Any:
    return var * (count / (count - 1.0) if count != 1 else math.nan)


@lowers("aten::_native_batch_norm_legit_functional")
def batch_norm(
    x: Any, weight: Any, bias: Any, rm: Any, rv: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """(output, saved mean, saved inverse deviation, running mean, running variance)."""
    x, weight, bias = _wide(x, weight, bias)
    if training:
        mean, var = (v.reshape(-1) for v in _moments(x, _batch_axes(x)))
        if rm is not None:
            rm = _running(rm, mean, momentum)
        if rv is not None:
            rv = _running(rv, _unbiased(var, x.size // max(x.shape[1], 1)), momentum)
    else:
        mean, var = _wide(rm, rv)
    invstd = lax.rsqrt(var + eps)
    value = _affine(x, mean, invstd, weight, bias)
    saved = (v if out(i).shape == v.shape else v[:0] for i, v in ((1, mean), (2, invstd)))
    return *_promised(value, *saved), *_running_promised(rm, rv)


@lowers("aten::native_batch_norm")
def native_batch_norm(x: Any, weight: Any, bias: Any, rm: Any, rv: Any, *how: Any) -> tuple[Any, ...]:
    """The op also updates the running statistics, which its schema does not say: whoever calls this must."""
    return batch_norm(x, weight, bias, rm, rv, *how)[:3]


@lowers("aten::_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(x: Any, weight: Any, bias: Any, *how: Any) -> tuple[Any, ...]:
    return batch_norm(x, weight, bias, None, None, *how)[:3]


@lowers("aten::_native_batch_norm_legit_no_training")
def batch_norm_no_training(x: Any, weight: Any, bias: Any, rm: Any, rv: Any, *how: Any) -> tuple[Any, ...]:
    return batch_norm(x, weight, bias, rm, rv, False, *how)[:3]


def _reserve() -> Any:
    return jnp.zeros(out(3).shape, dtypes.to_jax(out(3).dtype))


@lowers("aten::_batch_norm_with_update_functional")
def batch_norm_with_update(x: Any, weight: Any, bias: Any, rm: Any, rv: Any, *how: Any) -> tuple[Any, ...]:
    value, mean, invstd, rm, rv = batch_norm(x, weight, bias, rm, rv, True, *how)
    return value, mean, invstd, _reserve(), rm, rv


@lowers("aten::_batch_norm_no_update")
def batch_norm_no_update(x: Any, weight: Any, bias: Any, rm: Any, rv: Any, *how: Any) -> tuple[Any, ...]:
    return *batch_norm(x, weight, bias, rm, rv, False, *how)[:3], _reserve()


@lowers("aten::native_batch_norm_backward")
def batch_norm_backward(
    grad: Any,
    x: Any,
    weight: Any,
    rm: Any,
    rv: Any,
    mean: Any,
    invstd: Any,
    training: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Any, ...]:
    grad, x, weight, rm, rv, mean, invstd = _wide(grad, x, weight, rm, rv, mean, invstd)
    axes = _batch_axes(x)
    if not training:
        mean, invstd = rm, lax.rsqrt(rv + eps)
    invstd = _channel(invstd, x)
    normal = (x - _channel(mean, x)) * invstd
    scaled = grad if weight is None else grad * _channel(weight, x)
    if not output_mask[0]:
        grad_input = jnp.zeros_like(x)  # promised all the same
    else:
        grad_input = _backward(scaled, normal, invstd, axes) if training else scaled * invstd
    return _promised(
        grad_input,
        (grad * normal).sum(axes) if output_mask[1] else None,
        grad.sum(axes) if output_mask[2] else None,
    )


@lowers("aten::batch_norm_backward")
def batch_norm_backward_reserved(*args: Any) -> tuple[Any, ...]:
    return batch_norm_backward(*args[:-1])


# The steps of synchronised batch norm.


@lowers("aten::batch_norm_stats")
def batch_norm_stats(x: Any, eps: float) -> tuple[Any, Any]:
    (x,) = _wide(x)
    mean, var = (v.reshape(-1) for v in _moments(x, _batch_axes(x)))
    return mean, lax.rsqrt(var + eps)


@lowers("aten::batch_norm_update_stats")
def batch_norm_update_stats(x: Any, rm: Any, rv: Any, momentum: float) -> tuple[Any, Any]:
    """Mean and variance of the batch; whoever calls this updates the running statistics."""
    (x,) = _wide(x)
    return _promised(*(v.reshape(-1) for v in _moments(x, _batch_axes(x))))


@lowers("aten::batch_norm_elemt")
def batch_norm_elemt(x: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> Any:
    return _affine(*_wide(x, mean, invstd, weight, bias)).astype(x.dtype)


@lowers("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    x: Any, mean: Any, invstd: Any, rm: Any, rv: Any, momentum: float, eps: float, counts: Any
) -> tuple[Any, Any]:
    """Statistics of all replicas from each one's mean[R, C], invstd[R, C] and counts[R]; see `native_batch_norm`."""
    mean, invstd, counts = _wide(mean, invstd, counts.reshape(-1, 1).astype(mean.dtype))
    total = counts.sum()
    centre = (mean * counts).sum(0) / total
    var = ((1 / jnp.square(invstd) - eps + jnp.square(mean - centre)) * counts).sum(0) / total
    return centre, lax.rsqrt(var + eps)


@lowers("aten::batch_norm_gather_stats")
def batch_norm_gather_stats(
    x: Any, mean: Any, invstd: Any, rm: Any, rv: Any, momentum: float, eps: float, count: int
) -> tuple[Any, Any]:
    counts = jnp.full(mean.shape[:1], count, mean.dtype)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, rm, rv, momentum, eps, counts)


@lowers("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad: Any, x: Any, mean: Any, invstd: Any, weight: Any, input_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Any, ...]:
    """(sum of grad, sum of grad * (x - mean), gradient of the weight, gradient of the bias) by channel."""
    kind = x.dtype if weight is None else weight.dtype
    grad, x, mean, invstd = _wide(grad, x, mean, invstd)
    total, projected = grad.sum(_batch_axes(x)), (grad * (x - _channel(mean, x))).sum(_batch_axes(x))
    return (
        total if input_g else None,
        projected if input_g else None,
        (projected * invstd).astype(kind) if weight_g else None,
        total.astype(kind) if bias_g else None,
    )


@lowers("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad: Any, x: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, sum_dy_xmu: Any, count: Any
) -> Any:
    kind = x.dtype
    grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu = _wide(grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu)
    total = count.sum().astype(x.dtype)
    slope = _channel(jnp.square(invstd) * sum_dy_xmu / total, x)
    value = (grad - _channel(sum_dy / total, x) - (x - _channel(mean, x)) * slope) * _channel(invstd, x)
    return (value if weight is None else value * _channel(weight, x)).astype(kind)


# Weight norm: v scaled to the norms g along one dimension.


def _weight_norms(v: Any, dim: int) -> tuple[Any, tuple[int, ...]]:
    axes = tuple(i for i in range(v.ndim) if i != dim % v.ndim)
    return jnp.sqrt((v * v).sum(axes, keepdims=True)), axes


@lowers("aten::_weight_norm_interface")
def weight_norm(v: Any, g: Any, dim: int) -> tuple[Any, Any]:
    v, g = _wide(v, g)
    norms, _ = _weight_norms(v, dim)
    return _promised(v * (g / norms), norms)


@lowers("aten::_weight_norm_interface_backward")
def weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    grad, v, g, norms = _wide(grad, v, g, norms)
    _, axes = _weight_norms(v, dim)
    along = (grad * v).sum(axes, keepdims=True)
    return _promised(g / norms * (grad - v * along / jnp.square(norms)), along / norms)
