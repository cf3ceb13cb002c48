"""torch.nn.attention.flex_attention: attention whose scores a user's function changes and masks.

A tile of scores at a time, [queries of a block] x [keys of a block], over the blocks that the block mask names: the
memory is linear in the lengths of the sequences. The softmax is taken online (Rabe and Staats, Self-attention does not
need O(n^2) memory), and backward computes each tile again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from . import dtypes, interpret
from ._jax import jax, jnp, lax
from .context import out, precision
from .matmul import factors
from .registry import lowers, lowers_higher_order

# Rows and columns of a tile where the block mask has larger blocks, or none.
TILE = 512

# Shapes below: queries [B, H, L, E], keys [B or 1, K, S, E], values [B or 1, K, S, F], with G = H / K. Of a tile:
# scores [B, H, rows, columns]. `work` is the type that PyTorch computes scores in: float32, or float64 for float64.


@lowers_higher_order("flex_attention")
def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Any]:
    """Results, and to base 2 the logarithms of the sums of exponentials and the largest scores, of each query."""
    tiles = Tiles(query, key, value, block_mask, scale, mask_buffers)
    change = _on_scores(score_mod, tiles.work, score_buffers)

    def row(i: Any) -> tuple[Any, Any, Any]:
        q, rows = tiles.queries(query, i), tiles.rows(i)
        start = (
            jnp.full(q.shape[:3], -jnp.inf, tiles.work),
            jnp.zeros(q.shape[:3], tiles.work),
            jnp.zeros((*q.shape[:3], value.shape[-1]), tiles.work),
        )

        def column(j: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            largest, total, acc = state
            columns = tiles.columns(j)
            scores = change(tiles.scores(q, tiles.keys(key, j)), rows, columns)
            scores = jnp.where(tiles.mask(i, j), scores, -jnp.inf)
            new = jnp.maximum(largest, scores.max(-1))
            base = jnp.where(new == -jnp.inf, 0, new)
            weights, old = jnp.exp(scores - base[..., None]), jnp.exp(largest - base)
            part = tiles.product("bkgrc,bkcf->bkgrf", weights.astype(query.dtype), tiles.keys(value, j))
            return new, total * old + weights.sum(-1), acc * old[..., None] + part

        largest, total, acc = tiles.over_columns(i, column, start)
        result = acc / jnp.where(total == 0, 1, total)[..., None]
        return result, largest + jnp.log(total), largest

    result, lse, largest = (tiles.whole(x) for x in lax.map(row, jnp.arange(tiles.row_count)))
    values = result, lse / math.log(2), largest / math.log(2)
    return [x.astype(dtypes.to_jax(out(i).dtype)) for i, x in enumerate(values)]


@lowers_higher_order("flex_attention_backward")
def flex_attention_backward(
    query: Any,
    key: Any,
    value: Any,
    result: Any,
    lse: Any,
    grad_result: Any,
    grad_lse: Any,
    score_mod: GraphModule,
    joint: GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Any]:
    """Gradients of queries, keys and values, and of the tensors that `score_mod` captures."""
    tiles = Tiles(query, key, value, block_mask, scale, mask_buffers)
    change = _on_scores(score_mod, tiles.work, score_buffers)
    gradients = _on_scores(joint, tiles.work, score_buffers, gradients=True)
    lse = lse.astype(tiles.work) * math.log(2)
    grad_result = jnp.zeros_like(result) if grad_result is None else grad_result
    delta = (result.astype(tiles.work) * grad_result.astype(tiles.work)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse.astype(tiles.work) / math.log(2)

    def row(state: tuple[Any, ...], i: Any) -> tuple[tuple[Any, ...], Any]:
        q, grad, rows = tiles.queries(query, i), tiles.queries(grad_result, i), tiles.rows(i)
        row_lse, row_delta = tiles.queries(lse, i), tiles.queries(delta, i)

        def column(j: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            grad_q, grad_k, grad_v, grad_buffers = state
            columns, k, v = tiles.columns(j), tiles.keys(key, j), tiles.keys(value, j)
            scores, mask = tiles.scores(q, k), tiles.mask(i, j) & (row_lse != -jnp.inf)[..., None]
            weights = jnp.where(mask, jnp.exp(change(scores, rows, columns) - row_lse[..., None]), 0)
            grad_weights = tiles.product("bkgrf,bkcf->bkgrc", grad, v)
            grad_changed = weights * (grad_weights - row_delta[..., None])
            grad_scores, parts = gradients(scores, rows, columns, grad_changed)
            grad_scores = jnp.where(mask, grad_scores * scale, 0).astype(query.dtype)
            grad_q = grad_q + tiles.product("bkgrc,bkce->bkgre", grad_scores, k)
            grad_k = tiles.add(grad_k, j, "bkgrc,bkgre->bkce", grad_scores, q)
            grad_v = tiles.add(grad_v, j, "bkgrc,bkgrf->bkcf", weights.astype(query.dtype), grad)
            added = [a if p is None else a + p.astype(a.dtype) for a, p in zip(grad_buffers, parts, strict=True)]
            return grad_q, grad_k, grad_v, added

        grad_q, *state = tiles.over_columns(i, column, (jnp.zeros(q.shape, tiles.work), *state))
        return tuple(state), grad_q

    start = (tiles.zeros_like_keys(key), tiles.zeros_like_keys(value), [jnp.zeros_like(b) for b in score_buffers])
    (grad_k, grad_v, grad_buffers), grad_q = lax.scan(row, start, jnp.arange(tiles.row_count))
    grad_k, grad_v = (g[:, :, : key.shape[2]] for g in (grad_k, grad_v))
    grads = [tiles.whole(grad_q), grad_k, grad_v, *grad_buffers]
    return [x.astype(dtypes.to_jax(out(i).dtype)) for i, x in enumerate(grads)]


@dataclass
class Tiles:
    """The tiles of an attention: their operands, places and masks."""

    query: Any
    key: Any
    value: Any
    block_mask: Sequence[Any]
    scale: float
    mask_buffers: Sequence[Any]

    def __post_init__(self) -> None:
        *_, row_block, column_block, self.mask_mod = self.block_mask
        self.work = jnp.float64 if self.query.dtype == jnp.float64 else jnp.float32
        self.row_size, self.row_block = _tile(self.query.shape[2], row_block)
        self.column_size, self.column_block = _tile(self.key.shape[2], column_block)
        self.row_count = -(-self.query.shape[2] // self.row_size)
        self.column_count = -(-self.key.shape[2] // self.column_size)
        self.groups = self.query.shape[1] // self.key.shape[1]
        self._masked = _on_indices(self.mask_mod, self.mask_buffers)

    # -- operands

    def queries(self, x: Any, i: Any) -> Any:
        """The rows of tile row i of an array [B, H, L, ...], zeros past its end."""
        return lax.dynamic_slice_in_dim(_padded(x, self.row_size * self.row_count), i * self.row_size, self.row_size, 2)

    def keys(self, x: Any, j: Any) -> Any:
        """[B, K, columns, ...]: those of tile column j."""
        padded = _padded(x, self.column_size * self.column_count)
        part = lax.dynamic_slice_in_dim(padded, j * self.column_size, self.column_size, 2)
        return jnp.broadcast_to(part, (self.query.shape[0], *part.shape[1:]))

    def product(self, equation: str, a: Any, b: Any) -> Any:
        """A product whose operands with a "g" in the equation have heads [H], as its result has."""
        sides = equation.split("->")[0].split(",")
        operands = [self._grouped(x) if "g" in side else x for x, side in zip((a, b), sides, strict=True)]
        made = jnp.einsum(
            equation, *factors(*operands), precision=precision(*operands), preferred_element_type=self.work
        )
        return made.reshape(made.shape[0], -1, *made.shape[3:]) if "g" in equation.split("->")[1] else made

    def _grouped(self, x: Any) -> Any:
        return x.reshape(x.shape[0], -1, self.groups, *x.shape[2:])

    def scores(self, q: Any, k: Any) -> Any:
        """Scaled scores of a tile."""
        return self.product("bkgre,bkce->bkgrc", q, k) * self.scale

    def add(self, total: Any, j: Any, equation: str, a: Any, b: Any) -> Any:
        """`total`, a gradient of keys or values, with a tile's part added at tile column j."""
        part = self.product(equation, a, b)
        part = part.sum(0, keepdims=True) if total.shape[0] < part.shape[0] else part
        at = j * self.column_size
        part = part + lax.dynamic_slice_in_dim(total, at, self.column_size, 2)
        return lax.dynamic_update_slice_in_dim(total, part, at, 2)

    def zeros_like_keys(self, x: Any) -> Any:
        return jnp.zeros((*x.shape[:2], self.column_size * self.column_count, x.shape[3]), self.work)

    def whole(self, rows: Any) -> Any:
        """[tile rows, B, H, rows, ...] as [B, H, L, ...]."""
        joined = jnp.moveaxis(rows, 0, 2)
        return joined.reshape(*joined.shape[:2], -1, *joined.shape[4:])[:, :, : self.query.shape[2]]

    # -- places

    def rows(self, i: Any) -> Any:
        """Which queries the rows of tile row i are; the last one for those past the end."""
        return jnp.minimum(i * self.row_size + jnp.arange(self.row_size), self.query.shape[2] - 1).astype(jnp.int32)

    def columns(self, j: Any) -> Any:
        last = self.key.shape[2] - 1
        return jnp.minimum(j * self.column_size + jnp.arange(self.column_size), last).astype(jnp.int32)

    @cached_property
    def kinds(self) -> Any:
        """int8[B or 1, H or 1, block rows, block columns]: 0 for blocks left out, 1 where `mask_mod` says, 2 full."""
        _, _, counts, indices, full_counts, full_indices, *_ = self.block_mask
        kinds = _listed(counts, indices).astype(jnp.int8)
        if full_counts is not None:
            kinds = jnp.where(_listed(full_counts, full_indices), np.int8(2), kinds)
        return kinds

    def mask(self, i: Any, j: Any) -> Any:
        """bool[B, H, rows, columns]: which scores of a tile count."""
        rows, columns = self.rows(i), self.columns(j)
        kind = self.kinds[:, :, self._block(i, self.row_size, self.row_block), :]
        kind = kind[:, :, self._block(j, self.column_size, self.column_block)][:, :, None, None]
        batch, heads = (jnp.arange(n, dtype=jnp.int32) for n in self.query.shape[:2])
        masked = self._masked(batch, heads, rows, columns).astype(bool)
        inside_rows = i * self.row_size + jnp.arange(self.row_size) < self.query.shape[2]
        inside_columns = j * self.column_size + jnp.arange(self.column_size) < self.key.shape[2]
        inside = inside_rows[:, None] & inside_columns[None]
        return ((kind == 2) | ((kind == 1) & masked)) & inside

    @staticmethod
    def _block(tile: Any, size: int, block: int) -> Any:
        return tile * size // block

    def over_columns(self, i: Any, step: Callable[[Any, Any], Any], start: Any) -> Any:
        """Loop over the tile columns that have scores in tile row i."""
        active = (self.kinds > 0).any((0, 1))[self._block(i, self.row_size, self.row_block)]
        active = active[jnp.arange(self.column_count) * self.column_size // self.column_block]
        order = jnp.argsort(~active, stable=True).astype(jnp.int32)
        return lax.fori_loop(0, active.sum(dtype=jnp.int32), lambda n, state: step(order[n], state), start)


def _tile(length: int, block: int) -> tuple[int, int]:
    """(rows of a tile, rows of a block of the mask), each tile lying in one block."""
    if block >= length:
        return min(TILE, max(length, 1)), max(length, TILE)
    return (block if block <= TILE else math.gcd(block, TILE)), block


def _padded(x: Any, length: int) -> Any:
    return jnp.pad(x, [(0, length - n if i == 2 else 0) for i, n in enumerate(x.shape)])


def _listed(counts: Any, indices: Any) -> Any:
    """bool[B, H, rows, columns] from how many blocks a row of blocks has, and which: the first ones of `indices`."""
    valid = jnp.arange(indices.shape[-1]) < counts[..., None]
    b, h, r = (lax.broadcasted_iota(jnp.int32, indices.shape, i) for i in range(3))
    return jnp.zeros(indices.shape, bool).at[b, h, r, indices].max(valid)


# -- the user's functions, which take scalars


def _over_all(fn: Callable[..., Any], whole: int, outs: Any = 0) -> Callable[..., Any]:
    """`fn` of scalars over [B, H, rows, columns]; after b, h, row, column come `whole` others, one a score."""
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        fn = jax.vmap(fn, in_axes=(*axes, *[0] * whole), out_axes=outs)
    return fn


def _on_indices(graph: GraphModule, buffers: Sequence[Any]) -> Callable[..., Any]:
    return _over_all(lambda b, h, q, k: interpret.interpret(graph, [b, h, q, k, *buffers])[0], 0)


def _on_scores(graph: GraphModule, work: Any, buffers: Sequence[Any], gradients: bool = False) -> Callable[..., Any]:
    """`score_mod` on a tile: (scores, rows, columns) to scores. Or its gradients: (scores, rows, columns, gradient) to
    (gradient, [those of the buffers, None where there is none])."""
    graph = _computing_in(graph, dtypes.to_torch(jnp.dtype(work)), (0, 5) if gradients else (0,))

    def scalars(b: Any, h: Any, q: Any, k: Any, score: Any, *grad: Any) -> Any:
        values = interpret.interpret(graph, [score, b, h, q, k, *grad, *buffers])
        return (values[0], [None if v is None else _summed(v) for v in values[5:]]) if gradients else values[0]

    over_all = _over_all(scalars, 2 if gradients else 1, (0, None) if gradients else 0)

    def tile(scores: Any, rows: Any, columns: Any, *grad: Any) -> Any:
        batch, heads = (jnp.arange(n, dtype=jnp.int32) for n in scores.shape[:2])
        made = over_all(batch, heads, rows, columns, scores, *grad)
        return made if gradients else made.astype(work)

    return tile


def _summed(x: Any) -> Any:
    """A gradient of something that all scores share: over a tile, the sum of those of each score."""

    @jax.custom_batching.custom_vmap
    def same(x: Any) -> Any:
        return x

    @same.def_vmap
    def rule(size: int, batched: Sequence[bool], x: Any) -> tuple[Any, bool]:
        return same(x.sum(0)), False

    return same(x)


def _computing_in(graph: GraphModule, dtype: torch.dtype, scores: Sequence[int]) -> GraphModule:
    """The graph with scores, the placeholders at these positions, of a dtype: it was traced with that of queries."""
    inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    if all(inputs[i].dtype == dtype for i in scores):
        return graph
    kinds = [dtype if i in scores else x.dtype for i, x in enumerate(inputs)]
    made = GraphModule(graph, copy.deepcopy(graph.graph))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [torch.empty(x.shape, dtype=d, device=x.device) for x, d in zip(inputs, kinds, strict=True)]
        FakeTensorProp(made, mode).propagate_dont_convert_inputs(*fakes)
    return made


@lowers("flex_lib::zeros_and_scatter")
def zeros_and_scatter(shape: Sequence[int], indices: Sequence[Any], values: Any) -> Any:
    """Zeros with values added at indices. For a whole tile of scores at once, the sum over the tile."""

    @jax.custom_batching.custom_vmap
    def scatter(values: Any, *indices: Any) -> Any:
        return jnp.zeros(shape, values.dtype).at[indices].add(values)

    @scatter.def_vmap
    def rule(size: int, batched: Sequence[bool], values: Any, *indices: Any) -> tuple[Any, bool]:
        given = zip((values, *indices), batched, strict=True)
        spread = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in given]
        return scatter(*spread), False

    return scatter(values, *jnp.broadcast_arrays(*indices) if indices else ())
