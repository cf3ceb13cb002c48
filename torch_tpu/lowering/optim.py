"""Fused optimizer steps and the scaling of gradients under automatic mixed precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import dtypes
from ._jax import jnp, lax
from .registry import lowers


@lowers("aten::_fused_adam", "aten::_fused_adam.tensor_lr", runtime=("lr", "beta1"))
def fused_adam(*lists: Any, **options: Any) -> Any:
    return _adam(*lists, **options, decoupled=False)


@lowers("aten::_fused_adamw", "aten::_fused_adamw.tensor_lr", runtime=("lr", "beta1"))
def fused_adamw(*lists: Any, **options: Any) -> Any:
    return _adam(*lists, **options, decoupled=True)


def _adam(
    params: Any, grads: Any, averages: Any, squares: Any, max_squares: Any, steps: Any, *,
    lr: Any, beta1: Any, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Any, found_inf: Any, decoupled: bool,
) -> Any:  # fmt: skip
    """Kingma and Ba, Adam, 2015; decoupled: Loshchilov and Hutter, Decoupled weight decay regularization, 2019."""

    def update(param: Any, grad: Any, average: Any, square: Any, max_square: Any, step: Any) -> Any:
        rate, b1, step = (jnp.asarray(v).astype(param.dtype) for v in (lr, beta1, step))
        direction = -grad if maximize else grad
        if decoupled:
            param = param - rate * weight_decay * param
        elif weight_decay:
            direction = direction + weight_decay * param
        average = average + (direction - average) * (1 - b1)
        square = beta2 * square + (1 - beta2) * direction * direction
        if amsgrad:
            max_square = jnp.maximum(max_square, square)
        # 1 - beta^step without cancellation.
        with np.errstate(divide="ignore"):
            left1, left2 = -lax.expm1(step * lax.log(b1)), -lax.expm1(step * np.asarray(np.log(beta2), step.dtype))
        root = lax.sqrt(max_square if amsgrad else square) / lax.sqrt(left2)
        return param - rate / left1 * average / (root + eps), grad, average, square, max_square

    states = [params, grads, averages, squares, max_squares if amsgrad else [None] * len(params)]
    results = _apply(update, states, steps, grad_scale, found_inf)
    return [*results[:4], results[4] if amsgrad else list(max_squares)]


@lowers("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr", runtime=("lr", "momentum"))
def fused_sgd(
    params: Any, grads: Any, momenta: Any, *, weight_decay: float, momentum: Any, lr: Any, dampening: float,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any, found_inf: Any,
) -> Any:  # fmt: skip
    def update(param: Any, grad: Any, buffer: Any, _: Any) -> Any:
        rate, keep = (jnp.asarray(v).astype(param.dtype) for v in (lr, momentum))
        direction = -grad if maximize else grad
        if weight_decay:
            direction = direction + weight_decay * param
        if buffer is not None:
            buffer = direction if is_first_step else keep * buffer + (1 - dampening) * direction
            direction = direction + keep * buffer if nesterov else buffer
        return param - rate * direction, grad, buffer

    results = _apply(update, [params, grads, momenta or [None] * len(params)], None, grad_scale, found_inf)
    return [*results[:2], results[2] if momenta else []]


@lowers("aten::_fused_adagrad", runtime=("lr",))
def fused_adagrad(params: Any, grads: Any, sums: Any, steps: Any, **options: Any) -> Any:
    return [*fused_adagrad_tensor_lr(params, grads, sums, steps, **options), list(steps)]


@lowers("aten::_fused_adagrad.tensor_lr")
def fused_adagrad_tensor_lr(
    params: Any, grads: Any, sums: Any, steps: Any, *, lr: Any, lr_decay: float, weight_decay: float, eps: float,
    maximize: bool, grad_scale: Any, found_inf: Any,
) -> Any:  # fmt: skip
    """Duchi et al., Adaptive subgradient methods, 2011."""

    def update(param: Any, grad: Any, total: Any, step: Any) -> Any:
        rate, step = (jnp.asarray(v).astype(param.dtype) for v in (lr, step))
        direction = -grad if maximize else grad
        if weight_decay:
            direction = direction + weight_decay * param
        total = total + direction * direction
        return param - rate / (1 + (step - 1) * lr_decay) * direction / (lax.sqrt(total) + eps), grad, total

    return _apply(update, [params, grads, sums], steps, grad_scale, found_inf)


def _apply(
    update: Callable[..., Any], states: Sequence[Any], steps: Any, grad_scale: Any, found_inf: Any
) -> list[list[Any]]:
    """update(param, unscaled grad, ..., step) for every parameter; nothing changes where `found_inf` is 1."""
    columns = []
    for *row, step in zip(*states, steps or [None] * len(states[0]), strict=True):
        wide = [x if x is None else x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))) for x in row]
        if grad_scale is not None:
            wide[1] = wide[1] / grad_scale.reshape(()).astype(wide[1].dtype)
        new = [n if n is None else n.astype(x.dtype) for n, x in zip(update(*wide, step), row, strict=True)]
        if found_inf is not None:
            keep = found_inf.reshape(()) == 1
            new = [n if n is None else jnp.where(keep, x, n) for n, x in zip(new, row, strict=True)]
        columns.append(new)
    return [list(c) for c in zip(*columns, strict=True)]


@lowers("aten::_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(grads: Any, found_inf: Any, inv_scale: Any) -> Any:
    bad = functools.reduce(jnp.logical_or, [~jnp.all(jnp.isfinite(g)) for g in grads])
    scale = inv_scale.reshape(())
    unscaled = [(g.astype(jnp.promote_types(g.dtype, scale.dtype)) * scale).astype(g.dtype) for g in grads]
    return [*unscaled, jnp.where(bad, jnp.ones_like(found_inf), found_inf)]


@lowers("aten::_amp_update_scale", runtime=("scale_growth_factor", "scale_backoff_factor", "growth_interval"))
def amp_update_scale(scale: Any, tracker: Any, found_inf: Any, growth: Any, backoff: Any, interval: Any) -> Any:
    bad = found_inf.reshape(scale.shape) != 0
    larger = scale * jnp.asarray(growth).astype(scale.dtype)
    due = tracker + 1 == jnp.asarray(interval).astype(tracker.dtype)
    grown = jnp.where(due.reshape(scale.shape) & jnp.isfinite(larger), larger, scale)
    new = jnp.where(bad, scale * jnp.asarray(backoff).astype(scale.dtype), grown)
    return new, jnp.where(bad.reshape(tracker.shape) | due, 0, tracker + 1)
