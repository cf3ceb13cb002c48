"""Recurrent cells, transformer layers and Fourier transforms against torch on CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from check import check, lowered
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.lowering import rnn
from torch_tpu.lowering._jax import jnp

aten = torch.ops.aten


def run(fn: Any, *args: torch.Tensor | None) -> Any:
    """The results of a lowering as a function: PyTorch's shape functions of the cells take no absent tensors."""
    values = fn(*(None if x is None else jnp.asarray(x.numpy()) for x in args))
    return [None if v is None else torch.tensor(v.tolist()) for v in values]


def near(got: Any, expected: Any) -> None:
    for g, e in zip(got, expected, strict=True):
        if e is None:
            assert g is None
        else:
            torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
def test_lstm_cell(has_bias: bool) -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 5, bias=has_bias)
    x, h, c = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 5)
    gates_x, gates_h = (x @ cell.weight_ih.T).detach(), (h @ cell.weight_hh.T).detach()
    biases = [b.detach() for b in (cell.bias_ih, cell.bias_hh)] if has_bias else [None, None]
    hy, cy, workspace = run(rnn.lstm_cell, gates_x, gates_h, c, *biases)
    near([hy, cy], [v.detach() for v in cell(x, (h, c))])

    sums = gates_x + gates_h + (sum(biases) if has_bias else 0)
    leaves = [sums.requires_grad_(), c.clone().requires_grad_()]
    i, f, g, o = leaves[0].chunk(4, 1)
    new_c = f.sigmoid() * leaves[1] + i.sigmoid() * g.tanh()
    new_h = o.sigmoid() * new_c.tanh()
    for grad_h, grad_c in (
        (torch.randn(2, 5), torch.randn(2, 5)),
        (torch.randn(2, 5), None),
        (None, torch.randn(2, 5)),
    ):
        outs = [(v, g) for v, g in ((new_h, grad_h), (new_c, grad_c)) if g is not None]
        wanted = torch.autograd.grad([v for v, _ in outs], leaves, [g for _, g in outs], retain_graph=True)
        got = run(lambda *args: rnn.lstm_cell_backward(*args, has_bias), grad_h, grad_c, c, cy, workspace)
        near(got, [*wanted, wanted[0].sum(0) if has_bias else None])


def test_gru_cell() -> None:
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 5)
    x, h, grad = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 5)
    leaves = [x @ cell.weight_ih.T, h @ cell.weight_hh.T, h, cell.bias_ih, cell.bias_hh]
    leaves = [v.detach().clone().requires_grad_() for v in leaves]
    a, b = leaves[0] + leaves[3], leaves[1] + leaves[4]
    (xr, xz, xn), (hr, hz, hn) = a.chunk(3, 1), b.chunk(3, 1)
    z = (xz + hz).sigmoid()
    expected = (1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * leaves[2]
    near([expected], [cell(x, h)])
    expected.backward(grad)
    value, workspace = run(rnn.gru_cell, *(v.detach() for v in leaves))
    got = run(lambda g, w: rnn.gru_cell_backward(g, w, True), grad, workspace)
    near([value, *got], [expected.detach(), *(v.grad for v in leaves)])


class Recorder(TorchDispatchMode):
    """Keeps the calls of ops of a name."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.calls = names, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name() in self.names:
            self.calls.append((func, args, kwargs or {}, result))
        return result


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(activation: str, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation).eval()
    x = torch.randn(2, 5, 16)
    with Recorder("aten::_transformer_encoder_layer_fwd") as recorder:
        layer(x)
        layer(x, src_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))
        layer(x, src_key_padding_mask=torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool())
    assert len(recorder.calls) == 3
    for op, args, kwargs, result in recorder.calls:
        near([lowered(op, *args, **kwargs)], [result])


@torch.no_grad()
def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    masks = {
        "attn_mask": torch.triu(torch.ones(5, 5, dtype=torch.bool), 1),
        "key_padding_mask": torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool(),
    }
    with Recorder("aten::_native_multi_head_attention") as recorder:
        layer(x, x, x)
        layer(x, x, x, need_weights=False)
        layer(x, x, x, average_attn_weights=False)
        layer(x, x, x, **masks)
    assert len(recorder.calls) == 4
    for op, args, kwargs, (result, weights) in recorder.calls:
        got = pytree.tree_leaves(lowered(op, *args, **kwargs))
        near([got[0]], [result])
        if weights is not None and weights.numel():
            near([got[1]], [weights])


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_transforms(dtype: torch.dtype, normalization: int) -> None:
    x = torch.randn(3, 4, 5, 6, dtype=dtype)
    for dims in ([3], [1], [0, 2], [0, 1, 2, 3], [3, 0]):
        check(aten._fft_c2c.default, x, dims, normalization, len(dims) % 2 == 0)


@pytest.mark.parametrize("size", [1, 2, 7, 12, 13, 60])
def test_real_transforms(size: int) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, size, 3, dtype=dtype)
        check(aten._fft_r2c.default, x, [0, 1], 0, True)
        check(aten._fft_r2c.default, x, [1], 1, False)
        half = torch.randn(2, size // 2 + 1, 3, dtype=torch.complex64 if dtype == torch.float32 else torch.complex128)
        check(aten._fft_c2r.default, half, [0, 1], 2, size)


def test_transforms_of_nothing() -> None:
    # Python's fft functions never hand these on, but a batch may be empty.
    assert lowered(aten._fft_c2c.default, torch.randn(0, 4, dtype=torch.complex64), [1], 0, True).shape == (0, 4)
    assert lowered(aten._fft_r2c.default, torch.randn(0, 4), [1], 0, True).shape == (0, 3)
    assert lowered(aten._fft_c2r.default, torch.randn(0, 3, dtype=torch.complex64), [1], 0, 4).shape == (0, 4)
