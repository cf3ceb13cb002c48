"""Padding, interpolation, sampling by a grid, and their gradients against torch on CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
NAN = float("nan")


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_mirroring_pads(rank: int, kind: str) -> None:
    forward, backward = (getattr(aten, f"{kind}_pad{rank}d{s}") for s in ("", "_backward"))
    x = tensor(2, 3, *(4, 5, 6)[:rank])
    for pad in ([1, 2, 0, 3, 2, 1][: 2 * rank], [-1, 2, 1, -1, 0, 0][: 2 * rank]):
        check(forward.default, x, pad)
        check(backward.default, torch.randn_like(forward(x, pad)), x, pad)
    check(forward.default, x.to(torch.int64) if kind == "reflection" else x.double(), [1, 1] * rank)


def test_constant_pads() -> None:
    for pad in ([1, 2], [1, 2, 0, 3], [-1, 2, 1, -2], [0, 0, 0, 0, 2, 1]):
        check(aten.constant_pad_nd.default, tensor(2, 4, 5), pad, 1.5)
    check(aten.constant_pad_nd.default, tensor(2, 3), [1, 1], NAN)
    check(aten.constant_pad_nd.default, torch.ones(2, 3, dtype=torch.int32), [1, 1], 2.9)
    check(aten.constant_pad_nd.default, torch.ones(2, 3, dtype=torch.bool), [1, 1], 1)
    check(aten.constant_pad_nd.default, torch.ones(2, 3), [1, 1], True)
    check(aten.constant_pad_nd.default, torch.ones(0, 3), [1, 1, 2, 0], 4.0)


@pytest.mark.parametrize("name", ["upsample_nearest", "_upsample_nearest_exact"])
@pytest.mark.parametrize("sizes", [(10, 12), (7, 4), (3, 9), (5, 6), (20, 13)])
def test_nearest(sizes: tuple[int, int], name: str) -> None:
    x = tensor(2, 3, 5, 6)
    forward, backward = getattr(aten, f"{name}2d"), getattr(aten, f"{name}2d_backward")
    check(forward.default, x, sizes)
    check(forward.default, x, sizes, sizes[0] / 5 + 0.05, None)
    check(backward.default, tensor(2, 3, *sizes), sizes, [2, 3, 5, 6])


def test_nearest_of_other_ranks_and_dtypes() -> None:
    check(aten.upsample_nearest1d.default, tensor(2, 3, 5), [8])
    check(aten.upsample_nearest3d.default, tensor(2, 3, 2, 3, 4), [4, 5, 3])
    check(aten.upsample_nearest3d_backward.default, tensor(2, 3, 4, 5, 3), [4, 5, 3], [2, 3, 2, 3, 4])
    check(aten.upsample_nearest2d.default, torch.randint(0, 255, (1, 2, 4, 4), dtype=torch.uint8), [6, 7])


WEIGHTED = {
    "upsample_linear1d": ((2, 3, 7), [(12,), (3,), (7,)]),
    "upsample_bilinear2d": ((2, 3, 7, 8), [(14, 16), (3, 5), (1, 1)]),
    "upsample_trilinear3d": ((1, 2, 3, 4, 5), [(6, 5, 3)]),
    "upsample_bicubic2d": ((1, 2, 7, 8), [(14, 11), (3, 5)]),
}


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted(name: str, align: bool) -> None:
    shape, every = WEIGHTED[name]
    for sizes in every:
        check(getattr(aten, name).default, tensor(*shape, dtype=torch.float64), sizes, align)
    check(getattr(aten, name).default, tensor(*shape), sizes, align, *(1.7 for _ in sizes))
    grad = tensor(*shape[:2], *sizes, dtype=torch.float64)
    check(getattr(aten, f"{name}_backward").default, grad, sizes, shape, align)


@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"])
def test_antialiased(name: str) -> None:
    for sizes in ((3, 4), (17, 20), (7, 30)):
        check(getattr(aten, name).default, tensor(1, 2, 11, 13, dtype=torch.float64), sizes, False)
    grad = tensor(1, 2, 3, 4, dtype=torch.float64)
    check(getattr(aten, f"{name}_backward").default, grad, [3, 4], [1, 2, 11, 13], False)


def test_bytes_are_resized_in_fixed_point() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (1, 3, 13, 17), dtype=torch.uint8)
    check(aten.upsample_bilinear2d.default, x, [7, 30], False)
    check(aten._upsample_bilinear2d_aa.default, x, [7, 30], False)
    for op in (aten.upsample_bicubic2d, aten._upsample_bicubic2d_aa):
        # Cubic weights are rounded otherwise, once in a hundred elements.
        gap = (lowered(op.default, x, [7, 30], False).int() - op(x, [7, 30], False).int()).abs()
        assert gap.max() <= 1 and gap.float().mean() < 0.02


def test_long_axes_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tpu.lowering import upsample

    monkeypatch.setattr(upsample, "DENSE_ELEMENTS", 0)
    check(aten.upsample_bilinear2d.default, tensor(2, 3, 7, 8), [9, 11], False)
    check(aten.upsample_bilinear2d_backward.default, tensor(2, 3, 9, 11), [9, 11], [2, 3, 7, 8], False)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler(mode: int, padding: int, align: bool) -> None:
    x, grid = tensor(2, 3, 5, 6, dtype=torch.float64), tensor(2, 4, 3, 2, dtype=torch.float64)
    how = mode, padding, align
    check(aten.grid_sampler_2d.default, x, grid, *how)
    if mode < 2:
        beyond = (
            torch.tensor([NAN, float("inf"), -float("inf"), 1e4], dtype=x.dtype).view(1, 2, 2, 1).expand(2, 2, 2, 2)
        )
        check(aten.grid_sampler_2d.default, x, beyond, *how)
    check(aten.grid_sampler_2d_backward.default, tensor(2, 3, 4, 3, dtype=torch.float64), x, grid, *how, [True, True])


@pytest.mark.parametrize("mode", [0, 1])
def test_grid_sampler_3d(mode: int) -> None:
    x, grid = tensor(2, 2, 3, 4, 5, dtype=torch.float64), tensor(2, 2, 3, 2, 3, dtype=torch.float64)
    grad = tensor(2, 2, 2, 3, 2, dtype=torch.float64)
    check(aten.grid_sampler_3d.default, x, grid, mode, 2, False)
    check(aten.grid_sampler_3d_backward.default, grad, x, grid, mode, 2, False, [True, True])


def test_grid_sampler_without_the_gradient_of_the_input() -> None:
    args: Any = tensor(1, 2, 2, 3), tensor(1, 2, 4, 4), tensor(1, 2, 3, 2), 0, 0, False
    expected = aten.grid_sampler_2d_backward(*args, [True, True])[1]
    got = lowered(aten.grid_sampler_2d_backward.default, *args, [False, True])
    assert got[0] is None
    torch.testing.assert_close(got[1], expected)


def test_shuffles() -> None:
    check(aten.pixel_shuffle.default, tensor(2, 8, 3, 4), 2)
    check(aten.pixel_unshuffle.default, tensor(2, 2, 4, 6), 2)
