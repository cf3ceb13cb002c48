"""Scaled dot product attention and its gradients, in memory linear in the lengths of the sequences."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import dtypes
from ._jax import jax, jnp, lax
from .context import out, precision
from .matmul import accumulator, factors
from .random import draw, philox
from .registry import lowers
from .rows import Specialise, row_dim, valid

# Scores are made at once up to this many elements, in chunks of queries and keys above.
SCORES_AT_ONCE = 1 << 24
QUERY_CHUNK = 512
# At least; as many more as the scores at once allow.
KEY_CHUNK = 128

# Shapes below: queries [B, H, G, L, E], G being the query heads that share a head of keys [B, H, S, E] and values.


@dataclass(frozen=True)
class Dropout:
    """Which weights stay: by element, so that the forward pass, the backward pass and any chunking agree.

    The weights of query l, keys 4c to 4c + 3 of head n are the four lanes of Philox(seed, counter) with counter words
    (first block + l * ceil(S / 4) + c, its carry, n, 0): the op draws L * ceil(S / 4) blocks of each of the heads.
    """

    p: float
    seed: Any
    offset: Any
    row_blocks: int

    def apply(self, x: Any, row: Any, col: Any) -> Any:
        """x[B, H, G, rows, cols], the weights from (row, col) on: those dropped as 0, the others scaled by 1/(1-p)."""
        *heads, rows, cols = x.shape
        first = (self.offset + np.uint64(3)) >> np.uint64(2)
        low, high = first.astype(jnp.uint32), (first >> np.uint64(32)).astype(jnp.uint32)
        shape = (math.prod(heads), rows, -(-cols // 4))
        head, line, part = (lax.broadcasted_iota(jnp.uint32, shape, i) for i in range(3))
        at = (line + jnp.asarray(row).astype(jnp.uint32)) * np.uint32(self.row_blocks)
        block = low + at + part + jnp.asarray(col // 4).astype(jnp.uint32)
        words = philox(self.seed, [block, high + (block < low).astype(jnp.uint32), head, jnp.zeros_like(head)])
        words = jnp.stack(words, -1).reshape(*shape[:2], -1)[..., :cols].reshape(x.shape)
        kept = words >= np.uint32(min(round(self.p * 2**32), 2**32 - 1))
        return jnp.where(kept, x * (0.0 if self.p == 1 else 1 / (1 - self.p)), 0)


@dataclass(frozen=True)
class Plan:
    """Everything about an attention but its operands.

    bias: added to the scores, [B or 1, H or 1, G or 1, L or 1, S or 1]; bool means where to attend.
    allowed: from positions of queries [rows, 1] and keys [1, cols], where to attend.
    keys: the range of chunks of keys that a chunk of queries attends to.
    """

    scale: float
    rows: int
    cols: int
    bias: Any = None
    allowed: Callable[[Any, Any], Any] | None = None
    keys: Callable[[Any], tuple[Any, Any]] | None = None
    dropout: Dropout | None = None

    def scores(self, q: Any, k: Any, i: Any, j: Any) -> Any:
        """[B, H, G, rows, cols] of chunk i of queries and chunk j of keys, -inf where there is no attention."""
        value = _dot("bhgle,bhse->bhgls", q, k) * self.scale
        if self.bias is not None:
            bias = _chunk(_chunk(self.bias, 3, i, self.rows), 4, j, self.cols)
            value = jnp.where(bias, value, -jnp.inf) if bias.dtype == bool else value + bias.astype(value.dtype)
        if self.allowed is not None:
            row = i * self.rows + lax.broadcasted_iota(jnp.int32, (self.rows, 1), 0)
            col = j * self.cols + lax.broadcasted_iota(jnp.int32, (1, self.cols), 1)
            value = jnp.where(self.allowed(row, col), value, -jnp.inf)
        return value

    def drop(self, x: Any, i: Any, j: Any) -> Any:
        return x if self.dropout is None else self.dropout.apply(x, i * self.rows, j * self.cols)


def _dot(equation: str, a: Any, b: Any) -> Any:
    return jnp.einsum(equation, *factors(a, b), precision=precision(a, b), preferred_element_type=accumulator(a.dtype))


def _chunk(x: Any, axis: int, i: Any, size: int) -> Any:
    """Chunk i of x along an axis, or x if there is nothing to cut."""
    return x if x.shape[axis] in (1, size) else lax.dynamic_slice_in_dim(x, i * size, size, axis)


def _accumulate(total: Any, part: Any, axis: int, i: Any) -> Any:
    """Add to chunk i of `total`, of the size of `part`."""
    if total.shape[axis] == part.shape[axis]:
        return total + part
    start = i * part.shape[axis]
    part = part + lax.dynamic_slice_in_dim(total, start, part.shape[axis], axis)
    return lax.dynamic_update_slice_in_dim(total, part, start, axis)


def _chunks(length: int, size: int) -> int:
    return max(-(-length // size), 1)


def _padded(x: Any, axis: int, size: int) -> Any:
    """x followed by zeros, up to a whole number of chunks; x itself where it is broadcast."""
    missing = 0 if x.shape[axis] == 1 else _chunks(x.shape[axis], size) * size - x.shape[axis]
    return x if missing == 0 else jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)])


def _loop(bounds: tuple[Any, Any], body: Callable[[Any, Any], Any], state: Any) -> Any:
    if isinstance(bounds[1], int) and bounds == (0, 1):
        return body(0, state)
    return lax.fori_loop(*(jnp.asarray(b, jnp.int32) for b in bounds), body, state)


def _over_queries(count: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """(state, results) of body(state, i) -> (state, result [B, H, G, rows, ...]), the results joined along rows."""
    if count == 1:
        return body(state, 0)

    def join(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, 3)
        return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4], *x.shape[5:])

    state, results = lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))
    return state, jax.tree.map(join, results)


def dense_plan(q: Any, k: Any, scale: float | None = None, causal: bool = False, **how: Any) -> Plan:
    """The chunks for the sizes, and a causal mask from the top left."""
    b, h, g, length, size = q.shape
    keys = k.shape[2]
    rows, cols = max(length, 1), max(keys, 1)
    if b * h * g * length * keys > SCORES_AT_ONCE:
        rows = min(rows, QUERY_CHUNK)
        cols = min(cols, max(KEY_CHUNK, SCORES_AT_ONCE // (b * h * g * rows) // KEY_CHUNK * KEY_CHUNK))
    return _masked(Plan(size**-0.5 if scale is None and size else scale or 0.0, rows, cols, **how), keys, causal)


def _masked(plan: Plan, keys: int, causal: bool) -> Plan:
    """The plan with its causal mask, and one for the keys that padding adds."""
    masks = [plan.allowed] if plan.allowed else []
    if causal:
        masks.append(lambda row, col: col <= row)
    count = _chunks(keys, plan.cols)
    if count * plan.cols != keys:
        masks.append(lambda row, col: col < keys)

    def allowed(row: Any, col: Any) -> Any:
        return functools.reduce(operator.and_, (m(row, col) for m in masks))

    def reach(i: Any) -> tuple[Any, Any]:
        if not causal or count == 1:
            return 0, count
        return 0, jnp.minimum(count, ((i + 1) * plan.rows + plan.cols - 1) // plan.cols)

    return replace(plan, allowed=allowed if masks else None, keys=plan.keys or reach)


def _split(plan: Plan, q: Any, k: Any, v: Any) -> tuple[Plan, Any, Any, Any]:
    bias = plan.bias
    if bias is not None:
        bias = _padded(_padded(bias, 3, plan.rows), 4, plan.cols)
    return replace(plan, bias=bias), _padded(q, 3, plan.rows), _padded(k, 2, plan.cols), _padded(v, 2, plan.cols)


def attention(q: Any, k: Any, v: Any, plan: Plan) -> tuple[Any, Any]:
    """Weighted sums of values [B, H, G, L, E'] and the logs of the sums of exponentials [B, H, G, L], in wide types.

    A query that attends to nothing gets 0 and -inf.
    """
    length, wide = q.shape[3], accumulator(q.dtype)
    plan, q, k, v = _split(plan, q, k, v)
    heads = q.shape[:3]

    def queries(_: Any, i: Any) -> tuple[Any, Any]:
        part = _chunk(q, 3, i, plan.rows)

        def keys(j: Any, state: Any) -> Any:
            top, total, value = state
            s = plan.scores(part, _chunk(k, 2, j, plan.cols), i, j)
            new_top = jnp.maximum(top, s.max(-1))
            shift = jnp.where(new_top == -jnp.inf, 0, new_top)
            weight, shrink = jnp.exp(s - shift[..., None]), jnp.exp(top - shift)
            total = total * shrink + weight.sum(-1)
            mixed = _dot("bhgls,bhse->bhgle", plan.drop(weight, i, j).astype(v.dtype), _chunk(v, 2, j, plan.cols))
            return new_top, total, value * shrink[..., None] + mixed

        shape = (*heads, plan.rows)
        start = jnp.full(shape, -jnp.inf, wide), jnp.zeros(shape, wide), jnp.zeros((*shape, v.shape[-1]), wide)
        top, total, value = _loop(plan.keys(i), keys, start)
        value = value / jnp.where(total == 0, 1, total)[..., None]
        return None, (value, jnp.where(total == 0, -jnp.inf, top + jnp.log(total)))

    _, (value, lse) = _over_queries(q.shape[3] // plan.rows, queries, None)
    return value[:, :, :, :length], lse[:, :, :, :length]


def attention_backward(grad: Any, q: Any, k: Any, v: Any, value: Any, lse: Any, plan: Plan, to_bias: bool) -> Any:
    """Gradients to q, k, v and the bias (None unless `to_bias`), in wide types."""
    length, size, wide = q.shape[3], k.shape[2], accumulator(q.dtype)
    whole = plan.bias
    plan, q, k, v = _split(plan, q, k, v)
    delta = _padded((grad.astype(wide) * value.astype(wide)).sum(-1), 3, plan.rows)
    grad = _padded(grad, 3, plan.rows)
    # Queries that attend to nothing, and those that padding adds, have no weights.
    lse = jnp.where(lse == -jnp.inf, jnp.inf, lse.astype(wide))
    missing = q.shape[3] - length
    lse = jnp.pad(lse, ((0, 0),) * 3 + ((0, missing),), constant_values=jnp.inf) if missing else lse

    def queries(state: Any, i: Any) -> tuple[Any, Any]:
        part, part_grad, part_lse, part_delta = (_chunk(x, 3, i, plan.rows) for x in (q, grad, lse, delta))

        def keys(j: Any, state: Any) -> Any:
            to_q, to_k, to_v, to_b = state
            k_part, v_part = _chunk(k, 2, j, plan.cols), _chunk(v, 2, j, plan.cols)
            weight = jnp.exp(plan.scores(part, k_part, i, j) - part_lse[..., None])
            kept = plan.drop(weight, i, j).astype(v.dtype)
            to_v = _accumulate(to_v, _dot("bhgls,bhgle->bhse", kept, part_grad), 2, j)
            slope = plan.drop(_dot("bhgle,bhse->bhgls", part_grad, v_part), i, j)
            slope = weight * (slope - part_delta[..., None])
            if to_b is not None:
                summed = [a for a in range(3) if to_b.shape[a] == 1]
                summed += [a for a in (3, 4) if plan.bias.shape[a] == 1]
                to_b = _add_chunk(to_b, slope.sum(summed, keepdims=True), i, j)
            slope = slope.astype(k.dtype)
            to_q = to_q + _dot("bhgls,bhse->bhgle", slope, k_part) * plan.scale
            to_k = _accumulate(to_k, _dot("bhgls,bhgle->bhse", slope, part) * plan.scale, 2, j)
            return to_q, to_k, to_v, to_b

        to_q, *state = _loop(plan.keys(i), keys, (jnp.zeros(part.shape, wide), *state))
        return tuple(state), to_q

    start = jnp.zeros(k.shape, wide), jnp.zeros(v.shape, wide), jnp.zeros(plan.bias.shape, wide) if to_bias else None
    (to_k, to_v, to_b), to_q = _over_queries(q.shape[3] // plan.rows, queries, start)
    if to_bias:
        to_b = to_b[..., : whole.shape[3], : whole.shape[4]]
    return to_q[:, :, :, :length], to_k[:, :, :size], to_v[:, :, :size], to_b


def _add_chunk(total: Any, part: Any, i: Any, j: Any) -> Any:
    """Add to the chunk (i, j) of the last two dimensions of `total`."""
    if total.shape == part.shape:
        return total + part
    zero = jnp.int32(0)
    chunks = (
        zero if t == p else jnp.int32(c * p) for t, p, c in zip(total.shape[3:], part.shape[3:], (i, j), strict=True)
    )
    start = (zero, zero, zero, *chunks)
    return lax.dynamic_update_slice(total, part + lax.dynamic_slice(total, start, part.shape), start)


# scaled_dot_product_attention: queries [B, N, L, E] or [N, L, E]; heads of keys and values may be fewer (GQA).


def _heads(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))
    b, h = k.shape[:2]
    return q.reshape(b, h, q.shape[1] // max(h, 1), *q.shape[2:]), k, v


def _bias(bias: Any, q: Any) -> Any:
    """A mask [..., L, S] as [B, H, G, L, S], each 1 or full."""
    if bias is None:
        return None
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    heads = (1, 1) if bias.shape[1] == 1 else q.shape[1:3]
    return bias.reshape(bias.shape[0], *heads, *bias.shape[2:])


def _blocks(q: Any, k: Any) -> int:
    return -(-k.shape[2] // 4)


def _without_padding(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The mask, or one that keeps the padding of keys and values from counting."""
    if all(row_dim(x) is None for x in (q, k, v, bias)):
        return bias
    if row_dim(q) is not None or bias is not None or not row_dim(k) == row_dim(v) == k.ndim - 2:
        raise Specialise
    return jnp.where(valid(k.shape[-2]), 0.0, -jnp.inf).astype(q.dtype)[None]


@lowers("aten::_scaled_dot_product_fused_attention_overrideable", random=True, rows="any")
def fused_attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    dropout_p: float,
    causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None,
) -> tuple[Any, ...]:
    """(output, logsumexp, None, None, L, S, seed, offset, None)."""
    length, keys = q.shape[-2], k.shape[-2]
    bias = _without_padding(q, k, v, bias)
    q5, k, v = _heads(q, k, v)
    seed = offset = jnp.zeros((), jnp.int64)
    dropout = None
    if dropout_p > 0:
        d = draw(4 * length * _blocks(q5, k))
        dropout = Dropout(dropout_p, d.seed, d.offset, _blocks(q5, k))
        seed = d.seed[0].astype(jnp.uint64) | (d.seed[1].astype(jnp.uint64) << np.uint64(32))
        seed, offset = (lax.bitcast_convert_type(x, jnp.int64) for x in (seed, d.offset))
    value, lse = attention(q5, k, v, dense_plan(q5, k, scale, causal, bias=_bias(bias, q5), dropout=dropout))
    value = value.astype(q.dtype).reshape(*q.shape[:-1], v.shape[-1])
    lse = lse.astype(jnp.float32).reshape(tuple(out(1).shape))
    return value, lse, None, None, length, keys, seed, offset, None


