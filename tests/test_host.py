"""Ops that run on the host: results, gradients, `out=` and errors as on the CPU, and none counts as a fallback."""

from __future__ import annotations

from typing import Any

import torch
from parity import gradients, on_both

Tensor = torch.Tensor
A = torch.tensor([[[1.0, 2, 0], [-3, 1, 1], [0, 2, 5]], [[2, 1, 0], [1, 3, 1], [0, 1, -4]]])
SYMMETRIC = A + A.mT


def test_eigenvalues_of_general_matrices() -> None:
    on_both(torch.linalg.eigvals, A)
    on_both(lambda a: torch.linalg.eigvals(a, out=torch.empty(0, dtype=torch.complex64, device=a.device)), A)
    on_both(torch.func.vmap(torch.linalg.eigvals), A)
    on_both(gradients(lambda a: torch.linalg.eigvals(a).abs()), A.clone().requires_grad_())
    assert torch.tpu.cpu_fallbacks() == {}


def test_eigenvectors_of_general_matrices() -> None:
    def run(a: Tensor) -> Any:
        values, vectors = torch.linalg.eig(a)
        outs = torch.empty_like(values), torch.empty_like(vectors)
        again = torch.linalg.eig(a, out=outs)
        assert again[0] is outs[0]
        return values, vectors, outs, a.to(values.dtype) @ vectors - vectors * values[:, None]

    on_both(run, A, atol=1e-5, rtol=1e-5)


def test_ldl_factors() -> None:
    def run(a: Tensor) -> Any:
        factors, pivots, info = torch.linalg.ldl_factor_ex(a)
        return factors, pivots, info, torch.linalg.ldl_solve(factors, pivots, a[:, :, :2])

    on_both(run, SYMMETRIC, atol=1e-5, rtol=1e-5)


def test_errors_of_host_ops() -> None:
    on_both(torch.linalg.eig, A[0, 0])
    on_both(lambda a: torch.linalg.eigvals(a, out=torch.empty(0, device=a.device)), A)
    on_both(torch.linalg.ldl_factor, A[0, :2])
