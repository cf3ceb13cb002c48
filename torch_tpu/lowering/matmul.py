"""Matrix products: dense, batched, integer, scaled and grouped, and their sums with a third operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import dtypes
from ._jax import jnp, lax
from .context import context, out, precision
from .registry import lowers
from .rows import each_row, is_padded, needs_exact, rows_of

GROUP_TILE = 128


def product(a: Any, b: Any) -> Any:
    """a[..., m, k] @ b[..., k, n] with equal batch dimensions, in the type it is accumulated in."""
    if a.dtype.kind in "iub" and a.dtype.itemsize == 8:
        # The TPU has no 64-bit integer dot.
        return (a[..., :, :, None] * b[..., None, :, :]).sum(-2, dtype=a.dtype)
    a, b = factors(a, b)
    batch = tuple(range(a.ndim - 2))
    dims = (((a.ndim - 1,), (a.ndim - 2,)), (batch, batch))
    return lax.dot_general(a, b, dims, precision=precision(a, b), preferred_element_type=accumulator(a.dtype))


def _matrices(a: Any, b: Any, at: int) -> Any:
    """product(a, b) of matrices, of which b is the op's argument number `at`.

    The CPU plugin packs a transposed second operand, as is every Linear's weight, element by element, which costs as
    much as the product itself. Where b is the largest of the three, b.T @ a.T, transposed, takes half the time.
    """
    (m, k), n, ins = a.shape, b.shape[1], context().ins
    b_as_given = ins[at] if at < len(ins) else None  # a list in foreach ops
    is_transposed = isinstance(b_as_given, torch.Tensor) and b_as_given.stride() == (1, k) and a.dtype == jnp.float32
    if context().emulated and is_transposed and n * k > m * (n + k):
        # XLA would undo what it sees through.
        return lax.optimization_barrier(product(b.T, a.T)).T
    return product(a, b)


def factors(*operands: Any) -> Sequence[Any]:
    """Operands of a product. The CPU plugin fails at some of 16 bits, once other work is fused into them."""
    if not context().emulated:
        return operands
    return [x.astype(accumulator(x.dtype)) if x.dtype in (jnp.bfloat16, jnp.float16) else x for x in operands]


def accumulator(dtype: Any) -> Any:
    """The type sums of products of `dtype` are kept in."""
    if dtype.kind in "iub":
        return dtype if dtype.itemsize > 4 else jnp.int32
    return dtypes.to_jax(dtypes.opmath(dtypes.to_torch(dtype)))


def _add(x: Any, value: Any, beta: Any, alpha: Any) -> Any:
    """beta * x + alpha * value in the promised dtype; with beta=0, x is not read, not even its NaN."""
    if alpha != 1:
        value = jnp.asarray(alpha, value.dtype) * value
    if beta != 0:
        x = x.astype(value.dtype)
        value = value + (x if beta == 1 else jnp.asarray(beta, x.dtype) * x)
    return value.astype(dtypes.to_jax(out().dtype))


def _rows(a: Any, b: Any) -> None:
    """Padded rows of a give padded rows; so do matrices of a padded batch."""
    if a.ndim == 3:
        each_row((), a, b)
    else:
        rows_of(a, b)


@lowers("aten::mm", "aten::mm.dtype", "aten::bmm", "aten::bmm.dtype", rows="masked")
def mm(a: Any, b: Any, out_dtype: Any = None) -> Any:
    _rows(a, b)
    value = _matrices(a, b, 1) if a.ndim == 2 else product(a, b)
    return value.astype(dtypes.to_jax(out().dtype))


@lowers("aten::addmm", "aten::baddbmm", rows="masked")
def addmm(x: Any, a: Any, b: Any, *, beta: Any, alpha: Any) -> Any:
    if is_padded(x) or (x.ndim == a.ndim and x.shape[0] != 1):
        needs_exact(a, b, x)
    _rows(a, b)
    return _add(x, _matrices(a, b, 2) if a.ndim == 2 else product(a, b), beta, alpha)


@lowers("aten::addmm.dtype", "aten::baddbmm.dtype")
def addmm_dtype(x: Any, a: Any, b: Any, out_dtype: torch.dtype, *, beta: Any, alpha: Any) -> Any:
    return _add(x, product(a, b), beta, alpha)


@lowers("aten::addbmm")
def addbmm(x: Any, a: Any, b: Any, *, beta: Any, alpha: Any) -> Any:
    batch, m, k = a.shape
    a = a.transpose(1, 0, 2).reshape(m, batch * k)
    return _add(x, product(a, b.reshape(batch * k, b.shape[2])), beta, alpha)


@lowers("aten::addmv")
def addmv(x: Any, a: Any, v: Any, *, beta: Any, alpha: Any) -> Any:
    return _add(x, product(a, v[:, None])[:, 0], beta, alpha)


@lowers("aten::mv")
def mv(a: Any, v: Any) -> Any:
    return product(a, v[:, None])[:, 0].astype(a.dtype)


@lowers("aten::dot")
def dot(a: Any, b: Any) -> Any:
    return product(a[None], b[:, None])[0, 0].astype(a.dtype)


@lowers("aten::vdot")
def vdot(a: Any, b: Any) -> Any:
    return dot(a.conj(), b)


@lowers("aten::_int_mm")
def int_mm(a: Any, b: Any) -> Any:
    return product(a, b)


@lowers("aten::_weight_int8pack_mm")
def weight_int8pack_mm(x: Any, weight: Any, scales: Any) -> Any:
    return (product(x, weight.T.astype(x.dtype)) * scales).astype(x.dtype)


@lowers("aten::_scaled_mm")
def scaled_mm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, scale_result: Any, out_dtype: Any, use_fast_accum: bool
) -> Any:
    for scale, shape in ((scale_a, (a.shape[0], 1)), (scale_b, (1, b.shape[1]))):
        if scale.size != 1 and scale.shape != shape:
            raise NotImplementedError("_scaled_mm on device 'tpu' takes one scale a tensor or one a row, not blocks")
    value = product(a, b) * (scale_a.reshape(scale_a.shape or (1, 1)) * scale_b)
    if bias is not None:
        value = value + bias.astype(value.dtype)
    dtype = dtypes.to_jax(out().dtype)
    if scale_result is not None and dtype.itemsize == 1:
        value = value * scale_result
    return value.reshape(out().shape).astype(dtype)


@lowers("aten::_trilinear")
def trilinear(
    a: Any, b: Any, c: Any, expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int], unroll: int
) -> Any:
    """The sum over `sumdim` of the product of three operands, each lacking the dimensions of its `expand`."""
    rank = a.ndim + len(expand1)
    present = [[i for i in range(rank) if i not in e] for e in (expand1, expand2, expand3)]
    kept = [i for i in range(rank) if i not in sumdim]
    kind = accumulator(a.dtype)
    operands = [x for pair in zip(factors(a, b, c), present, strict=True) for x in pair]
    return jnp.einsum(*operands, kept, precision=precision(a, b, c), preferred_element_type=kind).astype(a.dtype)


@lowers("aten::_grouped_mm")
def grouped_mm(a: Any, b: Any, offs: Any, bias: Any, out_dtype: Any) -> Any:
    """Products of groups that end at `offs` along the rows of a, the columns of b, or the dimension they share."""
    if a.ndim == 3 and b.ndim == 3:
        value = product(a, b)
    elif a.ndim == 2 and b.ndim == 3:
        value = _grouped_rows(a, b, offs)
    elif a.ndim == 3:
        value = _grouped_rows(b.T, a.swapaxes(1, 2), offs).T
    else:
        value = _grouped_contraction(a.T, b, offs)
    if bias is not None:
        value = value + bias
    return value.astype(a.dtype if out_dtype is None else dtypes.to_jax(out_dtype))


def _tiles(rows: int, offs: Any) -> tuple[Any, Any, Any, int]:
    """Tiles that cover the groups, each in one of them: (group, first row, group's end) of each, and their rows."""
    tile = min(GROUP_TILE, max(rows, 1))
    ends = offs.astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    counts = -(-(ends - starts) // tile)
    before = jnp.cumsum(counts) - counts
    t = jnp.arange(rows // tile + ends.size, dtype=jnp.int32)
    group = jnp.minimum((t[:, None] >= (before + counts)[None]).sum(1, dtype=jnp.int32), ends.size - 1)
    first = starts[group] + (t - before[group]) * tile
    return group, jnp.minimum(first, rows), ends[group], tile


def _grouped_rows(a: Any, b: Any, offs: Any) -> Any:
    """Rows of a[m, k] in group g times b[g]; rows past the last group are 0."""
    m, n = a.shape[0], b.shape[2]
    group, first, end, tile = _tiles(m, offs)
    a = jnp.pad(a, ((0, tile), (0, 0)))

    def step(result: Any, t: Any) -> tuple[Any, None]:
        g, row, stop = t
        value = product(lax.dynamic_slice_in_dim(a, row, tile), lax.dynamic_index_in_dim(b, g, keepdims=False))
        mine = (row + jnp.arange(tile, dtype=jnp.int32) < stop)[:, None]
        value = jnp.where(mine, value, lax.dynamic_slice_in_dim(result, row, tile))
        return lax.dynamic_update_slice_in_dim(result, value, row, 0), None

    start = jnp.zeros((m + tile, n), accumulator(a.dtype))
    return lax.scan(step, start, (group, first, end))[0][:m]


def _grouped_contraction(a: Any, b: Any, offs: Any) -> Any:
    """a[rows of g].T @ b[rows of g] for each group g."""
    rows = a.shape[0]
    group, first, end, tile = _tiles(rows, offs)
    a, b = (jnp.pad(x, ((0, tile), (0, 0))) for x in (a, b))

    def step(result: Any, t: Any) -> tuple[Any, None]:
        g, row, stop = t
        mine = (row + jnp.arange(tile, dtype=jnp.int32) < stop)[:, None]
        x, y = (jnp.where(mine, lax.dynamic_slice_in_dim(z, row, tile), 0) for z in (a, b))
        value = lax.dynamic_index_in_dim(result, g) + product(x.T, y)[None]
        return lax.dynamic_update_slice_in_dim(result, value, g, 0), None

    start = jnp.zeros((offs.shape[0], a.shape[1], b.shape[1]), accumulator(a.dtype))
    return lax.scan(step, start, (group, first, end))[0]
