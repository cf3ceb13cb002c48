"""Losses and their gradients; `reduction` is 0 for none, 1 for the mean and 2 for the sum."""

from __future__ import annotations

from typing import Any

from . import dtypes
from ._jax import jnp, lax
from .activations import log1p_exp
from .context import out
from .registry import lowers

NONE, MEAN, SUM = 0, 1, 2


def compute(*xs: Any) -> list[Any]:
    """The operands in the type to compute in, None kept."""
    dtype = dtypes.to_jax(dtypes.opmath(dtypes.result_type(*xs)))
    return [None if x is None else jnp.asarray(x).astype(dtype) for x in xs]


def reduce(loss: Any, reduction: int) -> Any:
    """The loss as `reduction` asks, in the promised dtype."""
    if reduction == MEAN:
        loss = jnp.mean(loss)
    elif reduction == SUM:
        loss = jnp.sum(loss)
    return loss.astype(dtypes.to_jax(out().dtype))


def spread(gradient: Any, reduction: int) -> Any:
    """The gradient of the elements from that of `reduce`'s result, in the promised shape and dtype."""
    promised = out()
    scale = 1 / max(promised.numel(), 1) if reduction == MEAN else 1
    return jnp.broadcast_to(gradient * scale, promised.shape).astype(dtypes.to_jax(promised.dtype))


@lowers("aten::mse_loss")
def mse_loss(x: Any, target: Any, reduction: int) -> Any:
    x, target = compute(x, target)
    return reduce(lax.square(x - target), reduction)


@lowers("aten::mse_loss_backward")
def mse_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
    grad, x, target = compute(grad, x, target)
    return spread(2 * grad * (x - target), reduction)


