"""torch.func.vmap of the ops that only this backend has: the mapped dimension joins the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATTENTION = "aten::_scaled_dot_product_fused_attention_overrideable"


def register() -> None:
    """Give the fused attention and its gradient their rules."""
    torch.library.register_vmap(_ATTENTION, _attention)
    torch.library.register_vmap(_ATTENTION + "_backward", _attention_backward)


def _attention(info: Any, in_dims: tuple[Any, ...], *args: Any, **how: Any) -> tuple[Any, Any]:
    args = (*args, *(None, 0.0, False, False)[len(args) - 3 :])
    in_dims = (*in_dims, *(None,) * (len(args) - len(in_dims)))
    if args[4] > 0 and info.randomness != "different":
        raise RuntimeError(
            f"vmap: attention with dropout needs randomness='different' on device 'tpu', not {info.randomness!r}"
        )
    args, split = _joined(info.batch_size, in_dims, args, bias=3)
    value, lse, *rest = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(*args, **how)
    # [1, batch, L] for operands of three dimensions, [batch, heads, L] for those of four.
    axis = lse.ndim - value.ndim + 1
    lse = lse.unflatten(axis, (info.batch_size, -1))
    return (split(value), lse, *rest), (0, axis, *(None,) * len(rest))


def _attention_backward(info: Any, in_dims: tuple[Any, ...], *args: Any, **how: Any) -> tuple[Any, Any]:
    joined, split = _joined(info.batch_size, in_dims, args, bias=4)
    op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward
    *grads, to_bias = op(*joined, **how)
    if to_bias is not None and args[4] is not None:
        shape = args[4].shape if in_dims[4] is None else args[4].movedim(in_dims[4], 0).shape[1:]
        to_bias = split(to_bias)
        ones = (1,) * (to_bias.ndim - 1 - len(shape))
        to_bias = to_bias.sum_to_size(info.batch_size, *ones, *shape).reshape(info.batch_size, *shape)
    return (*map(split, grads), to_bias), (0, 0, 0, None if to_bias is None else 0)


def _joined(
    size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...], bias: int
) -> tuple[list[Any], Callable[[torch.Tensor], torch.Tensor]]:
    """The arguments with the mapped dimension in the batch, and what takes it out of a result.

    bias: the position of the mask, whose leading dimensions may be missing or 1.
    """
    first, dim = args[0], in_dims[0]
    rank, batch = (first.ndim, first.shape[0]) if dim is None else (first.ndim - 1, first.movedim(dim, 0).shape[1])
    joined = list(args)
    for i, (x, dim) in enumerate(zip(args, in_dims, strict=True)):
        if not isinstance(x, torch.Tensor) or x.ndim == 0:
            continue
        x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        if i == bias:
            x = x.reshape(size, *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
            x = x.expand(size, batch, *x.shape[2:])
        joined[i] = x.flatten(0, 1)
    return joined, lambda x: x.unflatten(0, (size, batch))