@lowers("aten::_scaled_dot_product_fused_attention_overrideable_backward", runtime=("max_q", "max_k"))
def fused_attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    grad_input_mask: list[bool],
    value: Any,
    lse: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: float | None,
) -> tuple[Any, ...]:
    operands = q, k, v, bias
    q5, k, v = _heads(q, k, v)
    dropout = None
    if dropout_p > 0:
        seed, offset = (lax.bitcast_convert_type(x, jnp.uint64) for x in (seed, offset))
        words = jnp.stack([seed.astype(jnp.uint32), (seed >> np.uint64(32)).astype(jnp.uint32)])
        dropout = Dropout(dropout_p, words, offset, _blocks(q5, k))
    plan = dense_plan(q5, k, scale, causal, bias=_bias(bias, q5), dropout=dropout)
    grad, value = (x.reshape(*q5.shape[:-1], v.shape[-1]) for x in (grad, value))
    if q.dtype == jnp.float64:
        # What was kept of the forward pass is of float32.
        value, lse = attention(q5, k, v, plan)
    to_bias = bias is not None and grad_input_mask[3]
    grads = attention_backward(grad, q5, k, v, value, lse.reshape(q5.shape[:-1]), plan, to_bias)
    return tuple(
        None if x is None else g.reshape(x.shape).astype(x.dtype) if wanted else jnp.zeros(x.shape, x.dtype)
        for x, g, wanted in zip(operands, grads, grad_input_mask, strict=True)
    )


