"""What of a call decides its program, in words, and what tells two such calls apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Reversible, Sequence
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for

from . import _C
from .lowering import variants
from .views import EMPTY, GATHER, SLICE, WHOLE, ScalarOperand, Storage, TensorOperand, storage_order

Arguments = dict[str, str]


def describe(name: str, values: Sequence[Any], storages: Sequence[Storage], with_rows: bool = False) -> Arguments:
    """`{"self": "float32[16, 64]", "dim": "1"}` of a call of an op, with what is unusual of its memory and modes.

    values, storages, with_rows: as `eager.build` gets them.
    """
    described: Arguments = {}
    users = defaultdict(list)
    for argument, value in zip(variants.find(name)._schema.arguments, values, strict=True):
        many = isinstance(value, (list, tuple))
        items = value if many else [value]
        if not any(isinstance(x, (TensorOperand, ScalarOperand)) for x in items):
            if value is not None:
                described[argument.name] = str(value)
            continue
        for i, x in enumerate(items):
            label = f"{argument.name}[{i}]" if many else argument.name
            described[label] = _words(x)
            if isinstance(x, TensorOperand):
                users[x.storage].append(label)
                described |= {f"memory of {label}": words for words in _memory(x, storages[x.storage])}
    shared = [" and ".join(labels) for labels in users.values() if len(labels) > 1]
    return described | ({"sharing memory": ", ".join(shared)} if shared else {}) | _modes(with_rows)


def difference(before: Reversible[Arguments], made: Arguments, most: int = 3) -> str:
    """What tells arguments from the nearest of those before, the latest of equally near ones; "" if nothing does, or if
    there are none."""

    def differing(other: Arguments) -> list[str]:
        return [n for n in dict.fromkeys([*other, *made]) if other.get(n) != made.get(n)]

    nearest = min(reversed(before), key=lambda other: len(differing(other)), default=made)
    names = differing(nearest)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{n}: {nearest.get(n, 'none')} -> {made.get(n, 'none')}" for n in names[:most]) + more


def _words(x: Any) -> str:
    if isinstance(x, ScalarOperand):
        return "a number" if x.is_number else f"{_dtype(x.dtype)}[]"
    if not isinstance(x, TensorOperand):
        return str(x)
    text = f"{_dtype(x.dtype)}{list(x.sizes)}"
    text = text if x.strides == make_contiguous_strides_for(x.sizes) else f"{text} with strides {list(x.strides)}"
    return text + (" conjugate" if x.conj else "") + (" negative" if x.neg else "")


def _memory(x: TensorOperand, storage: Storage) -> list[str]:
    """How an operand lies in its buffer, if not as the whole of a buffer of its own dims and dtype."""
    if x.kind == EMPTY or (x.kind == WHOLE and storage.dtype == x.dtype and storage.dims == _memory_order(x)):
        return []
    if not storage.written:
        return [f"{storage.nbytes} bytes never written"]
    how = {WHOLE: "all", SLICE: "a slice", GATHER: "elements"}[x.kind]
    step = f" in steps of {list(x.step)}" if x.kind == SLICE and any(n != 1 for n in x.step) else ""
    return [f"{how} of {_dtype(storage.dtype)}{list(storage.dims)}{step}"]


def _memory_order(x: TensorOperand) -> tuple[int, ...]:
    return tuple(x.sizes[i] for i in storage_order(x.sizes, x.strides))


def _modes(with_rows: bool) -> Arguments:
    """What is not as usual, and decides programs."""
    modes: Arguments = {}
    if with_rows:
        modes["rows"] = "of a number known at run time"
    if torch.get_float32_matmul_precision() != "highest":
        modes["float32 matmul precision"] = torch.get_float32_matmul_precision()
    if torch.get_default_dtype() != torch.float32:
        modes["default dtype"] = _dtype(torch.get_default_dtype())
    if torch.are_deterministic_algorithms_enabled():
        modes["deterministic algorithms"] = "on"
    if _C.debug_mode():
        modes["mode"] = "debug"
    return modes


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
