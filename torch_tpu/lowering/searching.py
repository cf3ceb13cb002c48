"""Where values belong among others: membership and buckets."""

from __future__ import annotations

from typing import Any

from . import dtypes
from ._jax import jnp
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


def insertion_points(ordered: Any, x: Any, right: bool) -> Any:
    """int32: how many elements of an ascending vector come before each x (`right`: or are equal). NaN is last."""
    if ordered.size <= COMPARE_ALL:
        after = ordered > x[..., None] if right else ordered >= x[..., None]
        return (~after).sum(-1, dtype=jnp.int32)
    return jnp.searchsorted(ordered, x, side="right" if right else "left").astype(jnp.int32)
