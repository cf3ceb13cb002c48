"""Losses and their gradients against torch on CPU, for every reduction."""

import pytest
import torch
import torch.nn.functional as F
from check import CheckMode, check

aten = torch.ops.aten
REDUCTIONS = ["none", "mean", "sum"]


def backward(loss):
    with CheckMode() as mode:
        loss().sum().backward()
    assert not mode.failures, mode.failures


POINTWISE = [
    F.mse_loss,
    F.l1_loss,
    F.soft_margin_loss,
    F.smooth_l1_loss,
    lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.0, **k),
    lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.3, **k),
    lambda x, y, **k: F.huber_loss(x, y, delta=0.5, **k),
    lambda x, y, **k: F.kl_div(x, y, **k),
    lambda x, y, **k: F.poisson_nll_loss(x, y, **k),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("index", range(len(POINTWISE)))
def test_pointwise(index, reduction):
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    backward(lambda: POINTWISE[index](x, torch.rand(3, 4), reduction=reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 1.0, 2.0])])
def test_binary_cross_entropy(reduction, weight):
    x = torch.tensor([[0.0, 1.0, 0.3], [1.0, 0.0, 0.999]], requires_grad=True)
    y = torch.tensor([[0.0, 1.0, 0.7], [0.0, 1.0, 0.5]])
    backward(lambda: F.binary_cross_entropy(x, y, weight, reduction=reduction))
    z = torch.tensor([[-100.0, 100.0, 0.3], [1.0, 0.0, -2.0]], requires_grad=True)
    backward(lambda: F.binary_cross_entropy_with_logits(z, y, weight, reduction=reduction))
    backward(
        lambda: F.binary_cross_entropy_with_logits(z, y, weight, pos_weight=torch.tensor(3.0), reduction=reduction)
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3, 2)])
def test_nll(shape, ignore_index, weighted, reduction):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    batch = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 5, batch)
    if batch:
        target.view(-1)[0] = ignore_index
    weight = torch.rand(5) if weighted else None
    backward(lambda: F.cross_entropy(x, target, weight, reduction=reduction, ignore_index=ignore_index))


def test_nll_when_all_is_ignored_or_empty():
    x = torch.randn(3, 4, requires_grad=True)
    for reduction in REDUCTIONS:
        backward(lambda r=reduction: F.cross_entropy(x, torch.full((3,), -100), reduction=r))
    for reduction in (0, 1, 2):
        check(aten.nll_loss_forward.default, torch.rand(0, 4), torch.zeros(0, dtype=torch.int64), None, reduction, -100)
    backward(lambda: F.cross_entropy(x, torch.tensor([0, 1, 3]), label_smoothing=0.1))
    backward(lambda: F.cross_entropy(x, torch.softmax(torch.randn(3, 4), 1)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_nll_in_other_types(dtype):
    x, target = torch.randn(6, 5).to(dtype), torch.tensor([0, 1, 2, 3, 4, -100])
    check(aten.nll_loss_forward.default, x, target, None, 1, -100)
    check(aten.nll_loss_backward.default, torch.ones((), dtype=dtype), x, target, None, 1, -100,
          torch.tensor(5.0, dtype=dtype))  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(reduction, p):
    torch.manual_seed(0)
    x = torch.randn(4, 5, requires_grad=True)
    backward(lambda: F.multi_margin_loss(x, torch.tensor([0, 3, 4, 1]), p, 0.7, torch.rand(5), reduction=reduction))
    # Of one row PyTorch promises a loss of shape (1,) where its CPU gives a scalar.
    row = torch.randn(5, requires_grad=True)
    if reduction != "none":
        backward(lambda: F.multi_margin_loss(row, torch.tensor(2), p, reduction=reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction):
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    target = torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3]])
    backward(lambda: F.multilabel_margin_loss(x, target, reduction=reduction))
    row = torch.randn(4, requires_grad=True)
    if reduction != "none":
        backward(lambda: F.multilabel_margin_loss(row, target[0], reduction=reduction))
