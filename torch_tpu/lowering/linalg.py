"""Matrix factorisations and what builds on them: solutions, inverses, determinants, eigenvalues, singular values.

Nothing here calls LAPACK: Cholesky, triangular solves, QR and eigenvalues are XLA's own, which every plugin has; LU and
the others are written with them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from . import dtypes
from ._jax import jax, jnp, lax
from .context import context, is_contiguous, out
from .registry import lowers

LU_BLOCK = 128


def _adjoint(a: Any) -> Any:
    a = a.swapaxes(-1, -2)
    return a.conj() if jnp.iscomplexobj(a) else a


def _matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _diagonal(a: Any) -> Any:
    return jnp.diagonal(a, axis1=-2, axis2=-1)


def _eye(n: int, like: Any) -> Any:
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (*like.shape[:-2], n, n))


def _real(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def _promised(*values: Any) -> tuple[Any, ...]:
    """The values in the shapes and dtypes promised; those not asked for are promised empty."""
    made = []
    for i, value in enumerate(values):
        shape, dtype = tuple(out(i).shape), dtypes.to_jax(out(i).dtype)
        empty = value is None or (math.prod(shape) == 0 and value.shape != shape)
        made.append(jnp.zeros(shape, dtype) if empty else value.reshape(shape).astype(dtype))
    return tuple(made)


def _broadcast(a: Any, b: Any) -> tuple[Any, Any]:
    """Both with the batch dimensions of both."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])


# Triangular solves.


def _solve_triangular(a: Any, b: Any, lower: bool, left: bool = True, adjoint: bool = False, unit: bool = False) -> Any:
    """x of op(a) x = b, or of x op(a) = b."""
    a, b = _broadcast(a, b)
    if b.size == 0 or a.size == 0:
        return jnp.zeros(b.shape, b.dtype)
    complex_adjoint = adjoint and jnp.iscomplexobj(a)
    solve = functools.partial(
        lax.linalg.triangular_solve,
        **{"left_side": left, "lower": lower, "transpose_a": adjoint, "conjugate_a": complex_adjoint},
        unit_diagonal=unit,
    )
    if b.ndim > 2 and context().emulated:
        # The CPU plugin dies where it gives the batched products of this a layout that suits a transposition of x.
        x = lax.map(lambda ab: solve(*ab), (a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])))
        return x.reshape(b.shape)
    return solve(a, b)


@lowers("aten::linalg_solve_triangular")
def linalg_solve_triangular(a: Any, b: Any, *, upper: bool, left: bool, unitriangular: bool) -> Any:
    return _solve_triangular(a, b, lower=not upper, left=left, unit=unitriangular)


@lowers("aten::triangular_solve")
def triangular_solve(b: Any, a: Any, upper: bool, transpose: bool, unitriangular: bool) -> tuple[Any, Any]:
    a, b = _broadcast(a, b)
    if transpose:
        return _solve_triangular(a.swapaxes(-1, -2), b, lower=upper, unit=unitriangular), a
    return _solve_triangular(a, b, lower=not upper, unit=unitriangular), a


# Cholesky.


def _first_bad_minor(a: Any) -> Any:
    """int32[...], the order of the first leading minor of a Hermitian matrix that is not positive, or 0."""

    def step(k: Any, state: Any) -> Any:
        a, info = state
        column = lax.dynamic_index_in_dim(a, k, a.ndim - 1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, column.ndim - 1, keepdims=False).real
        good = pivot > 0
        column = column / jnp.sqrt(jnp.where(good, pivot, 1))[..., None]
        a = a - column[..., :, None] * column.conj()[..., None, :]
        return a, jnp.where((info == 0) & ~good, (k + 1).astype(jnp.int32), info)

    start = _hermitian(a, True), jnp.zeros(a.shape[:-2], jnp.int32)
    return lax.fori_loop(0, a.shape[-1], step, start)[1]


