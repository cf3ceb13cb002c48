"""Cells of recurrent networks: LSTM and GRU, one step, and their gradients.

PyTorch runs the steps one by one on this device, so programs do not depend on the length of the sequence.
"""

from __future__ import annotations

from typing import Any

from . import dtypes
from ._jax import jax, jnp
from .registry import lowers


def _wide(*xs: Any) -> Any:
    return [None if x is None else x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))) for x in xs]


def _sum(x: Any, y: Any) -> Any:
    return x if y is None else x + y


@lowers("aten::_thnn_fused_lstm_cell")
def lstm_cell(x: Any, h: Any, cx: Any, bias_x: Any, bias_h: Any) -> tuple[Any, ...]:
    """(hidden state, cell state, gates) from the gates' products with the input and with the hidden state."""
    dtype = x.dtype
    x, h, cx, bias_x, bias_h = _wide(x, h, cx, bias_x, bias_h)
    i, f, g, o = jnp.split(_sum(x, bias_x) + _sum(h, bias_h), 4, 1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return tuple(v.astype(dtype) for v in (o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], 1)))


@lowers("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, gates: Any, has_bias: bool) -> tuple[Any, ...]:
    """Gradients to (gates before activation, cell state, bias)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = gates.dtype
    grad_hy, grad_cy, cx, cy, gates = _wide(grad_hy, grad_cy, cx, cy, gates)
    i, f, g, o = jnp.split(gates, 4, 1)
    squashed = jnp.tanh(cy)
    to_c, to_o = jnp.zeros_like(cx), jnp.zeros_like(o)
    if grad_cy is not None:
        to_c = grad_cy
    if grad_hy is not None:
        to_c, to_o = to_c + grad_hy * o * (1 - squashed * squashed), grad_hy * squashed
    to_gates = jnp.concatenate(
        [to_c * g * i * (1 - i), to_c * cx * f * (1 - f), to_c * i * (1 - g * g), to_o * o * (1 - o)], 1
    )
    to_bias = to_gates.sum(0).astype(dtype) if has_bias else None
    return to_gates.astype(dtype), (to_c * f).astype(dtype), to_bias


@lowers("aten::_thnn_fused_gru_cell")
def gru_cell(x: Any, h: Any, hx: Any, bias_x: Any, bias_h: Any) -> tuple[Any, Any]:
    """(hidden state, what the gradient needs) from the gates' products with the input and with the hidden state."""
    dtype = x.dtype
    x, h, hx, bias_x, bias_h = _wide(x, h, hx, bias_x, bias_h)
    xr, xz, xn = jnp.split(_sum(x, bias_x), 3, 1)
    hr, hz, hn = jnp.split(_sum(h, bias_h), 3, 1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    return (n + z * (hx - n)).astype(dtype), jnp.concatenate([r, z, n, hx, hn], 1).astype(dtype)


@lowers("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    """Gradients to (products with the input, with the hidden state, hidden state, the biases of both products)."""
    dtype = grad.dtype
    grad, workspace = _wide(grad, workspace)
    r, z, n, hx, hn = jnp.split(workspace, 5, 1)
    to_z = grad * (hx - n) * z * (1 - z)
    to_n = grad * (1 - z) * (1 - n * n)
    to_r = to_n * hn * r * (1 - r)
    to_x, to_h = jnp.concatenate([to_r, to_z, to_n], 1), jnp.concatenate([to_r, to_z, to_n * r], 1)
    biases = (to_x.sum(0), to_h.sum(0)) if has_bias else (None, None)
    return tuple(None if v is None else v.astype(dtype) for v in (to_x, to_h, grad * z, *biases))
