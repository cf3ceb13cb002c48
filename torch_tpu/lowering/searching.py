"""Where values belong among others: membership and buckets."""

from __future__ import annotations

from typing import Any

from . import dtypes
from ._jax import jax, jnp
from .context import out
from .registry import lowers
from .rows import rows_of

# As many comparisons are cheaper, fused, than the steps of a search.
COMPARE_ALL = 64


@lowers("aten::isin.Tensor_Tensor", "aten::isin.Scalar_Tensor", "aten::isin.Tensor_Scalar", rows="masked")
def isin(x: Any, among: Any, *, assume_unique: bool, invert: bool) -> Any:
    rows_of(x, among)
    common = dtypes.result_type(x, among)
    x, among = dtypes.as_array(x, common), dtypes.as_array(among, common).reshape(-1)
    if among.size <= COMPARE_ALL:
        found = (x[..., None] == among).any(-1)
    else:
        among = jnp.sort(among)
        found = among.at[insertion_points(among, x, False)].get(mode="clip") == x
    return ~found if invert else found


@lowers("aten::bucketize.Tensor", "aten::bucketize.Scalar", rows="masked")
def bucketize(x: Any, boundaries: Any, *, out_int32: bool, right: bool) -> Any:
    rows_of(x, boundaries)
    common = dtypes.result_type(x, boundaries)
    points = insertion_points(dtypes.as_array(boundaries, common), dtypes.as_array(x, common), right)
    return points.astype(dtypes.to_jax(out().dtype))


@lowers("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(ordered: Any, x: Any, *, out_int32: bool, right: bool, side: str | None, sorter: Any) -> Any:
    """Insertion points of x[..., m] in the rows of ordered[..., n], or in its only row."""
    right = right or side == "right"
    if sorter is not None:
        ordered = jnp.take_along_axis(ordered, sorter.astype(jnp.int32), -1)
    common = dtypes.result_type(ordered, x)
    ordered, x = dtypes.as_array(ordered, common), dtypes.as_array(x, common)
    if x.size == 0:
        points = jnp.zeros(x.shape, jnp.int32)
    elif ordered.ndim == 1:
        points = insertion_points(ordered, x, right)
    else:
        rows, queries = ordered.reshape(-1, ordered.shape[-1]), x.reshape(-1, x.shape[-1])
        points = jax.vmap(lambda o, q: insertion_points(o, q, right))(rows, queries).reshape(x.shape)
    return points.astype(dtypes.to_jax(out().dtype))


def insertion_points(ordered: Any, x: Any, right: bool) -> Any:
    """int32: how many elements of an ascending vector come before each x (`right`: or are equal). NaN is last."""
    if ordered.size <= COMPARE_ALL:
        after = ordered > x[..., None] if right else ordered >= x[..., None]
        return (~after).sum(-1, dtype=jnp.int32)
    return jnp.searchsorted(ordered, x, side="right" if right else "left").astype(jnp.int32)