@lowers("aten::linalg_cholesky_ex")
def cholesky_ex(a: Any, *, upper: bool, check_errors: bool) -> tuple[Any, Any]:
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-2], jnp.int32)
    a = _adjoint(a) if upper else a
    factor = jnp.tril(lax.linalg.cholesky(a, symmetrize_input=False))
    failed = jnp.isnan(factor).any()
    info = lax.cond(failed, _first_bad_minor, lambda a: jnp.zeros(a.shape[:-2], jnp.int32), a)
    return _adjoint(factor) if upper else factor, info


@lowers("aten::cholesky")
def cholesky(a: Any, upper: bool) -> Any:
    return cholesky_ex(a, upper=upper, check_errors=False)[0]


@lowers("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(b: Any, factor: Any, upper: bool) -> Any:
    first = _solve_triangular(factor, b, lower=not upper, adjoint=upper)
    return _solve_triangular(factor, first, lower=not upper, adjoint=not upper)


@lowers("aten::cholesky_inverse")
def cholesky_inverse(factor: Any, upper: bool) -> Any:
    return cholesky_solve(_eye(factor.shape[-1], factor), factor, upper)


# LU with partial pivoting: a = P L U, the factors in one matrix, row k having been swapped with row pivots[k] - 1.


def _swap_rows(x: Any, k: Any, p: Any) -> Any:
    """x[..., rows, cols] with row k and row p[...] swapped."""
    at = jnp.arange(x.shape[-2])[:, None]
    p = p[..., None, None]
    row_k = lax.dynamic_slice_in_dim(x, k, 1, x.ndim - 2)
    row_p = jnp.take_along_axis(x, p, -2)
    return jnp.where(at == k, row_p, jnp.where(at == p, row_k, x))


def _magnitude(x: Any) -> Any:
    """What LAPACK compares pivots by."""
    return abs(x.real) + abs(x.imag) if jnp.iscomplexobj(x) else abs(x)


def _lu_panel(a: Any, pivot: bool) -> tuple[Any, Any, Any]:
    """(factors, pivots from 0, order of rows) of a panel [..., rows, cols], column by column."""
    rows, cols = a.shape[-2:]
    steps, batch = min(rows, cols), a.shape[:-2]
    row, col = jnp.arange(rows, dtype=jnp.int32), jnp.arange(cols, dtype=jnp.int32)

    def step(k: Any, state: Any) -> Any:
        a, pivots, order = state
        if pivot:
            size = _magnitude(lax.dynamic_index_in_dim(a, k, a.ndim - 1, keepdims=False))
            p = jnp.argmax(jnp.where(row >= k, size, -1), -1).astype(jnp.int32)
            a, order = _swap_rows(a, k, p), _swap_rows(order[..., None], k, p)[..., 0]
            pivots = jnp.where(jnp.arange(steps) == k, p[..., None], pivots)
        top = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
        column = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
        value = lax.dynamic_slice_in_dim(top, k, 1, a.ndim - 1)
        below = (row > k)[:, None]
        column = jnp.where(below & (value != 0), column / jnp.where(value == 0, 1, value), column)
        a = jnp.where(col == k, column, a - jnp.where(below & (col > k), column * top, 0))
        return a, pivots, order

    pivots = jnp.broadcast_to(jnp.arange(steps, dtype=jnp.int32), (*batch, steps))
    return lax.fori_loop(0, steps, step, (a, pivots, jnp.broadcast_to(row, (*batch, rows))))


def _lu(a: Any, pivot: bool = True) -> tuple[Any, Any, Any, Any]:
    """(factors, pivots from 1, order of a's rows in P^-1 a, place of the first zero pivot or 0), block by block."""
    rows, cols = a.shape[-2:]
    steps, batch = min(rows, cols), a.shape[:-2]
    order = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*batch, rows))
    if a.size == 0:
        return a, order[..., :steps] + 1, order, jnp.zeros(batch, jnp.int32)
    pivots = []
    block = max(LU_BLOCK, steps // 16)
    for j in range(0, steps, block):
        end = min(j + block, steps)
        panel, swaps, moved = _lu_panel(a[..., j:, j:end], pivot)
        pivots.append(swaps + j)
        if pivot:
            order = order.at[..., j:].set(jnp.take_along_axis(order[..., j:], moved, -1))
            a = a.at[..., j:, :].set(jnp.take_along_axis(a[..., j:, :], moved[..., None], -2))
        a = a.at[..., j:, j:end].set(panel)
        if end < cols:
            right = _solve_triangular(panel[..., : end - j, :], a[..., j:end, end:], lower=True, unit=True)
            a = a.at[..., j:end, end:].set(right)
            if end < rows:
                a = a.at[..., end:, end:].add(-_matmul(panel[..., end - j :, :], right))
    zero = _diagonal(a) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0)
    return a, jnp.concatenate(pivots, -1) + 1, order, info.astype(jnp.int32)


