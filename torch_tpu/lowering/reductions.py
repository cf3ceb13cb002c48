"""Reductions: sums, products, extrema and where they are, moments, norms, softmax, order statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import lowers
from .rows import count, each_row, needs_exact, reducing


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes a `dim` argument names; None and an empty list name all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted(d % ndim for d in dims)) if ndim else ()


def _opmath(x: Any) -> Any:
    return x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype))))


def _result(x: Any, i: int = 0) -> Any:
    return dtypes.cast(x, out(i).dtype)


def _accumulated(x: Any) -> Any:
    """x in the type its sum is computed in, which the promised dtype decides."""
    return dtypes.cast(x, dtypes.opmath(out().dtype))


def _size(x: Any, dims: tuple[int, ...]) -> int:
    return math.prod(x.shape[d] for d in dims)


@lowers("aten::sum", "aten::sum.dim_IntList", rows="masked")
def sum_(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    dims = axes(dim, x.ndim)
    return _result(jnp.sum(_accumulated(reducing(x, dims, 0)), dims, keepdims=keepdim))


@lowers("aten::nansum", rows="masked")
def nansum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    dims = axes(dim, x.ndim)
    x = _accumulated(reducing(x, dims, 0))
    return _result(jnp.sum(jnp.where(x != x, 0, x), dims, keepdims=keepdim))


@lowers("aten::mean", "aten::mean.dim", rows="masked")
def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    dims = axes(dim, x.ndim)
    total = jnp.sum(_accumulated(reducing(x, dims, 0)), dims, keepdims=keepdim)
    return _result(total / jnp.asarray(count(x, dims), total.dtype))


@lowers("aten::prod", "aten::prod.dim_int", rows="masked")
def prod(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    dims = axes(dim, x.ndim)
    return _result(jnp.prod(_accumulated(reducing(x, dims, 1)), dims, keepdims=keepdim))


@lowers("aten::amax", rows="masked")
def amax(x: Any, dim: Any, keepdim: bool) -> Any:
    dims = axes(dim, x.ndim)
    return jnp.max(reducing(x, dims, _limits(x)[0]), dims, keepdims=keepdim)


@lowers("aten::amin", rows="masked")
def amin(x: Any, dim: Any, keepdim: bool) -> Any:
    dims = axes(dim, x.ndim)
    return jnp.min(reducing(x, dims, _limits(x)[1]), dims, keepdims=keepdim)


@lowers("aten::aminmax", rows="masked")
def aminmax(x: Any, *, dim: int | None, keepdim: bool) -> Any:
    dims = axes(dim, x.ndim)
    low, high = (reducing(x, dims, worst) for worst in reversed(_limits(x)))
    return jnp.min(low, dims, keepdims=keepdim), jnp.max(high, dims, keepdims=keepdim)


@lowers("aten::_aminmax", "aten::_aminmax.dim", rows="masked")
def aminmax_positional(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return aminmax(x, dim=dim, keepdim=keepdim)


@lowers("aten::max", rows="masked")
def max_all(x: Any) -> Any:
    return amax(x, None, False)


@lowers("aten::min", rows="masked")
def min_all(x: Any) -> Any:
    return amin(x, None, False)


def _limits(x: Any) -> tuple[Any, Any]:
    return dtypes.limits(dtypes.to_torch(x.dtype))


@lowers("aten::max.dim", rows="masked")
def max_dim(x: Any, dim: int, keepdim: bool) -> Any:
    return extremum(x, dim, keepdim, True)


@lowers("aten::min.dim", rows="masked")
def min_dim(x: Any, dim: int, keepdim: bool) -> Any:
    return extremum(x, dim, keepdim, False)


@lowers("aten::argmax", rows="masked")
def argmax(x: Any, dim: int | None, keepdim: bool) -> Any:
    return _argument(x, dim, keepdim, True)


@lowers("aten::argmin", rows="masked")
def argmin(x: Any, dim: int | None, keepdim: bool) -> Any:
    return _argument(x, dim, keepdim, False)


def _argument(x: Any, dim: int | None, keepdim: bool, largest: bool) -> Any:
    if dim is None:
        x, dim = reducing(x, range(x.ndim), _worst(x.dtype, largest)).reshape(-1), 0
    _, index = extremum(x, dim, keepdim, largest)
    return index.reshape(out().shape)


def extremum(x: Any, dim: int, keepdim: bool, largest: bool) -> tuple[Any, Any]:
    """The largest or smallest value along `dim` and its first index (int64). NaN beats everything."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim
    # The value is sought again: both passes must see the same bits, whatever precision x is computed in.
    x = lax.optimization_barrier(reducing(x, [dim], _worst(x.dtype, largest)))
    value = (jnp.max if largest else jnp.min)(x, dim, keepdims=True)
    place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    index = jnp.min(jnp.where((x == value) | (x != x), place, x.shape[dim] - 1), dim, keepdims=keepdim)
    return value if keepdim else lax.squeeze(value, [dim]), index.astype(jnp.int64)


