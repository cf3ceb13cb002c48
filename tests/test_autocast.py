"""Autocast on the device: the dtypes of CUDA's lists, gradients in full precision, the loss scaler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from parity import assert_same
from torch import nn

Tensor = torch.Tensor


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4).to("tpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("fn", "lowers"),
    [
        (lambda x: x @ x, True),
        (lambda x: torch.mm(x, x), True),
        (lambda x: F.linear(x, x), True),
        (lambda x: torch.einsum("ij,jk->ik", x, x), True),
        (lambda x: F.conv1d(x[None], x[:, :, None]), True),
        (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), True),
        (lambda x: torch.baddbmm(x[None], x[None], x[None]), True),
        (lambda x: F.softmax(x.half(), 1), False),
        (lambda x: F.layer_norm(x.half(), (4,)), False),
        (lambda x: x.half().exp(), False),
        (lambda x: x.half().sum(), False),
        (lambda x: x.half().pow(2), False),
        (lambda x: F.mse_loss(x.half(), x.half()), False),
        (lambda x: F.cross_entropy(x.half(), torch.tensor([0, 1, 2, 3], device=x.device)), False),
        (lambda x: torch.cat([x, x.half()]), False),
        (lambda x: torch.addcmul(x, x.half(), x.half()), False),
        (lambda x: x + x, False),
    ],
)
def test_dtypes_follow_the_lists(x: Tensor, fn: Callable[[Tensor], Tensor], lowers: bool, dtype: torch.dtype) -> None:
    with torch.autocast("tpu", dtype=dtype):
        assert fn(x).dtype == (dtype if lowers else torch.float32)
    assert (x @ x).dtype == torch.float32


def test_the_default_is_bfloat16_and_it_nests(x: Tensor) -> None:
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cpu"):
            assert (x @ x).dtype == torch.bfloat16
            assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32


def test_values_are_those_of_the_lower_precision(x: Tensor) -> None:
    with torch.autocast("tpu", dtype=torch.bfloat16):
        got = x @ x
    low = x.cpu().bfloat16()
    assert_same(got, low @ low)


def test_gradients_arrive_in_the_parameters_dtype() -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(torch.linspace(-1, 1, 12).reshape(3, 4).to(device))
            loss = F.cross_entropy(out, torch.tensor([0, 1, 0], device=device))
        assert loss.dtype == torch.float32
        loss.backward()
        return [p.grad for p in model.parameters()]

    got = run("tpu")
    assert all(g.dtype == torch.float32 for g in got)
    # bfloat16 keeps eight bits, and the two devices round intermediate sums differently.
    assert_same(got, run("cpu"), rtol=5e-2, atol=5e-3)


def test_weights_are_cast_once_in_a_region(x: Tensor) -> None:
    w = x.clone().requires_grad_()
    with torch.autocast("tpu"):
        a = x @ w
        launches = torch.tpu.cache_stats()["launches"]
        b = x @ w
        assert torch.tpu.cache_stats()["launches"] - launches <= 2, "the product and the cast of x"
    (a.float().sum() + b.float().sum()).backward()
    assert w.grad.dtype == torch.float32


def test_unsafe_losses_and_unsupported_dtypes_are_refused(x: Tensor) -> None:
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
    with torch.autocast("tpu"):
        assert F.binary_cross_entropy_with_logits(x, x.sigmoid()).dtype == torch.float32
    with pytest.warns(UserWarning, match="autocast"), torch.autocast("tpu", dtype=torch.int32):
        assert (x @ x).dtype == torch.float32


def test_custom_functions_cast_as_they_ask(x: Tensor) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            (a,) = ctx.saved_tensors
            return grad @ a.t() + a.t() @ grad

    with torch.autocast("tpu"):
        assert Product.apply(x.half()).dtype == torch.float32
    assert Product.apply(x).dtype == torch.float32


def test_grad_scaler() -> None:
    def run(device: str) -> tuple[Tensor, float, float]:
        p = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([p], lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        for step in range(5):
            optimizer.zero_grad()
            factor = float("inf") if step == 2 else 1.0
            scaler.scale((p * p).sum() * factor).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(optimizer)
            scaler.update()
        return p, scaler.get_scale(), scaler.state_dict()["_growth_tracker"]

    assert_same(run("tpu"), run("cpu"))


def test_autocast_with_checkpoint_and_inference_mode(x: Tensor) -> None:
    from torch.utils.checkpoint import checkpoint

    w = x.clone().requires_grad_()
    with torch.autocast("tpu"):
        out = checkpoint(lambda t: (t @ t).relu(), w, use_reentrant=False)
        assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert w.grad.dtype == torch.float32 and w.grad.abs().sum() > 0
    with torch.inference_mode(), torch.autocast("tpu"):
        assert (x @ x).dtype == torch.bfloat16
