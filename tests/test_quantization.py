"""Fake quantization and the modules of quantization-aware training, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from parity import gradients, on_both
from torch.ao import quantization

Tensor = torch.Tensor
X = (torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)) * 3).requires_grad_()
SCALES, ZEROS = torch.tensor([0.05, 0.1, 0.2]), torch.tensor([0, 3, -2], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_fake_quantize(dtype: torch.dtype) -> None:
    x = X.detach().to(dtype).requires_grad_()
    on_both(gradients(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7)), x)
    scale, zero = torch.tensor(0.1), torch.tensor(2, dtype=torch.int32)
    on_both(gradients(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -8, 7)), x, scale, zero)
    on_both(gradients(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7)), x, SCALES, ZEROS)
    halves = torch.tensor([0.5, 3.4, -2.6])
    on_both(gradients(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7)), x, SCALES, halves)


def test_what_is_no_number_or_beyond_the_steps() -> None:
    x = torch.tensor([float("nan"), 1e9, -1e9, 0.05, 0.15, 0.25, -0.05]).requires_grad_()
    on_both(gradients(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)), x)


def test_learnable() -> None:
    scale, zero = torch.tensor([0.1]).requires_grad_(), torch.tensor([2.4]).requires_grad_()
    tensor = torch._fake_quantize_learnable_per_tensor_affine
    channel = torch._fake_quantize_learnable_per_channel_affine
    on_both(gradients(lambda x, s, z: tensor(x, s, z, -8, 7, 0.7)), X, scale, zero)
    scales, zeros = SCALES.clone().requires_grad_(), torch.tensor([0.2, 3.4, -9.6]).requires_grad_()
    on_both(gradients(lambda x, s, z: channel(x, s, z, 1, -8, 7, 0.7)), X, scales, zeros)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, 8, 7),
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 20, -8, 7),
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x.long(), 0.1, 2, -8, 7),
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 7, -8, 7),
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -8, 7),
    ],
)
def test_wrong_arguments(fn: Callable[..., Tensor]) -> None:
    on_both(fn, X.detach(), SCALES, ZEROS)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-4, 0.0])
def test_moving_averages(by_channel: bool, symmetric: bool, size: float) -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0] if by_channel else 1
        low, high = x.new_full((n,), float("inf")), x.new_full((n,), -float("inf"))
        scale, zero, on = x.new_ones(n), x.new_zeros(n, dtype=torch.int32), x.new_ones(1, dtype=torch.int64)
        for step in (1, 2):
            out = torch.fused_moving_avg_obs_fake_quant(
                x * step, on, on, low, high, scale, zero, 0.3, 0, 255, 0, by_channel, symmetric
            )
        return out, low, high, scale, zero

    on_both(run, X.detach() * size)


@pytest.mark.parametrize("name", ["tensor", "fused", "fused by channel"])
def test_modules(name: str) -> None:
    make = {
        "tensor": quantization.FakeQuantize,
        "fused": quantization.FusedMovingAvgObsFakeQuantize,
        "fused by channel": quantization.default_fused_per_channel_wt_fake_quant,
    }[name]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        module = make().to(x.device)
        module(x)
        out = module(x * 2)
        return out, module.scale, module.zero_point, torch.autograd.grad(out.sum(), x)[0]

    on_both(run, X)