@lowers("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    q: Any, k: Any, v: Any, dropout_p: float, causal: bool, *, attn_mask: Any, scale: float | None
) -> tuple[Any, Any]:
    q5, k, v = _heads(q, k, v)
    value, lse = attention(q5, k, v, dense_plan(q5, k, scale, causal, bias=_bias(attn_mask, q5)))
    lse = jnp.where(lse == -jnp.inf, 0, lse)
    return value.astype(q.dtype).reshape(q.shape), lse.astype(dtypes.to_jax(out(1).dtype)).reshape(q.shape[:-1])


@lowers("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    value: Any,
    lse: Any,
    dropout_p: float,
    causal: bool,
    *,
    attn_mask: Any,
    scale: float | None,
) -> tuple[Any, ...]:
    wanted = [True, True, True, False]
    rest = (value, lse, None, None, 0, 0, 0.0, causal, None, None)
    return fused_attention_backward(grad, q, k, v, attn_mask, wanted, *rest, scale=scale)[:3]


# Sequences of different lengths, one after the other: queries [T, N, E], boundaries cum_seq [sequences + 1].


def _segments(cum: Any, size: int) -> tuple[Any, Any]:
    """The sequence each of `size` positions is in, and whether it is in one."""
    at = jnp.arange(size, dtype=jnp.int32)
    return (at[:, None] >= cum[None, 1:]).sum(1, dtype=jnp.int32), at < cum[-1]