def _order(pivots: Any, rows: int) -> Any:
    """The order of rows that successive swaps with `pivots` (from 1) give."""

    def step(k: Any, order: Any) -> Any:
        p = lax.dynamic_index_in_dim(pivots, k, pivots.ndim - 1, keepdims=False) - 1
        return _swap_rows(order[..., None], k, p)[..., 0]

    order = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.fori_loop(0, pivots.shape[-1], step, order) if rows else order


def _lu_solve(factors: Any, order: Any, b: Any, left: bool, adjoint: bool) -> Any:
    """x of op(a) x = b or x op(a) = b, from a's factors and order of rows."""
    if not left:
        return _adjoint(_lu_solve(factors, order, _adjoint(b), True, not adjoint))
    factors, b = _broadcast(factors, b)
    if b.size == 0:
        return b
    order = jnp.broadcast_to(order, factors.shape[:-1])
    if not adjoint:
        b = jnp.take_along_axis(b, order[..., None], -2)
        return _solve_triangular(factors, _solve_triangular(factors, b, lower=True, unit=True), lower=False)
    x = _solve_triangular(factors, b, lower=False, adjoint=True)
    x = _solve_triangular(factors, x, lower=True, adjoint=True, unit=True)
    return jnp.take_along_axis(x, jnp.argsort(order, -1)[..., None], -2)


@lowers("aten::linalg_lu_factor_ex")
def lu_factor_ex(a: Any, *, pivot: bool, check_errors: bool) -> tuple[Any, Any, Any]:
    factors, pivots, _, info = _lu(a, pivot)
    return factors, pivots, info


def _unpack(factors: Any, order: Any) -> tuple[Any, Any, Any]:
    rows, cols = factors.shape[-2:]
    k = min(rows, cols)
    lower = jnp.tril(factors[..., :, :k], -1) + jnp.eye(rows, k, dtype=factors.dtype)
    # Row i of P^-1 a is row order[i] of a.
    p = (jnp.arange(rows)[:, None] == order[..., None, :]).astype(factors.dtype)
    return p, lower, jnp.triu(factors[..., :k, :])


@lowers("aten::linalg_lu")
def lu(a: Any, *, pivot: bool) -> tuple[Any, Any, Any]:
    factors, _, order, _ = _lu(a, pivot)
    return _promised(*_unpack(factors, order))


@lowers("aten::lu_unpack")
def lu_unpack(factors: Any, pivots: Any, unpack_data: bool, unpack_pivots: bool) -> tuple[Any, Any, Any]:
    p, lower, upper = _unpack(factors, _order(pivots, factors.shape[-2]))
    return _promised(p if unpack_pivots else None, *((lower, upper) if unpack_data else (None, None)))


@lowers("aten::linalg_lu_solve")
def lu_solve(factors: Any, pivots: Any, b: Any, *, left: bool, adjoint: bool) -> Any:
    return _lu_solve(factors, _order(pivots, factors.shape[-1]), b, left, adjoint)


@lowers("aten::_linalg_solve_ex")
def solve_ex(a: Any, b: Any, *, left: bool, check_errors: bool) -> tuple[Any, ...]:
    """(solution, LU factors, pivots, info)."""
    factors, pivots, order, info = _lu(a)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    value = _lu_solve(factors, order, b[..., None] if vector else b, left or vector, False)
    return _promised(value, factors, pivots, info)


