"""Operands and results whose number of rows is only known at run time.

A buffer of such a tensor has more rows (dimension 0) than the tensor: the first n are its own, what follows is padding
and may hold anything. `context().rows` is n and `context().row_operands` are the operands padded so; a lowering
declared with rows="masked" keeps the padding from what it computes:

    @lowers("aten::sum", rows="masked")
    def sum_(x): return mask_rows(x, 0).sum()

It names its padded results with `pads_rows()`. What can't be done on padded rows raises `Specialise`: the op is then
lowered on operands cut to their true size, which costs a program per size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._jax import jnp, lax
from .context import context


class Specialise(Exception):
    """This call needs operands of their true size."""


class Compacted(NamedTuple):
    """The results of an op whose output size depends on values.

    outputs: arrays. counts: for each, a 0-d int32, how many rows are valid, or None where the size is static.
    dim: where dimension 0 of the first output belongs in the op's result, which is `rows.movedim(0, dim)`.
    """

    outputs: tuple[Any, ...]
    counts: tuple[Any, ...]
    dim: int = 0


def admit(kind: str | None, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Raise `Specialise` unless a rule of this kind (`Rule.rows`) takes these operands.

    A pointwise one does where the padded operands give all results their rows and the others are broadcast along them.
    """
    if context().rows is None or not any(is_padded(x) for x in operands):
        return
    if kind == "any":
        return
    if kind is None or any(row_dim(x) for x in operands):
        raise Specialise
    if kind == "pointwise":
        rows, rank = outs[0].shape[:1], outs[0].ndim
        whole = [x for x in operands if is_padded(x) and x.ndim == rank and x.shape[:1] == rows]
        broadcast = [x for x in operands if not is_padded(x) and (x.ndim < rank or x.shape[0] == 1)]
        if len(whole) + len(broadcast) < len(operands) or any(o.shape[:1] != rows for o in outs):
            raise Specialise
        context().row_outputs.update(range(len(outs)))


def is_padded(x: Any) -> bool:
    """True if the operand `x` has rows of padding."""
    return context().rows is not None and any(x is operand for operand in context().row_operands)


def row_dim(x: Any) -> int | None:
    """The padded dimension of an operand, None if it is of its true size."""
    pairs = zip(context().row_operands, context().row_dims, strict=True)
    return next((d for operand, d in pairs if operand is x), None) if context().rows is not None else None


def valid(length: int) -> Any:
    """bool[length]: which rows of a padded operand are its own."""
    return lax.iota(jnp.int32, length) < context().rows


def mask_rows(x: Any, fill: Any, of: Any = None) -> Any:
    """x with `fill` in the padding; x itself if it isn't padded.

    of: the operand that x was computed from, row by row, where x isn't one itself.
    """
    if not is_padded(x if of is None else of):
        return x
    shaped = lax.broadcast_in_dim(valid(x.shape[0]), x.shape, (0,))
    return lax.select(shaped, x, jnp.full(x.shape, fill, x.dtype))


def reducing(x: Any, dims: Sequence[int], neutral: Any, of: Any = None) -> Any:
    """x about to be reduced over `dims`: with `neutral` in the padding, or else with results padded as x is."""
    if 0 in dims:
        return mask_rows(x, neutral, of)
    if is_padded(x if of is None else of):
        pads_rows()
    return x


def each_row(dims: Sequence[int], *operands: Any) -> None:
    """The op treats each row for itself, its results padded. `Specialise` if it works along dimension 0."""
    if any(is_padded(x) for x in operands):
        if 0 in dims or not all(is_padded(x) for x in operands):
            raise Specialise
        pads_rows()


def rows_of(x: Any, *others: Any) -> None:
    """Row i of each result comes from row i of x and from all of the other operands."""
    needs_exact(*others)
    each_row((), x)


def count(x: Any, dims: Sequence[int]) -> Any:
    """How many elements of x a reduction over `dims` sees: an int, or a 0-d int32 if x is padded along them."""
    static = math.prod(x.shape[d] for d in dims if d or not is_padded(x))
    return static * context().rows if 0 in dims and is_padded(x) else static


def pads_rows(*outputs: int) -> None:
    """Declare that dimension 0 of these results (all, if none are named) is padded as the padded operands are."""
    context().row_outputs.update(outputs or range(len(context().outs)))


def needs_exact(*operands: Any) -> None:
    """Raise `Specialise` if one of these operands is padded."""
    if any(is_padded(x) for x in operands):
        raise Specialise
