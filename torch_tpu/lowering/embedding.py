"""Embeddings: rows of a table by index, alone or by the bag, and their gradients."""

from __future__ import annotations

from typing import Any

from . import dtypes
from ._jax import jnp
from .context import out
from .registry import lowers

SUM, MEAN, MAX = 0, 1, 2


def _wide(x: Any) -> Any:
    return x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype))))


def _rows(weight: Any, indices: Any) -> Any:
    if not weight.shape[0]:
        return jnp.zeros((*indices.shape, *weight.shape[1:]), weight.dtype)  # no index is right; none may be there
    return jnp.take(weight, indices.astype(jnp.int32), 0, mode="clip")


def _sum_rows(rows: Any, indices: Any, count: int, **how: Any) -> Any:
    """[count, ...], the sum of the rows of each index."""
    return jnp.zeros((count, *rows.shape[1:]), rows.dtype).at[indices.astype(jnp.int32)].add(rows, mode="drop", **how)


@lowers("aten::embedding")
def embedding(weight: Any, indices: Any, padding_idx: int, scale_grad_by_freq: bool, sparse: bool) -> Any:
    return _rows(weight, indices)


@lowers("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    indices = indices.reshape(indices.size)
    rows = _wide(grad).reshape(indices.size, grad.shape[-1])
    rows = _scaled(rows, indices, num_weights, scale_grad_by_freq)
    rows = jnp.where((indices == padding_idx)[:, None], 0, rows)
    return _sum_rows(rows, indices, num_weights).astype(grad.dtype)


def _scaled(rows: Any, indices: Any, num_weights: int, by_frequency: bool) -> Any:
    """Gradients of rows divided by how often each index occurs."""
    if not by_frequency:
        return rows
    return rows / _rows(_sum_rows(jnp.ones(indices.shape, rows.dtype), indices, num_weights), indices)[:, None]


@lowers("aten::embedding_renorm")
def embedding_renorm(weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    indices = indices.reshape(indices.size).astype(jnp.int32)
    rows = _wide(_rows(weight, indices))
    norms = jnp.linalg.norm(rows, norm_type, 1, keepdims=True)
    rows = jnp.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows)
    return weight.at[indices].set(rows.astype(weight.dtype), mode="drop")


# Bags: bag b is indices[offsets[b] : offsets[b + 1]].


def _bags(offsets: Any, count: int) -> Any:
    """The bag of each of `count` indices."""
    at = jnp.arange(count, dtype=offsets.dtype)
    return jnp.searchsorted(offsets, at, side="right").astype(jnp.int32) - 1


def _filled(value: Any, i: int, fill: int = 0) -> Any:
    """The value in the shape and dtype of the promised output i: cut, or followed by `fill`."""
    shape, dtype = tuple(out(i).shape), dtypes.to_jax(out(i).dtype)
    if value.ndim != len(shape):
        return jnp.full(shape, fill, dtype)
    value = value[tuple(slice(n) for n in shape)].astype(dtype)
    return jnp.pad(value, [(0, n - m) for n, m in zip(shape, value.shape, strict=True)], constant_values=fill)


@lowers("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Any, ...]:
    """(output, the bag of each index, the size of each bag unless SUM, for MAX the index of each maximum)."""
    count = out().shape[0]
    bags = _bags(offsets, indices.size)
    kept = indices != padding_idx
    sizes = _sum_rows(kept.astype(jnp.int32), bags, count, indices_are_sorted=True)
    rows = _wide(_rows(weight, indices))
    if per_sample_weights is not None:
        rows = rows * _wide(per_sample_weights)[:, None]
    largest = sizes
    if mode == MAX:
        value, largest = _max_bags(jnp.where(kept[:, None], rows, -jnp.inf), indices, bags, count)
        empty = (sizes == 0)[:, None]
        value, largest = jnp.where(empty, 0, value), jnp.where(empty, 0, largest)
    else:
        value = _sum_rows(jnp.where(kept[:, None], rows, 0), bags, count, indices_are_sorted=True)
        if mode == MEAN:
            value = value / jnp.maximum(sizes, 1)[:, None].astype(value.dtype)
        else:
            sizes = largest = jnp.zeros_like(sizes)
    return value.astype(weight.dtype), _filled(bags, 1), _filled(sizes, 2), _filled(largest, 3)


def _max_bags(rows: Any, indices: Any, bags: Any, count: int) -> tuple[Any, Any]:
    """Maxima [count, features], and the index of the first row that has each."""
    value = jnp.full((count, rows.shape[1]), -jnp.inf, rows.dtype).at[bags].max(rows, mode="drop")
    at = jnp.arange(rows.shape[0], dtype=jnp.int32)[:, None]
    at = jnp.where(rows == _rows(value, bags), at, rows.shape[0])
    first = jnp.full(value.shape, rows.shape[0], jnp.int32).at[bags].min(at, mode="drop")
    return value, jnp.take(indices, first, mode="clip") if indices.size else jnp.zeros(first.shape, indices.dtype)


@lowers("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int,
) -> Any:
    if sparse:
        raise NotImplementedError("embedding_bag with sparse=True has no gradient on device 'tpu': use sparse=False")
    bags = _bags(offsets, indices.size)
    how = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    return embedding_bag_dense_backward(grad, indices, bags, bag_size, maximum_indices, *how)


@lowers("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Any,
    indices: Any,
    bags: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    padding_idx: int,
) -> Any:
    wide = _wide(grad)
    if mode == MAX:
        empty = bag_size[: grad.shape[0], None] == 0
        chosen = jnp.where(empty, num_weights, maximum_indices.astype(jnp.int32))
        column = jnp.arange(grad.shape[1], dtype=jnp.int32)
        total = jnp.zeros((num_weights, grad.shape[1]), wide.dtype).at[chosen, column].add(wide, mode="drop")
        return total.astype(grad.dtype)
    rows = _rows(wide, bags)
    if mode == MEAN:
        rows = rows / _rows(bag_size, bags)[:, None].astype(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * _wide(per_sample_weights)[:, None]
    rows = _scaled(rows, indices, num_weights, scale_grad_by_freq)
    inside = (indices != padding_idx) & (bags < grad.shape[0])
    return _sum_rows(jnp.where(inside[:, None], rows, 0), indices, num_weights).astype(grad.dtype)


@lowers("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int, padding_idx: int
) -> Any:
    bags = _bags(offsets, indices.size)
    value = (_rows(_wide(grad), bags) * _wide(_rows(weight, indices))).sum(1)
    return jnp.where(indices == padding_idx, 0, value).astype(grad.dtype)