@lowers("aten::linalg_inv_ex")
def inv_ex(a: Any, *, check_errors: bool) -> tuple[Any, Any]:
    factors, _, order, info = _lu(a)
    return _lu_solve(factors, order, _eye(a.shape[-1], a), True, False), info


def _parity(pivots: Any) -> Any:
    """1 or -1, as the number of swaps is even or odd."""
    swaps = (pivots != jnp.arange(1, pivots.shape[-1] + 1)).sum(-1)
    return 1 - 2 * (swaps % 2)


def _det_factors(a: Any) -> tuple[Any, Any]:
    """Factors and pivots of a, or of its transpose where the gradients of determinants take them to be that."""
    transposed = is_contiguous(0) and not jnp.iscomplexobj(a)
    return _lu(a.swapaxes(-1, -2) if transposed else a)[:2]


@lowers("aten::_linalg_det")
def det(a: Any) -> tuple[Any, Any, Any]:
    factors, pivots = _det_factors(a)
    diagonal = _diagonal(factors)
    return diagonal.prod(-1) * _parity(pivots).astype(a.dtype), factors, pivots


@lowers("aten::_linalg_slogdet")
def slogdet(a: Any) -> tuple[Any, Any, Any, Any]:
    factors, pivots = _det_factors(a)
    diagonal = _diagonal(factors)
    sign = jnp.sign(diagonal).prod(-1) * _parity(pivots).astype(a.dtype)
    return sign, jnp.log(abs(diagonal)).sum(-1), factors, pivots


# QR: a = Q R by Householder reflections.


@lowers("aten::linalg_qr")
def qr(a: Any, mode: str) -> tuple[Any, Any]:
    rows, cols = a.shape[-2:]
    if a.size == 0:
        k = rows if mode == "complete" else min(rows, cols)
        q = jnp.broadcast_to(jnp.eye(rows, k, dtype=a.dtype), (*a.shape[:-2], rows, k))
        return _promised(None if mode == "r" else q, jnp.zeros((*a.shape[:-2], k, cols), a.dtype))
    q, r = lax.linalg.qr(a, full_matrices=mode == "complete")
    return _promised(None if mode == "r" else q, r)


@lowers("aten::geqrf")
def geqrf(a: Any) -> tuple[Any, Any]:
    """(R, and below it the reflections 1 - tau v v^H but for v's leading 1; tau)."""
    rows, cols = a.shape[-2:]
    row, col = jnp.arange(rows), jnp.arange(cols)
    steps = min(rows, cols)

    def step(k: Any, state: Any) -> Any:
        a, taus = state
        column = lax.dynamic_index_in_dim(a, k, a.ndim - 1, keepdims=False)
        head = lax.dynamic_slice_in_dim(column, k, 1, column.ndim - 1)
        tail = jnp.where(row > k, column, 0)
        rest = (abs(tail) ** 2).sum(-1, keepdims=True)
        flat = (rest == 0) & (head.imag == 0)
        norm = jnp.sqrt(abs(head) ** 2 + rest)
        beta = jnp.where(head.real > 0, -norm, norm)
        beta = jnp.where(flat, head.real, beta)
        tau = jnp.where(flat, 0, (beta - head) / jnp.where(flat, 1, beta))
        v = jnp.where(row == k, 1, tail / jnp.where(flat, 1, head - beta))
        v = jnp.where(row >= k, v, 0)[..., None]
        a = jnp.where(col >= k, a - (tau.conj()[..., None] * v) * _matmul(_adjoint(v), a), a)
        a = jnp.where((col == k) & (row > k)[:, None], v, a)
        return a, jnp.where(jnp.arange(steps) == k, tau, taus)

    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], steps), a.dtype)
    return lax.fori_loop(0, steps, step, (a, jnp.zeros((*a.shape[:-2], steps), a.dtype)))


@lowers("aten::linalg_householder_product")
def householder_product(a: Any, tau: Any) -> Any:
    if a.size == 0 or tau.size == 0:
        return jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    return lax.linalg.householder_product(a, tau)