def _worst(dtype: Any, largest: bool) -> Any:
    return np.asarray(dtypes.limits(dtypes.to_torch(dtype))[0 if largest else 1], dtype)


@lowers("aten::any", "aten::any.dim", "aten::any.dims", rows="masked")
def any_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    dims = _logical_axes(x, dim)
    return _result(jnp.any(reducing(x, dims, 0) != 0, dims, keepdims=keepdim))


@lowers("aten::all", "aten::all.dim", "aten::all.dims", rows="masked")
def all_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    dims = _logical_axes(x, dim)
    return _result(jnp.all(reducing(x, dims, 1) != 0, dims, keepdims=keepdim))


def _logical_axes(x: Any, dim: Any) -> tuple[int, ...]:
    # Unlike elsewhere an empty list of dimensions names none.
    return () if isinstance(dim, Sequence) and not dim else axes(dim, x.ndim)


@lowers("aten::_is_all_true")
def is_all_true(x: Any) -> Any:
    return jnp.all(x)


@lowers("aten::_is_any_true")
def is_any_true(x: Any) -> Any:
    return jnp.any(x)


@lowers("aten::count_nonzero", "aten::count_nonzero.dim_IntList", rows="masked")
def count_nonzero(x: Any, dim: Any = None) -> Any:
    dims = axes(dim, x.ndim)
    return jnp.sum(reducing(x, dims, 0) != 0, dims, dtype=jnp.int64)


@lowers("aten::equal")
def equal(x: Any, y: Any) -> Any:
    return jnp.all(x == y)


@lowers("aten::var.correction", rows="masked")
def var(x: Any, dim: Any = None, *, correction: float | None, keepdim: bool) -> Any:
    return _result(_moments(x, dim, correction, keepdim)[0])


@lowers("aten::std.correction", rows="masked")
def std(x: Any, dim: Any = None, *, correction: float | None, keepdim: bool) -> Any:
    return _result(lax.sqrt(_moments(x, dim, correction, keepdim)[0]))


@lowers("aten::var_mean.correction", rows="masked")
def var_mean(x: Any, dim: Any = None, *, correction: float | None, keepdim: bool) -> Any:
    variance, average = _moments(x, dim, correction, keepdim)
    return _result(variance), _result(average, 1)


@lowers("aten::std_mean.correction", rows="masked")
def std_mean(x: Any, dim: Any = None, *, correction: float | None, keepdim: bool) -> Any:
    variance, average = _moments(x, dim, correction, keepdim)
    return _result(lax.sqrt(variance)), _result(average, 1)


