"""Reductions over segments of a dimension, given by their lengths or offsets, and their gradients."""

from __future__ import annotations

import math
from typing import Any

from . import dtypes
from ._jax import jax, jnp
from .registry import lowers
from .searching import insertion_points


def _offsets(lengths: Any, offsets: Any) -> Any:
    """[..., segments + 1]: where each segment begins, and where the last one ends."""
    if offsets is not None:
        return offsets
    ends = jnp.cumsum(lengths, -1)
    return jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends], -1)


class _Segments:
    """data[*lead, n, *rest] as [leads, n, rests], with the segment [leads, n] of each position."""

    def __init__(self, data: Any, lengths: Any, offsets: Any) -> None:
        offsets = _offsets(lengths, offsets)
        axis, self.count = offsets.ndim - 1, offsets.shape[-1] - 1
        self.lead, (n, *self.rest) = data.shape[:axis], data.shape[axis:]
        leads, rests = math.prod(self.lead), math.prod(self.rest)
        self.sizes = (leads, n, rests)
        offsets = offsets.reshape(leads, self.count + 1)
        self.lengths = jnp.diff(offsets).astype(jnp.int32)[..., None]
        segment = jax.vmap(lambda o: insertion_points(o, jnp.arange(n, dtype=o.dtype), True))(offsets) - 1
        # What lies before the first or behind the last one is in none.
        self.where = jnp.where(segment < 0, self.count, segment)

    def flat(self, x: Any) -> Any:
        """[leads, positions or segments, rests], in the type PyTorch computes in."""
        wide = dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))
        return x.reshape(self.sizes[0], x.shape[len(self.lead)], self.sizes[2]).astype(wide)

    def onto(self, start: Any, dtype: Any) -> Any:
        """Results [leads, segments, rests] that hold `start`, to be updated at each position's segment."""
        made = jnp.full((self.sizes[0], self.count, self.sizes[2]), start, dtype)
        return made.at[jnp.arange(self.sizes[0])[:, None], self.where]

    def total(self, x: Any) -> Any:
        """The sums of the segments."""
        return self.onto(0, x.dtype).add(x, mode="drop")

    def spread(self, x: Any) -> Any:
        """Each position's value of its segment, 0 for those of none."""
        return jnp.take_along_axis(x, self.where[..., None], 1, mode="fill", fill_value=0)


@lowers("aten::segment_reduce")
def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any,
    indices: Any,
    offsets: Any,
    axis: int,
    unsafe: bool,
    initial: float | None,
) -> Any:
    segments = _Segments(data, lengths, offsets)
    x = segments.flat(data)
    start = {"max": -math.inf, "min": math.inf, "prod": 1}.get(reduce, 0) if initial is None else initial
    onto = segments.onto(start, x.dtype)
    update = {"max": onto.max, "min": onto.min, "prod": onto.mul}.get(reduce, onto.add)
    value = update(x, mode="drop")
    if reduce == "mean":
        mean = value / jnp.maximum(segments.lengths, 1)
        value = jnp.where(segments.lengths == 0, math.nan if initial is None else value, mean)
    return value.reshape(*segments.lead, segments.count, *segments.rest).astype(data.dtype)


@lowers("aten::_segment_reduce_backward")
def segment_reduce_backward(
    grad: Any, output: Any, data: Any, reduce: str, *, lengths: Any, offsets: Any, axis: int, initial: float | None
) -> Any:
    segments = _Segments(data, lengths, offsets)
    x, grad, output = (segments.flat(v) for v in (data, grad, output))
    if reduce in ("max", "min"):
        # The elements that are the extremum share its gradient.
        chosen = (jnp.isnan(x) | (x == segments.spread(output))).astype(x.dtype)
        value = chosen * segments.spread(grad / jnp.maximum(segments.total(chosen), 1))
    elif reduce == "mean":
        value = segments.spread(grad / jnp.maximum(segments.lengths, 1))
    elif reduce == "sum":
        value = segments.spread(grad)
    else:
        # The product of the others: without the zeros, and 0 where there is another zero.
        start = 1 if initial is None else initial
        zero = x == 0
        zeros = segments.spread(segments.total(zero.astype(x.dtype)))
        others = segments.spread(segments.onto(start, x.dtype).mul(jnp.where(zero, 1, x), mode="drop"))
        others = jnp.where(zeros - zero > 0, 0, others / jnp.where(zero, 1, x))
        value = segments.spread(grad) * others
    return value.reshape(data.shape).astype(data.dtype)
