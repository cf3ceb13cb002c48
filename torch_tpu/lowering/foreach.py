"""Operations on lists of tensors, made from those on one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import activations, creation, dtypes, matmul, pointwise, special  # noqa: F401 - their rules are looked up below
from ._jax import jnp
from .context import out
from .reductions import axes, norm
from .registry import RULES, lowers

# fmt: off
_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
)
# fmt: on

# foreach op -> the op on one tensor
_ONE = {f"_foreach_{name}": name for name in _UNARY} | {
    "_foreach_clone": "clone",
    "_foreach_mm": "mm",
    "_foreach_maximum.Scalar": "clamp_min",
    "_foreach_maximum.ScalarList": "clamp_min",
    "_foreach_maximum.List": "maximum",
    "_foreach_minimum.Scalar": "clamp_max",
    "_foreach_minimum.ScalarList": "clamp_max",
    "_foreach_minimum.List": "minimum",
    "_foreach_lerp.List": "lerp.Tensor",
    "_foreach_lerp.Scalar": "lerp.Scalar",
    "_foreach_lerp.ScalarList": "lerp.Scalar",
}
for _name in ("add", "sub", "mul", "div"):
    for _form in ("List", "Scalar", "ScalarList", "Tensor"):
        if (_name, _form) != ("sub", "Tensor"):
            _ONE[f"_foreach_{_name}.{_form}"] = f"{_name}.Tensor"
for _name in ("clamp_min", "clamp_max"):
    for _form in ("List", "Scalar", "ScalarList"):
        _ONE[f"_foreach_{_name}.{_form}"] = f"{_name}.Tensor" if _form == "List" else _name


def _each(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` on each item; what is no list is the same for all items."""

    def lowering(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))
        columns = [a if isinstance(a, (list, tuple)) else [a] * count for a in args]
        return [fn(*row, **kwargs) for row in zip(*columns, strict=True)]

    return lowering


for _name, _one in _ONE.items():
    _rule = RULES[f"aten::{_one}"]
    lowers(f"aten::{_name}", runtime=("scalar", "scalars", "weight", "alpha"))(_each(_rule.fn))

# Exponents are part of the program.
for _form in ("List", "Scalar", "ScalarList"):
    lowers(f"aten::_foreach_pow.{_form}")(
        _each(RULES["aten::pow.Tensor_Tensor" if _form == "List" else "aten::pow.Tensor_Scalar"].fn)
    )
lowers("aten::_foreach_pow.ScalarAndTensor", runtime=("self",))(_each(RULES["aten::pow.Scalar"].fn))


def _each_with_value(name: str) -> Callable[..., Any]:
    """addcmul or addcdiv of each item, with one factor or a list of them."""
    each = _each(lambda x, a, b, v: RULES[name].fn(x, a, b, value=v))
    return lambda xs, a, b, value=1: each(xs, a, b, value)


for _name in ("addcmul", "addcdiv"):
    _forms = [f"aten::_foreach_{_name}.{form}" for form in ("Scalar", "ScalarList")]
    lowers(*_forms, runtime=("value", "scalars"))(_each_with_value(f"aten::{_name}"))


@lowers("aten::_foreach_zero")
def foreach_zero(xs: Any) -> Any:
    return [jnp.zeros_like(x) for x in xs]


@lowers("aten::_foreach_copy")
def foreach_copy(xs: Any, sources: Any) -> Any:
    pairs = zip(xs, sources, strict=True)
    return [jnp.broadcast_to(dtypes.cast(source, dtypes.to_torch(x.dtype)), x.shape) for x, source in pairs]


@lowers("aten::_foreach_max")
def foreach_max(xs: Any) -> Any:
    return [jnp.max(x) for x in xs]


@lowers("aten::_foreach_norm.Scalar")
def foreach_norm(xs: Any, order: float, dtype: torch.dtype | None) -> Any:
    xs = xs if dtype is None else [dtypes.cast(x, dtype) for x in xs]
    return [dtypes.cast(norm(x, order, axes(None, x.ndim)), out(i).dtype) for i, x in enumerate(xs)]


@lowers("aten::_foreach_powsum.Scalar")
def foreach_powsum(xs: Any, order: float, dtype: torch.dtype | None) -> Any:
    power = RULES["aten::linalg__powsum"].fn
    return [power(x, order, dtype=dtype) for x in xs]
