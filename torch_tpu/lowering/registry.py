"""The table of lowerings: one aten op, one short function on jax.lax/jax.numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import dtypes
from ._jax import jnp


@dataclass(frozen=True)
class Rule:
    """How to lower one functional op.

    fn: takes the op's arguments as its schema has them (positional ones by position, keyword-only ones by name, all of
        them, defaults filled in) less `generator`, `layout`, `device`, `pin_memory` and `memory_format`; returns one
        array, or a tuple or list of arrays in the order of the op's returns.
    runtime: names of scalar arguments that are values of the program, not part of its signature: they arrive as weakly
        typed 0-d arrays. The function must not branch on them in Python.
    rows: how the op treats operands whose number of rows is only known at run time ("pointwise" or None: specialise).
    random: draws from the generator.
    """

    fn: Callable[..., Any]
    runtime: tuple[str, ...] = ()
    rows: str | None = None
    random: bool = False


RULES: dict[str, Rule] = {}


def lowers(
    *names: str, runtime: tuple[str, ...] = (), rows: str | None = None, random: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the lowering of functional ops: `@lowers("aten::cumsum", "aten::sum.dim_IntList")`.

    In-place and `out=` variants follow from the functional one. Names are `aten::name` or `aten::name.overload`.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a lowering already: {RULES[name].fn}")
            RULES[name] = Rule(fn, runtime, rows, random)
        return fn

    return register


def pointwise(
    *names: str, runtime: tuple[str, ...] = (), to: str = "same", static: tuple[str, ...] = (), random: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an elementwise lowering: operands are promoted and cast as PyTorch does, then broadcast by JAX.

    Every array and number among the arguments takes part in promotion, except arguments named in `static` (str, None,
    lists and dtypes never do). The function sees operands in the type PyTorch computes in (float32 for 16-bit floats)
    and its result is cast to the result type.

    to: "same" (the promoted type), "float" (integers become the default float), "bool" (comparisons),
        "real" (complex gives its real type), "int64_from_bool" (bool gives int64).
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount]

        @functools.wraps(fn)
        def lowering(*args: Any, **kwargs: Any) -> Any:
            named = dict(zip(parameters, args, strict=False)) | kwargs
            operands = {k: v for k, v in named.items() if k not in static and _is_operand(v)}
            compute, result = pointwise_dtypes(to, *operands.values())
            cast = {k: jnp.asarray(v, dtypes.to_jax(compute)) for k, v in operands.items()}
            value = fn(**(named | cast))
            return value.astype(dtypes.to_jax(result))

        lowers(*names, runtime=runtime, rows="pointwise", random=random)(lowering)
        return fn

    return decorate


def pointwise_dtypes(to: str, *operands: Any) -> tuple[torch.dtype, torch.dtype]:
    """(the dtype to compute in, the dtype of the result) of an elementwise op, see `pointwise`."""
    common = dtypes.result_type(*operands)
    result = common
    if to == "float" and not (common.is_floating_point or common.is_complex):
        common = result = torch.get_default_dtype()
    elif to == "bool":
        result = torch.bool
    elif to == "real":
        result = dtypes.real(common)
    elif to == "int64_from_bool" and common == torch.bool:
        common = result = torch.int64
    return dtypes.opmath(common), result


def _is_operand(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) or (hasattr(x, "dtype") and hasattr(x, "shape"))