@lowers("aten::ormqr")
def ormqr(a: Any, tau: Any, other: Any, left: bool, transpose: bool) -> Any:
    rows, cols = a.shape[-2:]
    if other.size == 0:
        return other
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, rows - cols)]) if cols < rows else a[..., :rows]
    q = householder_product(a, tau)
    q = _adjoint(q) if transpose else q
    return _matmul(q, other) if left else _matmul(other, q)


# Eigenvalues and singular values.


def _hermitian(a: Any, lower: bool) -> Any:
    """The Hermitian matrix of which a has one triangle."""
    strict = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    diagonal = _diagonal(a).real.astype(a.dtype)
    return strict + _adjoint(strict) + diagonal[..., None] * jnp.eye(a.shape[-1], dtype=a.dtype)


def _eigh(a: Any) -> tuple[Any, Any]:
    """(ascending eigenvalues, eigenvectors) of a Hermitian matrix."""
    vectors, values = lax.linalg.eigh(a, symmetrize_input=False)
    if _real(a.dtype) == jnp.float64:
        # XLA's vectors are good to about 1e-7; each step squares that.
        for _ in range(2):
            values, vectors = _refined(a, vectors)
    return values, vectors


def _refined(a: Any, v: Any) -> tuple[Any, Any]:
    """One step of iterative refinement of eigenvectors (Ogita and Aishima 2018); close eigenvalues stay mixed."""
    rotated, excess = _matmul(_adjoint(v), _matmul(a, v)), _eye(v.shape[-1], v) - _matmul(_adjoint(v), v)
    values = (_diagonal(rotated) / (1 - _diagonal(excess))).real
    gap = values[..., None, :] - values[..., :, None]
    slope = rotated + values[..., None, :] * excess
    noise = 64 * jnp.finfo(values.dtype).eps * abs(values).max(-1)[..., None, None]
    apart = (abs(slope) < 0.1 * abs(gap)) & (abs(gap) > noise)
    return values, v + _matmul(v, jnp.where(apart, slope / jnp.where(apart, gap, 1), excess / 2))


@lowers("aten::_linalg_eigh")
def eigh(a: Any, uplo: str, compute_v: bool) -> tuple[Any, Any]:
    if a.size == 0:
        return _promised(jnp.zeros(a.shape[:-1]), a)
    values, vectors = _eigh(_hermitian(a, uplo.upper() == "L"))
    return _promised(values, vectors if compute_v else None)


def _svd(a: Any, full: bool) -> tuple[Any, Any, Any]:
    rows, cols = a.shape[-2:]
    if a.size == 0:
        k = min(rows, cols)
        u, vh = (_eye(n, a) for n in (rows, cols))
        return (
            u if full else u[..., :k],
            jnp.zeros((*a.shape[:-2], k), _real(a.dtype)),
            vh if full else vh[..., :k, :],
        )
    if rows < cols:
        u, s, vh = _svd(_adjoint(a), full)
        return _adjoint(vh), s, _adjoint(u)
    return _svd_tall(a, full)


def _svd_tall(a: Any, full: bool) -> tuple[Any, Any, Any]:
    """By the polar decomposition and the eigenvectors of its Hermitian factor. JAX's own rule is the same, but for some
    shapes multiplies floating-point by int64 matrices when 64-bit types are on, which doesn't compile for TPUs."""
    cols = a.shape[-1]
    q, r = lax.linalg.qr(a, full_matrices=False)
    flat = r.reshape(-1, cols, cols)
    unitary, hermitian = (x.reshape(r.shape) for x in jax.vmap(lambda x: lax.linalg.qdwh(x)[:2])(flat))
    values, v = (jnp.flip(x, -1) for x in _eigh(hermitian))
    u = _matmul(_matmul(q, unitary), v)
    # Vectors of singular values that are 0 are not orthonormal yet; QR keeps the others up to their phase.
    basis, upper = lax.linalg.qr(u, full_matrices=full)
    scale = abs(_diagonal(upper))
    phase = jnp.where(scale == 0, 1, _diagonal(upper) / jnp.where(scale == 0, 1, scale))
    u = basis.at[..., :cols].multiply(phase[..., None, :])
    return u, abs(values), _adjoint(v)


