"""Wrong arguments raise what they raise on CPU: the same type, the same words."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from . import doubts
from .lowering import variants
from .views import ScalarOperand, TensorOperand

# Operands larger than this are not made on the CPU to hear its error.
_MOST_BYTES = 1 << 28


def raise_as_on_cpu(error: Exception, op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> NoReturn:
    """Raise what the op raises on CPU for operands of these shapes, or `error` if it takes them there.

    Shape functions written in Python check what the kernels check, in other words. Only the failing call pays for this.
    """
    said = _said_by_cpu(op, args, kwargs)
    if said is None:
        raise error
    raise said from None


def raise_if_doubtful(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for what shape functions let pass, as doubts.py tells."""
    named = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}
    doubtful = doubts.is_doubtful(op, named)
    inexact = {x.dtype for x in pytree.tree_leaves(named) if isinstance(x, torch.Tensor) and doubts.is_inexact(x)}
    # What autograd calls is as it must be, though the CPU may keep other dtypes for it.
    mixed = len(inexact) > 1 and "backward" not in op.name()
    if doubts.is_elementwise(op):
        doubtful, named = True, {name: [1] if name == "size" else _of_one_element(x) for name, x in named.items()}
    said = _said_by_cpu(op, [], named) if doubtful or mixed else None
    # The made-up values may be wrong where others are not: of mixed dtypes only what is said of dtypes counts.
    if said is not None and (doubtful or "type" in str(said)) and not _is_of_halves(said):
        raise said
    if op._schema.name in _WRITES_AT_INDICES:
        _check_written(named["self"], named["indices"], named["values"])


def _of_one_element(tree: Any) -> Any:
    """With ones for a tree's meta tensors, of at most one element."""
    return pytree.tree_map_only(torch.Tensor, lambda x: torch.ones([min(n, 1) for n in x.shape], dtype=x.dtype), tree)


def _is_of_halves(said: Exception) -> bool:
    """Whether the CPU has no kernel for 16-bit floats, which are nothing special elsewhere."""
    return any(f"not implemented for '{name}'" in str(said) for name in ("Half", "BFloat16"))


_WRITES_AT_INDICES = frozenset(f"aten::{n}" for n in ("index_put", "index_put_", "_index_put_impl_"))


def _check_written(x: torch.Tensor, indices: list[Any], values: torch.Tensor) -> None:
    is_filled = values.numel() == 1 and all(i is None or i.dtype == torch.bool for i in indices)
    if x.dtype != values.dtype and not is_filled:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {_name(x.dtype)} for the destination "
            f"and {_name(values.dtype)} for the source."
        )


def raise_if_overlapping(op: OpOverload, values: list[Any]) -> None:
    """Raise the CPU's error for an `out=` tensor that shares memory with an operand.

    values: the op's arguments in schema order, with TensorOperand and ScalarOperand.
    """
    outs, operands = set(), set()
    for argument, value in zip(op._schema.arguments, values, strict=True):
        storages = {x.storage for x in pytree.tree_leaves(value) if isinstance(x, TensorOperand)}
        (outs if argument.is_out else operands).update(storages)
    if not outs & operands:
        return
    memory: dict[int, torch.Tensor] = {}

    def overlapping(x: TensorOperand) -> torch.Tensor:
        end = x.offset + 1 + sum(max(n - 1, 0) * s for n, s in zip(x.sizes, x.strides, strict=True))
        flat = memory.setdefault(x.storage, torch.empty(0, dtype=x.dtype))
        if flat.numel() < end:
            flat.resize_(end).zero_()
        return flat.view(x.dtype).as_strided(x.sizes, x.strides, x.offset)

    _host_arguments(op, values, overlapping)  # each storage gets as large as all of its operands need
    said = _said_by_cpu(op, [], _host_arguments(op, values, overlapping))
    if said is not None:
        raise said


def to_host(tree: Any) -> Any:
    """CPU tensors for a tree's meta tensors; None if they would be too large."""
    metas = [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
    if sum(m.untyped_storage().nbytes() for m in metas) > _MOST_BYTES:
        return None
    return pytree.tree_map(_on_cpu, tree)


def to_meta(tree: Any) -> Any:
    """Meta tensors for a tree's tensors."""
    return pytree.tree_map_only(
        torch.Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), tree
    )


def raise_if_refused(op: OpOverload, values: list[Any], random: bool) -> None:
    """Raise what an elementwise op raises on CPU for such numbers, whatever the sizes.

    values: the op's arguments in schema order, with TensorOperand and ScalarOperand.
    """
    said = _said_by_cpu(op, [], _host_arguments(op, values, _one_element))
    if said is None:
        return
    # Other arguments may be wrong as well, which shape functions say with the true sizes.
    ones = pytree.tree_map(lambda x: replace(x, value=type(x.value)(1)) if isinstance(x, ScalarOperand) else x, values)
    if random or _said_by_cpu(op, [], _host_arguments(op, ones, _one_element)) is None:
        raise said


def _one_element(x: TensorOperand) -> torch.Tensor:
    return torch.zeros([min(n, 1) for n in x.sizes], dtype=x.dtype)


def _host_arguments(
    op: OpOverload, values: list[Any], tensor: Callable[[TensorOperand], torch.Tensor]
) -> dict[str, Any]:
    """The op's arguments by name, for the CPU; what makes tensors makes one of one element."""
    named = {}
    for argument, value in zip(op._schema.arguments, values, strict=True):
        wrapped = variants.wants_tensor(op, argument)

        def on_cpu(x: Any, wrapped: bool = wrapped) -> Any:
            if isinstance(x, TensorOperand):
                return tensor(x)
            if isinstance(x, ScalarOperand):
                return torch.tensor(x.value) if wrapped else x.value
            return x

        named[argument.name] = [1] if argument.name == "size" else pytree.tree_map(on_cpu, value)
    return named


def _said_by_cpu(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    host = to_host((args, kwargs))
    if host is not None:
        try:
            # The CPU's generator stays where it is, and what it warns of the call itself will warn of.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                op(*host[0], **host[1])
        except NotImplementedError as said:
            # "not implemented for 'Float'" is about the operands; an op that the CPU doesn't have says nothing of them.
            return said if any(words in str(said) for words in ("not implemented for '", "complex")) else None
        except Exception as said:  # noqa: BLE001 - whatever PyTorch says
            return said
    return None


def check_cast(result: torch.dtype, target: torch.dtype) -> None:
    """Raise PyTorch's RuntimeError unless an in-place or `out=` result of one dtype may go into another."""
    if not torch.can_cast(result, target):
        raise RuntimeError(f"result type {_name(result)} can't be cast to the desired output type {_name(target)}")


def _on_cpu(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        if not x.is_meta:
            return x
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        return made.fill_(1) if x.is_floating_point() else made.zero_()
    return torch.device("cpu") if isinstance(x, torch.device) else x


_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float",
    torch.float64: "Double", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def _name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype))
