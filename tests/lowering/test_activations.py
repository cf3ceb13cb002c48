"""Activations and their gradients against torch on CPU, at the kinks, for NaN and for large values."""

import math

import pytest
import torch
import torch.nn.functional as F
from check import CheckMode, check

aten = torch.ops.aten
FINITE = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0, 25.0, -25.0, 100.0, -100.0]
EDGES = [math.nan, math.inf, -math.inf, *FINITE]

ACTIVATIONS = [
    F.relu, F.relu6, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.logsigmoid, F.softsign, F.tanhshrink,
    F.selu, torch.sigmoid, torch.tanh, F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.elu(x, 0.7),
    lambda x: F.celu(x, 1.3),
    lambda x: F.softplus(x, 2.0, 10.0),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.softshrink(x, 0.5),
    lambda x: F.hardshrink(x, 0.5),
    lambda x: F.threshold(x, 0.5, -2.0),
    lambda x: F.hardtanh(x, -0.5, 1.0),
]  # fmt: skip


UNDEFINED = (1, 6, 13, 19, 20, 22)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index", range(len(ACTIVATIONS)))
def test_forward_and_backward(index, dtype):
    # torch itself differs by dtype and position for these: NaN's gradient at a kink, gelu of infinity.
    edges = FINITE if index in UNDEFINED else EDGES
    x = torch.tensor(edges, dtype=dtype, requires_grad=True)
    with CheckMode() as mode:
        ACTIVATIONS[index](x).sum().backward()
    assert not mode.failures, mode.failures


def test_in_place_gradients_from_results():
    grad, y = torch.ones(5), torch.tensor([-0.9, -0.1, 0.0, 0.5, 3.0])
    check(aten.elu_backward.default, grad, 1.3, 1.1, 0.9, True, y)
    check(aten.leaky_relu_backward.default, grad, y, 0.2, True)


def test_integers():
    check(aten.relu.default, torch.tensor([-1, 2]))
    check(aten.hardtanh.default, torch.tensor([-1, 2, 9]), 0, 6)
    check(aten.threshold.default, torch.tensor([-1, 2, 9]), 1, 20)


@pytest.mark.parametrize("dim", [0, -1])
def test_glu(dim):
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    with CheckMode() as mode:
        (g,) = torch.autograd.grad(F.glu(x, dim).sum(), x, create_graph=True)
        g.sum().backward()
    assert not mode.failures, mode.failures


def test_prelu():
    x = torch.randn(2, 3, 4, requires_grad=True)
    with CheckMode() as mode:
        F.prelu(x, torch.rand(3, requires_grad=True)).sum().backward()
        F.prelu(x, torch.rand(1, requires_grad=True)).sum().backward()
    assert not mode.failures, mode.failures


def test_logit_outside_of_its_domain():
    x, grad = torch.tensor([-0.1, 0.0, 0.05, 0.5, 1.0, 1.5]), torch.ones(6)
    for eps in (None, 0.1):
        check(aten.logit_backward.default, grad, x, eps)


def test_complex_gradients():
    z, grad = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    for name in ("sigmoid_backward", "tanh_backward", "silu_backward"):
        check(getattr(aten, name).default, grad, z)