@lowers("aten::_linalg_svd")
def svd(a: Any, full_matrices: bool, compute_uv: bool, *, driver: str | None) -> tuple[Any, Any, Any]:
    if compute_uv or a.size == 0:
        u, s, vh = _svd(a, full_matrices)
        return _promised(*((u, s, vh) if compute_uv else (None, s, None)))
    s = _svd(a, False)[1] if _real(a.dtype) == jnp.float64 else lax.linalg.svd(a, compute_uv=False)
    return _promised(None, s, None)


@lowers("aten::linalg_pinv.atol_rtol_tensor")
def pinv(a: Any, *, atol: Any, rtol: Any, hermitian: bool) -> Any:
    if a.size == 0:
        return jnp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    if hermitian:
        values, u = _eigh(_hermitian(a, True))
        s, vh = abs(values), _adjoint(u)
    else:
        u, s, vh = _svd(a, False)
        values = s
    absolute = jnp.zeros((), s.dtype) if atol is None else atol.astype(s.dtype)
    if rtol is None:
        rtol = jnp.where(absolute > 0, 0.0, float(jnp.finfo(s.dtype).eps) * max(a.shape[-2:]))
    cutoff = jnp.maximum(absolute[..., None], rtol[..., None].astype(s.dtype) * s.max(-1, keepdims=True))
    return _matmul(_adjoint(vh), _inverse(values, s > cutoff).astype(a.dtype) * _adjoint(u))


def _inverse(values: Any, kept: Any) -> Any:
    """[..., n, 1] of inverses, 0 for the values not kept."""
    return jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[..., None]


@lowers("aten::linalg_lstsq")
def lstsq(a: Any, b: Any, rcond: float | None, *, driver: str | None) -> tuple[Any, Any, Any, Any]:
    """(solution of least norm, residuals, rank, singular values), by the singular values whatever the driver.

    What a driver does not give has no elements: gels the rank, gelsy the residuals, either the singular values.
    """
    rows, cols = a.shape[-2:]
    vector = a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]
    a, rhs = _broadcast(a, b[..., None] if vector else b)
    u, s, vh = _svd(a, False)
    if rcond is None:
        rcond = float(jnp.finfo(a.dtype).eps) * max(rows, cols)
    kept = s > rcond * s.max(-1, initial=0, keepdims=True)
    x = _matmul(_adjoint(vh), _inverse(s, kept).astype(a.dtype) * _matmul(_adjoint(u), rhs))
    driver = driver or "gelsy"
    residuals, rank, values = jnp.zeros(0, s.dtype), jnp.zeros(0, jnp.int64), jnp.zeros(0, s.dtype)
    if rows > cols and driver != "gelsy":
        residuals = jnp.square(abs(rhs - _matmul(a, x))).sum(-2)
    if driver != "gels":
        rank = kept.sum(-1, dtype=jnp.int64)
    if driver in ("gelsd", "gelss"):
        values = s
    return x[..., 0] if vector else x, residuals, rank, values


# The matrix exponential.


@lowers("aten::linalg_matrix_exp")
def matrix_exp(a: Any) -> Any:
    """The Taylor polynomial of degree 18 of a / 2^k, squared k times."""
    if a.size == 0:
        return a
    dtype = a.dtype
    a = a.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(dtype))))
    norm = abs(a).sum(-2).max(-1)
    halvings = jnp.ceil(jnp.log2(jnp.maximum(norm / 1.09, 1))).astype(jnp.int32)[..., None, None]
    halvings = jnp.where(jnp.isfinite(norm)[..., None, None], halvings, 0)
    scaled = a * jnp.exp2(-halvings.astype(_real(a.dtype)))
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    degree = 18

    def term(i: Any, value: Any) -> Any:
        return eye + _matmul(scaled, value) / (degree - i).astype(_real(a.dtype))

    def square(i: Any, value: Any) -> Any:
        return jnp.where(i < halvings, _matmul(value, value), value)

    value = lax.fori_loop(0, degree, term, jnp.broadcast_to(eye, a.shape))
    return lax.fori_loop(0, halvings.max(), square, value).astype(dtype)