def _moments(x: Any, dim: Any, correction: float | None, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean. E[x^2] - E[x]^2 would cancel; the second pass finds what rounding left of the mean."""
    operand, dims = x, axes(dim, x.ndim)
    x, n = _opmath(reducing(x, dims, 0)), count(x, dims)
    average = jnp.sum(x, dims, keepdims=True) / jnp.asarray(n, x.dtype)
    off = reducing(x - average, dims, 0, of=operand)
    rest = jnp.sum(off, dims, keepdims=True) / jnp.asarray(n, x.dtype)
    average = average + rest
    total = jnp.sum(_square(off), dims, keepdims=True) - n * _square(rest)
    total = jnp.maximum(total if keepdim else lax.squeeze(total, dims), 0)
    freedom = jnp.maximum(jnp.asarray(n, total.dtype) - (1 if correction is None else correction), 0)
    return total / freedom, average if keepdim else lax.squeeze(average, dims)


def _square(x: Any) -> Any:
    return jnp.real(x * jnp.conj(x)) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x * x


@lowers("aten::linalg_vector_norm", rows="masked")
def vector_norm(x: Any, order: float, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    if order < 0:
        needs_exact(x)
    x = reducing(x, axes(dim, x.ndim), 0)
    # An extremum is one of the absolute values as they are, by which its gradient finds it.
    x = x if dtype is None or math.isinf(order) else dtypes.cast(x, dtype)
    return _result(norm(x, order, axes(dim, x.ndim), keepdim))


@lowers("aten::linalg__powsum")
def powsum(x: Any, order: float, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None) -> Any:
    size = jnp.abs(_opmath(x if dtype is None else dtypes.cast(x, dtype)))
    return _result(jnp.sum(_power(size, order), axes(dim, x.ndim), keepdims=keepdim))


def norm(x: Any, order: float, dims: tuple[int, ...], keepdim: bool = False) -> Any:
    """(sum |x|^order)^(1/order) and its limits, in the type PyTorch computes in."""
    size = jnp.abs(_opmath(x))
    if order == math.inf:
        return jnp.max(size, dims, keepdims=keepdim, initial=0)
    if order == -math.inf:
        return jnp.min(size, dims, keepdims=keepdim, initial=math.inf)
    if order == 0:
        return jnp.sum(size != 0, dims, keepdims=keepdim, dtype=size.dtype)
    total = jnp.sum(_power(size, order), dims, keepdims=keepdim)
    return {1: lambda: total, 2: lambda: lax.sqrt(total)}.get(order, lambda: _power(total, 1 / order))()


def _power(x: Any, exponent: float) -> Any:
    if exponent in (1, 2, 3, -1, -2):
        return lax.integer_pow(x, int(exponent))
    return lax.pow(x, np.asarray(exponent, x.dtype))


@lowers("aten::renorm")
def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    """x, its slices along `dim` whose norm is above `maxnorm` scaled down to it."""
    norms = norm(x, p, tuple(i for i in range(x.ndim) if i != dim % x.ndim), True)
    factor = jnp.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1)
    return x * factor.astype(x.dtype)


@lowers("aten::dist")
def dist(x: Any, y: Any, p: float) -> Any:
    return _result(norm(x - y, p, axes(None, max(x.ndim, y.ndim))))


@lowers("aten::logsumexp", rows="masked")
def logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    operand, dims = x, axes(dim, x.ndim)
    x = reducing(_accumulated(x), dims, -math.inf, of=operand)
    if _size(x, dims) == 0:
        return _result(lax.log(jnp.sum(x, dims, keepdims=keepdim)))
    high = _finite(jnp.max(x.real, dims, keepdims=True))
    total = lax.log(jnp.sum(lax.exp(x - high.astype(x.dtype)), dims, keepdims=True)) + high.astype(x.dtype)
    return _result(total if keepdim else lax.squeeze(total, dims))


def _finite(x: Any) -> Any:
    return jnp.where(jnp.isinf(x), 0, x)


@lowers("aten::_softmax", rows="masked")
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    each_row(axes(dim, x.ndim), x)
    x, dims = _opmath(x), axes(dim, x.ndim)
    weight = lax.exp(x - _highest(x, dims))
    return _result(weight / jnp.sum(weight, dims, keepdims=True))


@lowers("aten::_safe_softmax")
def safe_softmax(x: Any, dim: int, dtype: torch.dtype | None) -> Any:
    x = _accumulated(x)
    masked = jnp.max(x, axes(dim, x.ndim), keepdims=True, initial=-math.inf) == -math.inf
    return jnp.where(masked, 0, softmax(x, dim, False))


@lowers("aten::_masked_softmax")
def masked_softmax(x: Any, mask: Any, dim: int | None, mask_type: int | None) -> Any:
    """mask_type: 0 for a mask (L, L) of x (B, H, L, L), 1 for one (B, L), 2 for one of x's shape. True is left out."""
    if mask_type == 1:
        mask = mask.reshape(mask.shape[0], 1, 1, mask.shape[1])
    kept = ~jnp.broadcast_to(mask.astype(bool), x.shape)
    wide = jnp.where(kept, _opmath(x), -math.inf)
    dims = axes(x.ndim - 1 if dim is None else dim, x.ndim)
    weight = jnp.where(kept, lax.exp(wide - _finite(_highest(wide, dims))), 0)
    return _result(weight / jnp.sum(weight, dims, keepdims=True))


@lowers("aten::_masked_softmax_backward")
def masked_softmax_backward(grad: Any, y: Any, mask: Any, dim: int | None) -> Any:
    dims = axes(y.ndim - 1 if dim is None else dim, y.ndim)
    kept = ~mask.astype(bool)
    product = jnp.where(kept, _opmath(grad) * _opmath(y), 0)
    return _result(jnp.where(kept, product - _opmath(y) * jnp.sum(product, dims, keepdims=True), 0))


@lowers("aten::_log_softmax", rows="masked")
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    each_row(axes(dim, x.ndim), x)
    x, dims = _opmath(x), axes(dim, x.ndim)
    x = x - _highest(x, dims)
    return _result(x - lax.log(jnp.sum(lax.exp(x), dims, keepdims=True)))


def _highest(x: Any, dims: tuple[int, ...]) -> Any:
    return jnp.max(x, dims, keepdims=True, initial=-math.inf)


@lowers("aten::_softmax_backward_data", rows="masked")
def softmax_backward(grad: Any, y: Any, dim: int, input_dtype: torch.dtype) -> Any:
    each_row(axes(dim, y.ndim), grad, y)
    grad, y = _opmath(grad), _opmath(y)
    return _result(y * (grad - jnp.sum(grad * y, axes(dim, y.ndim), keepdims=True)))


@lowers("aten::_log_softmax_backward_data", rows="masked")
def log_softmax_backward(grad: Any, y: Any, dim: int, input_dtype: torch.dtype) -> Any:
    each_row(axes(dim, y.ndim), grad, y)
    grad, y = _opmath(grad), _opmath(y)
    return _result(grad - lax.exp(y) * jnp.sum(grad, axes(dim, y.ndim), keepdims=True))


@lowers("aten::median")
def median_all(x: Any) -> Any:
    return _middle(x.reshape(-1), 0, False, _median_rank)[0] if x.size else jnp.full((), math.nan, x.dtype)


@lowers("aten::nanmedian")
def nanmedian_all(x: Any) -> Any:
    return _middle(x.reshape(-1), 0, False, _nanmedian_rank)[0] if x.size else jnp.full((), math.nan, x.dtype)


@lowers("aten::median.dim")
def median(x: Any, dim: int, keepdim: bool) -> Any:
    return _middle(x, dim, keepdim, _median_rank)


@lowers("aten::nanmedian.dim")
def nanmedian(x: Any, dim: int, keepdim: bool) -> Any:
    return _middle(x, dim, keepdim, _nanmedian_rank)


@lowers("aten::kthvalue")
def kthvalue(x: Any, k: int, dim: int, keepdim: bool) -> Any:
    return _middle(x, dim, keepdim, lambda valid, n: jnp.full_like(valid, k - 1))


@lowers("aten::mode")
def mode(x: Any, dim: int, keepdim: bool) -> Any:
    """The smallest of the most frequent values and its last index. NaNs differ from each other."""

    def end_of_longest_run(values: Any) -> Any:
        place = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
        fresh = (values != jnp.roll(values, 1, -1)) | (place == 0)
        length = place - lax.cummax(jnp.where(fresh, place, 0), axis=values.ndim - 1)
        return jnp.argmax(length, -1, keepdims=True)

    return _picked(x, dim, keepdim, end_of_longest_run)


def _median_rank(valid: Any, n: int) -> Any:
    # NaNs are last in order: with any of them the first one is the median.
    return jnp.where(valid < n, valid, (n - 1) // 2)


def _nanmedian_rank(valid: Any, n: int) -> Any:
    return jnp.where(valid > 0, valid - 1, n - 1) // 2


def _middle(x: Any, dim: int, keepdim: bool, rank: Callable[[Any, int], Any]) -> tuple[Any, Any]:
    """The element of a rank that follows from (the number that aren't NaN, the number of all)."""
    ranked = lambda v: rank(jnp.sum(v == v, -1, keepdims=True, dtype=jnp.int32), v.shape[-1])  # noqa: E731
    return _picked(x, dim, keepdim, ranked)


def _picked(x: Any, dim: int, keepdim: bool, place: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Value and index of the element at `place(sorted values)` of the last axis once `dim` is sorted."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    x = jnp.moveaxis(x, dim, -1)
    index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    values, index = lax.sort((x, index), dimension=x.ndim - 1, num_keys=1, is_stable=True)
    at = place(values)
    picked = [jnp.take_along_axis(a, at, -1) for a in (values, index.astype(jnp.int64))]
    return tuple(jnp.moveaxis(p, -1, dim) if keepdim else p.squeeze(-1) for p in picked)


@lowers("aten::hash_tensor")
def hash_tensor(x: Any, dim: Any = (), *, keepdim: bool, mode: int) -> Any:
    """The exclusive or of the elements' bits, those of floats in double precision."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(x.astype(jnp.float64), jnp.uint64)
    else:
        bits = x.astype(jnp.int64).astype(jnp.uint64)
    dims = axes(dim, x.ndim)
    value = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims)
    return lax.expand_dims(value, dims) if keepdim else value
