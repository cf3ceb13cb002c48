"""The table of lowerings: one aten op, one short function on jax.lax/jax.numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import dtypes


@dataclass(frozen=True)
class Rule:
    """How to lower one functional op.

    fn: takes the op's arguments as its schema has them (positional ones by position, keyword-only ones by name, all of
        them, defaults filled in) less `generator`, `layout`, `device`, `pin_memory` and `memory_format`; returns one
        array, or a tuple or list of arrays in the order of the op's returns.
    runtime: names of scalar arguments that are values of the program, not part of its signature: they arrive as weakly
        typed 0-d arrays. The function must not branch on them in Python.
    rows: how the op treats operands padded in dimension 0, whose number of valid rows `context().rows` is only known at
        run time (see rows.py). "pointwise": row i of every result comes from row i of the operands, so the padding
        may hold anything and results are padded alike. "masked": the lowering itself keeps the padding out of what it
        computes, says in `context().row_outputs` which results are padded, and raises `rows.Specialise` for what it
        can't do. "any": the same, for operands padded in any
        dimension. None: the operands are cut to their true size first.
    random: draws from the generator.
    """

    fn: Callable[..., Any]
    runtime: tuple[str, ...] = ()
    rows: str | None = None
    random: bool = False


@dataclass(frozen=True)
class DynamicRule:
    """How to lower an op whose output size depends on values.

    fn: takes arguments as `Rule.fn` does; returns `rows.Compacted`: results whose dimension 0 is padded to a static
        maximum, the valid rows first, and how many there are.
    when: takes the arguments (of tensors only shapes and dtypes are read); True if this call's size depends on values.
    """

    fn: Callable[..., Any]
    when: Callable[..., bool] | None = None


RULES: dict[str, Rule] = {}
DYNAMIC_RULES: dict[str, DynamicRule] = {}
HIGHER_ORDER: dict[str, Callable[..., Any]] = {}


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


def lowers_dynamic(
    *names: str, when: Callable[..., bool] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the lowering of ops whose output size depends on values, see `DynamicRule`."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in DYNAMIC_RULES:
                raise ValueError(f"{name} has a lowering already: {DYNAMIC_RULES[name].fn}")
            DYNAMIC_RULES[name] = DynamicRule(fn, when)
        return fn

    return register


def lowers_higher_order(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the lowering of higher-order ops, such as `cond`.

    It takes a call's arguments with arrays for tensors and graphs for functions, and returns arrays, flat.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        HIGHER_ORDER.update(dict.fromkeys(names, fn))
        return fn

    return register


def is_dynamic(name: str, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> bool:
    """True if the output size of this call of the op `name` depends on values: `DYNAMIC_RULES` has its lowering.

    args, kwargs: as the op is called; tensors may be fake or arrays.
    """
    rule = DYNAMIC_RULES.get(name)
    return rule is not None and (rule.when is None or rule.when(*args, **(kwargs or {})))


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
            cast = {k: dtypes.as_array(v, compute) for k, v in operands.items()}
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
        return common, torch.bool
    elif to == "real":
        result = dtypes.real(common)
    elif to == "int64_from_bool" and common == torch.bool:
        common = result = torch.int64
    return dtypes.opmath(common), result


def _is_operand(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex)) or (hasattr(x, "dtype") and hasattr(x, "shape"))
