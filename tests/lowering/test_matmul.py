"""Matrix products against torch on CPU."""

from __future__ import annotations

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.int8]
NAN = float("nan")


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype)
    return torch.randint(0, 100, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_products(dtype: torch.dtype) -> None:
    a, b, v = tensor(2, 3, 4, dtype=dtype), tensor(2, 4, 5, dtype=dtype), tensor(4, dtype=dtype)
    check(aten.mm.default, a[0], b[0])
    check(aten.bmm.default, a, b)
    check(aten.mv.default, a[0], v)
    check(aten.dot.default, v, v)
    check(aten.vdot.default, v, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0, 1)])
def test_sums_with_products(beta: int, alpha: int, dtype: torch.dtype) -> None:
    a, b = tensor(2, 3, 4, dtype=dtype), tensor(2, 4, 5, dtype=dtype)
    how = {"beta": beta, "alpha": alpha}
    check(aten.addmm.default, tensor(3, 5, dtype=dtype), a[0], b[0], **how)
    check(aten.addmm.default, tensor(5, dtype=dtype), a[0], b[0], **how)
    check(aten.baddbmm.default, tensor(1, 1, 5, dtype=dtype), a, b, **how)
    check(aten.addbmm.default, tensor(3, 5, dtype=dtype), a, b, **how)
    check(aten.addmv.default, tensor(3, dtype=dtype), a[0], tensor(4, dtype=dtype), **how)
    check(aten.addr.default, tensor(3, 4, dtype=dtype), tensor(3, dtype=dtype), tensor(4, dtype=dtype), **how)


def test_beta_0_does_not_read() -> None:
    check(aten.addmm.default, torch.full((3, 5), NAN), tensor(3, 4), tensor(4, 5), beta=0)
    check(aten.baddbmm.default, torch.full((2, 3, 5), NAN), tensor(2, 3, 4), tensor(2, 4, 5), beta=0)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_empty(m: int, k: int, n: int) -> None:
    check(aten.mm.default, tensor(m, k), tensor(k, n))
    check(aten.addmm.default, tensor(n), tensor(m, k), tensor(k, n))
    check(aten.bmm.default, tensor(2, m, k), tensor(2, k, n))
    check(aten.mm.default, tensor(m, k, dtype=torch.int64), tensor(k, n, dtype=torch.int64))


def test_small_integers_wrap_and_large_ones_do_not_round() -> None:
    check(aten.mm.default, torch.full((2, 3), 100, dtype=torch.int8), torch.full((3, 2), 7, dtype=torch.int8))
    check(aten.mm.default, torch.full((2, 2), 2**40 + 1), torch.full((2, 2), 2**20 + 1))
    check(aten._int_mm.default, tensor(17, 8, dtype=torch.int8), tensor(8, 8, dtype=torch.int8))


def test_16_bit_floats_accumulate_in_float32() -> None:
    a = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert lowered(aten.mm.default, a, a.T).item() == 4096


def test_trilinear() -> None:
    check(aten._trilinear.default, tensor(2, 3), tensor(4, 3, 5), tensor(2, 5), [1, 3], [0], [1, 2], [2, 3])
    check(aten._trilinear.default, tensor(2, 3), tensor(2, 3), tensor(2, 3), [], [], [], [0, 1])


def test_scaled_mm() -> None:
    a = tensor(16, 32).to(torch.float8_e4m3fn)
    b = tensor(16, 32).to(torch.float8_e4m3fn).t()
    for scale_a, scale_b in ((torch.tensor(0.5), torch.tensor(2.0)), (torch.rand(16, 1), torch.rand(1, 16))):
        got = lowered(aten._scaled_mm.default, a, b, scale_a, scale_b, out_dtype=torch.float32)
        torch.testing.assert_close(got, (a.float() @ b.float()) * scale_a * scale_b)


@pytest.mark.parametrize("ends", [[3, 3, 300], [0, 128, 256], [1, 2, 290]])
def test_grouped_mm(ends: list[int]) -> None:
    offs, starts = torch.tensor(ends, dtype=torch.int32), [0, *ends[:-1]]
    a, b = tensor(ends[-1], 8, dtype=torch.bfloat16), tensor(3, 8, 16, dtype=torch.bfloat16)
    spans = list(zip(starts, ends, strict=True))
    close = {"rtol": 2e-2, "atol": 2e-2}
    got = lowered(aten._grouped_mm.default, a, b, offs)
    torch.testing.assert_close(got, torch.cat([a[s:e] @ b[i] for i, (s, e) in enumerate(spans)]), **close)
    got = lowered(aten._grouped_mm.default, b.mT, a.T, offs)
    torch.testing.assert_close(got, torch.cat([b[i].T @ a[s:e].T for i, (s, e) in enumerate(spans)], 1), **close)
    got = lowered(aten._grouped_mm.default, a.T, a, offs)
    torch.testing.assert_close(got, torch.stack([a[s:e].T @ a[s:e] for s, e in spans]), rtol=2e-2, atol=0.2)


def test_grouped_mm_of_batches() -> None:
    a, b = tensor(2, 3, 8, dtype=torch.bfloat16), tensor(2, 8, 16, dtype=torch.bfloat16)
    torch.testing.assert_close(lowered(aten._grouped_mm.default, a, b), a @ b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    a, b = tensor(2, 5, 3), tensor(4, 3)
    b[0] = a[0, 0]
    check(aten._cdist_forward.default, a, b.expand(2, 4, 3), p, None)
    distance = torch.cdist(a, b, p)
    check(aten._cdist_backward.default, torch.randn_like(distance), a, b.expand(2, 4, 3), p, distance)
    check(aten._pdist_forward.default, a[0], p)
    distance = torch.pdist(a[0], p)
    check(aten._pdist_backward.default, torch.randn_like(distance), a[0], p, distance)


def test_euclidean_distances_by_a_product() -> None:
    check(aten._cdist_forward.default, tensor(30, 3, dtype=torch.float64), tensor(4, 3, dtype=torch.float64), 2.0, None)
    check(aten._cdist_forward.default, tensor(3, 0), tensor(4, 0), 2.0, None)
    check(aten._cdist_forward.default, tensor(0, 3), tensor(4, 3), 2.0, None)