def _varlen_plan(
    q: Any, k: Any, cum_q: Any, cum_k: Any, used: Any, causal: bool, scale: float | None, left: int, right: int
) -> Plan:
    """Each query attends to its sequence's keys; windows and the causal mask are aligned to the ends of both."""
    length, keys = q.shape[3], k.shape[2]
    rows, cols = max(min(length, QUERY_CHUNK), 1), max(min(keys, QUERY_CHUNK), 1)
    cum_q, cum_k = cum_q.astype(jnp.int32), cum_k.astype(jnp.int32)
    last = cum_q.shape[0] - 2
    used = cum_k[1:] - cum_k[:-1] if used is None else used.astype(jnp.int32)
    shift = cum_k[:-1] + used - cum_q[1:]
    right = 0 if causal else right
    segment, inside = _segments(cum_q, _chunks(length, rows) * rows)
    segment = jnp.minimum(segment, last)
    start = (
        cum_k[segment] if left < 0 else jnp.maximum(cum_k[segment], jnp.arange(segment.size) + shift[segment] - left)
    )
    end = cum_k[segment] + used[segment]
    if right >= 0:
        end = jnp.minimum(end, jnp.arange(segment.size) + shift[segment] + right + 1)
    start, end = start.astype(jnp.int32), jnp.where(inside, end, 0).astype(jnp.int32)

    def allowed(row: Any, col: Any) -> Any:
        first = row[0, 0]
        low, high = (lax.dynamic_slice_in_dim(x, first, rows)[:, None] for x in (start, end))
        return (col >= low) & (col < high)

    def reach(i: Any) -> tuple[Any, Any]:
        low, high = (lax.dynamic_slice_in_dim(x, jnp.int32(i) * rows, rows) for x in (start, end))
        some = low < high
        return jnp.where(some, low, keys).min() // cols, -(-jnp.where(some, high, 0).max() // cols)

    size = q.shape[-1]
    plan = Plan(size**-0.5 if scale is None else scale, rows, cols, allowed=allowed, keys=reach)
    return _masked(plan, keys, False)


