"""Factorisations and what builds on them. What is unique is compared with torch on CPU, the rest by its properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from check import check, lowered

from torch_tpu.lowering import linalg
from torch_tpu.lowering._jax import jax, jnp

aten = torch.ops.aten
DTYPES = [torch.float32, torch.complex128]
TOLERANCE = {torch.float32: 2e-4, torch.complex64: 2e-4, torch.float64: 1e-10, torch.complex128: 1e-10}


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype)


def positive(n: int, dtype: torch.dtype = torch.float32, batch: tuple[int, ...] = (2,)) -> torch.Tensor:
    a = matrix(*batch, n, n, dtype=dtype)
    return a @ a.mH + torch.eye(n, dtype=dtype)


def near(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=TOLERANCE[a.dtype], atol=TOLERANCE[a.dtype] * max(1.0, float(b.abs().max())))


def orthonormal(q: torch.Tensor) -> None:
    near(q.mH @ q, torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], -1, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype: torch.dtype, upper: bool) -> None:
    a, b = positive(4, dtype), matrix(2, 4, 3, dtype=dtype)
    garbage = a + (torch.tril if upper else torch.triu)(torch.ones_like(a), -1 if upper else 1)
    check(aten.linalg_cholesky_ex.default, garbage, upper=upper)
    factor = torch.linalg.cholesky(a, upper=upper)
    check(aten._cholesky_solve_helper.default, b, factor, upper)
    near(lowered(aten.cholesky_inverse.default, factor, upper), torch.linalg.inv(a))


def test_cholesky_of_what_is_not_positive() -> None:
    a = torch.stack([torch.eye(4), torch.eye(4), -torch.eye(4)])
    a[1, 2, 2] = -1
    assert lowered(aten.linalg_cholesky_ex.default, a)[1].tolist() == [0, 3, 1]
    near(lowered(aten.linalg_cholesky_ex.default, a)[0][0], torch.eye(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 6), (6, 3)])
def test_lu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    check(aten.linalg_lu_factor_ex.default, a)
    p, lower, upper = lowered(aten.linalg_lu.default, a)
    near(p @ lower @ upper, a)
    factors, pivots = torch.linalg.lu_factor(a)
    check(aten.lu_unpack.default, factors, pivots)
    check(aten.lu_unpack.default, factors, pivots, True, False)


def test_lu_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "LU_BLOCK", 3)
    for shape in ((2, 7, 5), (5, 8)):
        check(aten.linalg_lu_factor_ex.default, matrix(*shape, dtype=torch.float64))


def test_lu_without_pivots() -> None:
    a = positive(4)
    factors, pivots, info = lowered(aten.linalg_lu_factor_ex.default, a, pivot=False)
    near((torch.tril(factors, -1) + torch.eye(4)) @ torch.triu(factors), a)
    assert pivots.tolist() == [[1, 2, 3, 4]] * 2 and info.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("left", [True, False])
def test_solutions(left: bool, dtype: torch.dtype) -> None:
    a, b = matrix(2, 4, 4, dtype=dtype), matrix(2, 4, 4, dtype=dtype)
    check(aten._linalg_solve_ex.default, a, b, left=left)
    check(aten.linalg_solve_triangular.default, a, b, upper=True, left=left)
    check(aten.linalg_solve_triangular.default, a, b, upper=False, left=left, unitriangular=True)
    factors, pivots = torch.linalg.lu_factor(a)
    for adjoint in (False, True):
        check(aten.linalg_lu_solve.default, factors, pivots, b, left=left, adjoint=adjoint)
        check(aten.triangular_solve.default, b, a, left, adjoint, False)


def test_solution_of_vectors_and_inverse() -> None:
    a = matrix(2, 4, 4)
    check(aten._linalg_solve_ex.default, a, matrix(2, 4))
    check(aten.linalg_lu_solve.default, *torch.linalg.lu_factor(a), matrix(4, 2))
    check(aten.linalg_inv_ex.default, a)
    assert lowered(aten.linalg_inv_ex.default, torch.zeros(2, 2))[1].item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants(dtype: torch.dtype) -> None:
    # The factors are the transpose's for a contiguous real matrix, on which PyTorch's gradients rely.
    for a in (matrix(4, 4, dtype=dtype).mT, matrix(3, 3, 3, dtype=dtype)):
        check(aten._linalg_det.default, a)
        check(aten._linalg_slogdet.default, a)
    singular = torch.ones(3, 3, dtype=dtype)
    assert lowered(aten._linalg_det.default, singular)[0] == 0
    assert lowered(aten._linalg_slogdet.default, singular)[1] == float("-inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3)])
def test_qr(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    for mode in ("reduced", "complete"):
        q, r = lowered(aten.linalg_qr.default, a, mode)
        near(q @ r, a)
        orthonormal(q)
        assert r.tril(-1).abs().max() == 0
    check(aten.geqrf.default, a)
    factors, tau = torch.geqrf(a)
    check(aten.ormqr.default, factors, tau, matrix(*shape, dtype=dtype))
    if shape[-1] <= shape[-2]:
        check(aten.linalg_householder_product.default, factors, tau)
        check(aten.ormqr.default, factors, tau, matrix(*shape, dtype=dtype).mT, False, True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(dtype: torch.dtype, uplo: str) -> None:
    a = matrix(2, 5, 5, dtype=dtype)
    triangle = (torch.tril if uplo == "L" else torch.triu)(a, -1 if uplo == "L" else 1)
    whole = triangle + triangle.mH + torch.diag_embed(a.diagonal(0, -2, -1).real).to(dtype)
    values, vectors = lowered(aten._linalg_eigh.default, a, uplo)
    near(values, torch.linalg.eigvalsh(whole))
    near(whole @ vectors, vectors * values[..., None, :])
    orthonormal(vectors)
    assert lowered(aten._linalg_eigh.default, a, uplo, False)[1].numel() == 0


def test_eigh_of_equal_eigenvalues() -> None:
    q = torch.linalg.qr(matrix(5, 5, dtype=torch.float64))[0]
    a = q @ torch.diag(torch.tensor([1.0, 1, 1, 2, 2], dtype=torch.float64)) @ q.T
    values, vectors = lowered(aten._linalg_eigh.default, a)
    torch.testing.assert_close(values, torch.tensor([1.0, 1, 1, 2, 2], dtype=torch.float64))
    torch.testing.assert_close(a @ vectors, vectors * values, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "full"),
    [((5, 3), torch.float32, True), ((3, 5), torch.complex64, False), ((2, 4, 3), torch.complex128, True),
     ((3, 4), torch.float64, True)],
)  # fmt: skip
def test_svd(shape: tuple[int, ...], dtype: torch.dtype, full: bool) -> None:
    a = matrix(*shape, dtype=dtype)
    u, s, vh = lowered(aten._linalg_svd.default, a, full)
    k = s.shape[-1]
    near(s, torch.linalg.svdvals(a))
    near((u[..., :k] * s[..., None, :].to(dtype)) @ vh[..., :k, :], a)
    orthonormal(u)
    orthonormal(vh.mH)


def test_singular_values_alone() -> None:
    u, s, vh = lowered(aten._linalg_svd.default, matrix(4, 3), False, False)
    near(s, torch.linalg.svdvals(matrix(4, 3)))
    assert u.numel() == vh.numel() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_svd_of_low_rank(rank: int, dtype: torch.dtype) -> None:
    a = matrix(6, rank, dtype=dtype) @ matrix(rank, 5, dtype=dtype)
    u, s, vh = lowered(aten._linalg_svd.default, a, True)
    near((u[:, :5] * s) @ vh, a)
    orthonormal(u)
    orthonormal(vh.mH)


@pytest.mark.parametrize("hermitian", [False, True])
def test_pinv(hermitian: bool) -> None:
    a = positive(4) if hermitian else matrix(2, 5, 3)
    check(aten.linalg_pinv.atol_rtol_tensor, a, hermitian=hermitian)
    check(
        aten.linalg_pinv.atol_rtol_tensor, a, atol=torch.tensor(1.5), rtol=torch.tensor([0.1, 0.5]), hermitian=hermitian
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exp(dtype: torch.dtype) -> None:
    for scale in (0.01, 1.0, 10.0):
        a = scale * matrix(2, 4, 4, dtype=dtype)
        got, expected = lowered(aten.linalg_matrix_exp.default, a), aten.linalg_matrix_exp(a)
        torch.testing.assert_close(got / expected.abs().max(), expected / expected.abs().max())


def test_matrix_exp_of_16_bits_is_that_of_float32() -> None:
    a = matrix(2, 4, 4).bfloat16()
    assert torch.equal(
        lowered(aten.linalg_matrix_exp.default, a), lowered(aten.linalg_matrix_exp.default, a.float()).bfloat16()
    )


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    a = torch.zeros(shape)
    for op in (aten.linalg_cholesky_ex, aten.linalg_lu_factor_ex, aten.linalg_lu, aten.linalg_inv_ex, aten._linalg_det,
               aten._linalg_slogdet, aten.linalg_qr, aten._linalg_eigh, aten._linalg_svd, aten.geqrf,
               aten.linalg_matrix_exp):  # fmt: skip
        check(op.default, a)
    check(aten._linalg_solve_ex.default, a, a)
    check(aten.linalg_solve_triangular.default, a, a, upper=True)
    check(aten._linalg_svd.default, torch.zeros(*shape[:-1], 2), True)
    check(aten.linalg_qr.default, torch.zeros(*shape[:-1], 2), "complete")


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd"])
def test_lstsq(driver: str) -> None:
    # Through the function: the shapes of what a driver gives are its own.
    a, b = matrix(2, 5, 3, dtype=torch.float64), matrix(2, 5, 2, dtype=torch.float64)
    with jax.enable_x64(True):
        got = linalg.lstsq(jnp.asarray(a.numpy()), jnp.asarray(b.numpy()), None, driver=driver)
    for g, e in zip(got, torch.linalg.lstsq(a, b, driver=driver), strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(g)), e, check_dtype=False)
