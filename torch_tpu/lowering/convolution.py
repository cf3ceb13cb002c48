"""Convolutions of any rank, transposed or not, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._jax import jax, jnp, lax
from .context import precision
from .registry import lowers


def _convolve(
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    rank = x.ndim - 2
    stride, padding, dilation, output_padding = (
        tuple(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation, output_padding)
    )
    layout = lax.ConvDimensionNumbers(*(tuple(range(rank + 2)),) * 3)
    pads, upsample = [(p, p) for p in padding], (1,) * rank
    if transposed:
        # The gradient of a convolution to its input: a convolution of the dilated input with the flipped kernel.
        kernel = weight.shape[2:]
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        pads = [(r, r + o) for r, o in zip(reach, output_padding, strict=True)]
        stride, upsample = upsample, stride
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).swapaxes(1, 2)
        weight = lax.rev(grouped.reshape(groups * grouped.shape[1], *grouped.shape[2:]), tuple(range(2, rank + 2)))
    return lax.conv_general_dilated(
        x,
        weight,
        stride,
        pads,
        lhs_dilation=upsample,
        rhs_dilation=dilation,
        dimension_numbers=layout,
        feature_group_count=groups,
        precision=precision(x, weight),
    )


@lowers("aten::convolution", "aten::convolution_overrideable")
def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    value = _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    return value if bias is None else value + bias.reshape(-1, *(1,) * (x.ndim - 2))


@lowers("aten::convolution_backward")
def convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Any, Any, Any]:
    def of(x: Any, weight: Any) -> Any:
        return _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups)

    grad_x = grad_weight = grad_bias = None
    if jnp.iscomplexobj(grad):
        # PyTorch's gradients are the conjugates of JAX's.
        x, weight = x.conj(), weight.conj()
    if output_mask[0]:
        (grad_x,) = jax.vjp(lambda v: of(v, weight), x)[1](grad)
    if output_mask[1]:
        (grad_weight,) = jax.vjp(lambda v: of(x, v), weight)[1](grad)
    if output_mask[2]:
        grad_bias = grad.sum((0, *range(2, grad.ndim)))
    return grad_x, grad_weight, grad_bias


@lowers("aten::convolution_backward_overrideable")
def convolution_backward_overrideable(grad: Any, x: Any, weight: Any, *geometry: Any) -> tuple[Any, Any, Any]:
    return convolution_backward(grad, x, weight, None, *geometry)