def _packed(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """[T, N, E] as the one batch of [1, H, G, T, E]; [B, T, N, E] as B of them."""
    q, k, v = (jnp.moveaxis(x if x.ndim == 4 else x[None], 1, 2) for x in (q, k, v))
    return _heads(q, k, v)


def _flash_plan(q: Any, k: Any, v: Any, cum_q: Any, cum_k: Any, causal: bool, **how: Any) -> tuple[Any, ...]:
    """(queries, keys, values, plan) of the flash attention ops."""
    scale, used, table = how["scale"], how.get("seqused_k"), how.get("block_table")
    left, right = (-1 if how[w] is None else how[w] for w in ("window_size_left", "window_size_right"))
    if table is not None:
        # Pages of keys, in the order of the table: as many keys for each sequence.
        k, v = (x[table].reshape(-1, *x.shape[2:]) for x in (k, v))
        cum_k = jnp.arange(table.shape[0] + 1, dtype=jnp.int32) * (k.shape[0] // table.shape[0])
    if cum_q is None:
        # Sequences of one length, in a batch: as one after the other.
        b, length, keys = q.shape[0], q.shape[1], k.shape[1]
        cum_q, cum_k = (jnp.arange(b + 1, dtype=jnp.int32) * n for n in (length, keys))
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    q, k, v = _packed(q, k, v)
    return q, k, v, _varlen_plan(q, k, cum_q, cum_k, used, causal, scale, left, right)


@lowers("aten::_flash_attention_forward", runtime=("max_q", "max_k"))
def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    causal: bool,
    return_debug_mask: bool,
    **how: Any,
) -> tuple[Any, ...]:
    """(output, logsumexp [N, T], two tensors of the generator's state, an empty one)."""
    if dropout_p > 0 or how["alibi_slopes"] is not None:
        raise NotImplementedError("_flash_attention_forward on device 'tpu' has no dropout and no ALiBi slopes")
    q5, k, v, plan = _flash_plan(q, k, v, cum_q, cum_k, causal, **how)
    value, lse = attention(q5, k, v, plan)
    value = jnp.moveaxis(value.reshape(-1, *value.shape[3:]), 0, 1).astype(q.dtype).reshape(q.shape)
    lse = lse.reshape(-1, lse.shape[-1])
    if cum_q is None:
        lse = lse.reshape(-1, q.shape[0], q.shape[1]).swapaxes(0, 1)
    state = (jnp.zeros(tuple(out(i).shape), dtypes.to_jax(out(i).dtype)) for i in (2, 3, 4))
    return value, lse.astype(jnp.float32), *state


@lowers("aten::_flash_attention_backward", runtime=("max_q", "max_k"))
def flash_attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    value: Any,
    lse: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    causal: bool,
    rng_state: Any,
    unused: Any,
    **how: Any,
) -> tuple[Any, ...]:
    if dropout_p > 0:
        raise NotImplementedError("_flash_attention_backward on device 'tpu' has no dropout")
    q5, k5, v5, plan = _flash_plan(q, k, v, cum_q, cum_k, causal, **how)
    grad, value = (jnp.moveaxis(x.reshape(-1, *x.shape[-2:]), 0, 1).reshape(q5.shape) for x in (grad, value))
    if cum_q is None:
        lse = lse.swapaxes(0, 1)
    grads = attention_backward(grad, q5, k5, v5, value, lse.reshape(q5.shape[:-1]), plan, False)[:3]
    heads = (g.reshape(-1, *g.shape[-2:]) for g in grads)
    return tuple(jnp.moveaxis(g, 0, 1).reshape(x.shape).astype(x.dtype) for g, x in zip(heads, (q, k, v), strict=True))
