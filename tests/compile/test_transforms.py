"""torch.func inside compiled functions, and around them."""

from __future__ import annotations

import torch
from alike import assert_as_eager
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap


def energy(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().square().sum()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 3, device="tpu"), torch.randn(3, 3, device="tpu")


def test_grad() -> None:
    assert_as_eager(grad(energy, argnums=(0, 1)), *inputs())


def test_vmap() -> None:
    x, w = inputs()
    assert_as_eager(vmap(lambda row, w: (row @ w).softmax(-1), in_dims=(0, None)), x, w)
    assert_as_eager(vmap(lambda column: column.cumsum(0), in_dims=1, out_dims=1), x)


def test_gradients_per_sample() -> None:
    x, w = inputs()
    assert_as_eager(lambda x, w: vmap(grad(lambda w, row: energy(row[None], w)), in_dims=(None, 0))(w, x), x, w)


def test_jvp_and_vjp() -> None:
    x, w = inputs()
    assert_as_eager(lambda x, w: jvp(lambda x: (x @ w).sin(), (x,), (torch.ones_like(x),)), x, w)
    assert_as_eager(lambda x, w: vjp(lambda x: (x @ w).sin(), x)[1](torch.ones_like(x)), x, w)


def test_jacobian_and_hessian() -> None:
    x = torch.randn(3, device="tpu")
    assert_as_eager(jacrev(lambda x: x.sin() * x.sum()), x)
    assert_as_eager(hessian(lambda x: (x**3).sum() * x[0]), x, rtol=1e-4, atol=1e-5)


def test_random_numbers_under_vmap() -> None:
    x = torch.randn(4, 3, device="tpu")
    for randomness in ("same", "different"):
        assert_as_eager(vmap(lambda row: row + torch.rand_like(row), randomness=randomness), x)


def test_functional_call() -> None:
    model = nn.Linear(3, 2).to("tpu")
    parameters = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    assert_as_eager(lambda p, x: functional_call(model, p, (x,)), parameters, torch.randn(4, 3, device="tpu"))


def test_gradients_of_gradients() -> None:
    assert_as_eager(lambda x, w: grad(lambda x: grad(energy)(x, w).square().sum())(x), *inputs())