@lowers("aten::smooth_l1_loss")
def smooth_l1_loss(x: Any, target: Any, reduction: int, beta: float) -> Any:
    x, target = compute(x, target)
    z = jnp.abs(x - target)
    return reduce(z if beta == 0 else jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@lowers("aten::smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad: Any, x: Any, target: Any, reduction: int, beta: float) -> Any:
    grad, x, target = compute(grad, x, target)
    z = x - target
    slope = jnp.sign(z) if beta == 0 else jnp.clip(z / beta, -1, 1)
    return spread(grad * slope, reduction)


@lowers("aten::huber_loss")
def huber_loss(x: Any, target: Any, reduction: int, delta: float) -> Any:
    x, target = compute(x, target)
    z = jnp.abs(x - target)
    return reduce(jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@lowers("aten::huber_loss_backward")
def huber_loss_backward(grad: Any, x: Any, target: Any, reduction: int, delta: float) -> Any:
    grad, x, target = compute(grad, x, target)
    return spread(grad * jnp.clip(x - target, -delta, delta), reduction)


@lowers("aten::soft_margin_loss")
def soft_margin_loss(x: Any, target: Any, reduction: int) -> Any:
    x, target = compute(x, target)
    return reduce(log1p_exp(-target * x), reduction)


@lowers("aten::soft_margin_loss_backward")
def soft_margin_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
    grad, x, target = compute(grad, x, target)
    return spread(-target * grad * lax.logistic(-target * x), reduction)


@lowers("aten::binary_cross_entropy")
def binary_cross_entropy(x: Any, target: Any, weight: Any, reduction: int) -> Any:
    x, target, weight = compute(x, target, weight)
    loss = (target - 1) * jnp.maximum(lax.log1p(-x), -100) - target * jnp.maximum(lax.log(x), -100)
    return reduce(loss if weight is None else loss * weight, reduction)


@lowers("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad: Any, x: Any, target: Any, weight: Any, reduction: int) -> Any:
    grad, x, target, weight = compute(grad, x, target, weight)
    slope = grad * (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    return spread(slope if weight is None else slope * weight, reduction)


@lowers("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(x: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
    x, target, weight, pos_weight = compute(x, target, weight, pos_weight)
    scale = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x + scale * log1p_exp(-x)
    return reduce(loss if weight is None else loss * weight, reduction)


@lowers("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """x: log-probabilities (C,), (N, C) or (N, C, H, W); target: class indices of the same shape without C."""
    dim = 0 if x.ndim == 1 else 1
    target, kept = _classes(target, ignore_index)
    (picked,) = compute(jnp.take_along_axis(x, jnp.expand_dims(target, dim), dim).squeeze(dim))
    share = jnp.where(kept, 1 if weight is None else weight.astype(picked.dtype)[target], 0).astype(picked.dtype)
    loss = jnp.where(kept, -picked * share, 0)
    dtype = dtypes.to_jax(out().dtype)
    if reduction == NONE and x.ndim > 1:
        return loss.astype(dtype), jnp.zeros((), dtype)
    total = jnp.sum(share)
    value = jnp.sum(loss) / (total if reduction == MEAN else 1)
    return value.astype(dtype), total.astype(dtype)


@lowers("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Any:
    dim = 0 if x.ndim == 1 else 1
    target, kept = _classes(target, ignore_index)
    grad, weight, total = compute(grad, weight, total)
    if reduction == MEAN:
        grad = grad / total
    share = -grad if weight is None else -grad * weight[target]
    one_hot = lax.broadcasted_iota(jnp.int32, x.shape, dim) == jnp.expand_dims(target, dim)
    share = jnp.expand_dims(jnp.broadcast_to(share, target.shape), dim)
    return jnp.where(one_hot & jnp.expand_dims(kept, dim), share, 0).astype(x.dtype)


def _classes(target: Any, ignore_index: int) -> tuple[Any, Any]:
    kept = target != ignore_index
    return jnp.where(kept, target, 0).astype(jnp.int32), kept


@lowers("aten::multi_margin_loss")
def multi_margin_loss(x: Any, target: Any, p: Any, margin: Any, weight: Any, reduction: int) -> Any:
    x, weight = compute(x, weight)
    z, scale, _ = _margins(x, target, margin, weight)
    loss = jnp.sum((z if p == 1 else z * z) * scale, -1) / z.shape[-1]
    return reduce(loss.reshape(target.shape) if reduction == NONE else loss, reduction)


@lowers("aten::multi_margin_loss_backward")
def multi_margin_loss_backward(grad: Any, x: Any, target: Any, p: Any, margin: Any, weight: Any, reduction: int) -> Any:
    shape, dtype = x.shape, x.dtype
    grad, x, weight = compute(grad, x, weight)
    z, scale, one_hot = _margins(x, target, margin, weight)
    slope = jnp.where(z > 0, 1 if p == 1 else 2 * z, 0) * scale / z.shape[-1]
    slope = jnp.where(one_hot, -jnp.sum(slope, -1, keepdims=True), slope)
    if reduction == MEAN:
        slope = slope / z.shape[0]
    slope = slope * (grad.reshape(-1, 1) if grad.size == z.shape[0] else grad)
    return slope.reshape(shape).astype(dtype)


def _margins(x: Any, target: Any, margin: Any, weight: Any) -> tuple[Any, Any, Any]:
    """max(0, margin - x[target] + x) off the target, the weight of each row, where the target is."""
    x, target = jnp.atleast_2d(x), jnp.atleast_1d(target).astype(jnp.int32)
    one_hot = lax.broadcasted_iota(jnp.int32, x.shape, 1) == target[:, None]
    z = jnp.maximum(margin - jnp.take_along_axis(x, target[:, None], 1) + x, 0)
    scale = jnp.ones((), x.dtype) if weight is None else weight[target][:, None]
    return jnp.where(one_hot, 0, z), scale, one_hot


@lowers("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss(x: Any, target: Any, reduction: int) -> Any:
    (rows,) = compute(jnp.atleast_2d(x))
    z, is_target = _label_margins(rows, target)
    loss = jnp.sum(jnp.maximum(z, 0), (1, 2)) / rows.shape[-1]
    value = reduce(loss.reshape(target.shape[:-1]) if reduction == NONE else loss, reduction)
    return value, is_target.reshape(target.shape).astype(x.dtype)


@lowers("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad: Any, x: Any, target: Any, reduction: int, is_target: Any) -> Any:
    grad, rows = compute(grad, jnp.atleast_2d(x))
    z, _ = _label_margins(rows, target)
    active = (z > 0).astype(rows.dtype)
    chosen = jnp.atleast_2d(target).astype(jnp.int32)
    hit = (lax.broadcasted_iota(jnp.int32, (*chosen.shape, rows.shape[1]), 2) == chosen[:, :, None]).astype(rows.dtype)
    slope = (jnp.sum(active, 1) - jnp.sum(hit * jnp.sum(active, 2)[:, :, None], 1)) / rows.shape[1]
    if reduction == MEAN:
        slope = slope / rows.shape[0]
    slope = slope * (grad.reshape(-1, 1) if grad.size == rows.shape[0] else grad)
    return slope.reshape(x.shape).astype(x.dtype)


def _label_margins(x: Any, target: Any) -> tuple[Any, Any]:
    """1 - x[target_k] + x_j of every label k of a row (labels end at the first -1) and class j without a label."""
    target = jnp.atleast_2d(target).astype(jnp.int32)
    listed = lax.cummin((target >= 0).astype(jnp.int32), axis=1) == 1
    hit = (lax.broadcasted_iota(jnp.int32, (*target.shape, x.shape[1]), 2) == target[:, :, None]) & listed[:, :, None]
    is_target = jnp.any(hit, 1)
    z = 1 - jnp.take_along_axis(x, jnp.maximum(target, 0), 1)[:, :, None] + x[:, None, :]
    return jnp.where(listed[:, :, None] & ~is_target[:, None, :], z, 0), is_target
