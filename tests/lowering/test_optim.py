"""Foreach operations, fused optimizers and gradient scaling against torch on CPU."""

import copy

import pytest
import torch
from check import CheckMode, check, lowered

aten = torch.ops.aten


def lists(*shapes, dtype=torch.float32):
    return [torch.rand(s, dtype=torch.float64).add(0.5).to(dtype) for s in shapes]


@pytest.mark.parametrize("name", ["exp", "sqrt", "neg", "round", "lgamma", "sign"])
def test_unary(name):
    check(getattr(aten, f"_foreach_{name}").default, lists((2, 3), (), (0,)))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "clamp_min", "maximum", "pow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_binary(name, dtype):
    xs, ys = lists((2, 3), (4,), dtype=dtype), lists((2, 3), (4,), dtype=dtype)
    packet = getattr(aten, f"_foreach_{name}")
    check(packet.List, xs, ys)
    check(packet.Scalar, xs, 0.75)
    check(packet.ScalarList, xs, [0.75, 2])


def test_alpha_tensor_operands_and_promotion():
    xs = [torch.arange(3), torch.rand(2, 2)]
    check(aten._foreach_add.List, xs, [torch.rand(3), torch.rand(2, 2)], alpha=2)
    check(aten._foreach_mul.Tensor, lists((3,), (2,)), torch.tensor(2.5))
    check(aten._foreach_add.Tensor, lists((3,), (2,)), torch.tensor(2.5), alpha=3)
    check(aten._foreach_pow.ScalarAndTensor, 0.9, [torch.tensor(3.0), torch.tensor(4.0)])
    check(aten._foreach_lerp.Scalar, lists((3,)), lists((3,)), 0.3)
    check(aten._foreach_lerp.List, lists((3,)), lists((3,)), lists((3,)))


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_addc(name):
    a, b, c = lists((3,), (2, 2)), lists((3,), (2, 2)), lists((3,), (2, 2))
    packet = getattr(aten, f"_foreach_{name}")
    check(packet.Scalar, a, b, c, 0.5)
    check(packet.ScalarList, a, b, c, [0.5, -2.0])


def test_copy_zero_norm_max():
    check(aten._foreach_copy.default, lists((3,), (2, 2)), lists((1,), (2, 2), dtype=torch.float64))
    check(aten._foreach_zero.default, lists((3,), (2, 2)))
    check(aten._foreach_max.default, [torch.tensor([1.0, float("nan")]), torch.tensor([[3, 4]])])
    for order in (0, 1, 2, 3, float("inf")):
        check(aten._foreach_norm.Scalar, lists((3,), (), (2, 2)), order)
    check(aten._foreach_norm.Scalar, lists((3,), dtype=torch.bfloat16), 2, torch.float32)


OPTIMIZERS = [
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"maximize": True}),
    (torch.optim.AdamW, {"betas": (0.0, 0.999)}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (torch.optim.SGD, {}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS)
def test_fused(cls, options, dtype):
    """Every op of three steps of the fused optimizer."""
    params = [torch.nn.Parameter(p) for p in lists((3, 2), (4,), dtype=dtype)]
    optimizer = cls(params, lr=0.05, fused=True, **options)
    with CheckMode() as mode:
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape).to(dtype)
            optimizer.step()
    assert not mode.failures, mode.failures
    assert any("fused" in name for name in mode.passed)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_fused_with_scaled_gradients(found):
    state = [lists((3,), (2, 2)) for _ in range(4)]
    steps = [torch.tensor(2.0), torch.tensor(7.0)]
    options = {
        "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False,
        "grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found),
    }  # fmt: skip
    expected = copy.deepcopy(state)
    aten._fused_adamw_.default(*expected, [], steps, **options)
    got = lowered(aten._fused_adamw.default, *state, [], steps, **options)
    for g, e in zip(got, [*expected, []], strict=True):
        torch.testing.assert_close(g, e)
    if found:
        torch.testing.assert_close(got[0], state[0], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [False, True])
def test_amp(bad):
    grads = [torch.tensor([2.0, float("inf") if bad else 1.0]), torch.rand(2, 2).half()]
    got = lowered(aten._amp_foreach_non_finite_check_and_unscale.default, grads, torch.zeros(1), torch.tensor([0.5]))
    torch.testing.assert_close(got[0], [g / 2 for g in grads])
    assert got[1].tolist() == [float(bad)]
    for tracker in (0, 3):
        check(aten._amp_update_scale.default, torch.tensor([8.0]), torch.tensor([tracker], dtype=torch.int32),
              torch.tensor([float(bad)]), 2.0, 0.5, 4)  # fmt: skip
