"""Elementwise arithmetic, comparison and mathematical functions."""

from __future__ import annotations

from typing import Any

from ._jax import jnp
from .registry import pointwise


@pointwise("aten::add.Tensor", "aten::add.Scalar", runtime=("other", "alpha"), static=("alpha",))
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return jnp.logical_or(x, y) if x.dtype == bool else x + jnp.asarray(alpha, y.dtype) * y


@pointwise("aten::relu")
def relu(x: Any) -> Any:
    return jnp.maximum(x, 0)
