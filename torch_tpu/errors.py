"""Wrong arguments raise what they raise on CPU: the same type, the same words."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

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
    """Raise the CPU's error for what some shape functions let pass: dimensions out of range, float indices, windows
    that don't move."""
    named = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}
    this, dims = named.get("self"), named.get("dim")
    if isinstance(this, torch.Tensor) and dims is not None:
        rank = max(this.ndim, 1)
        wrong = any(isinstance(d, int) and not -rank <= d < rank for d in (dims if isinstance(dims, list) else [dims]))
    else:
        wrong = False
    indices = pytree.tree_leaves((named.get("index"), named.get("indices")))
    wrong = wrong or any(isinstance(i, torch.Tensor) and (i.is_floating_point() or i.is_complex()) for i in indices)
    wrong = wrong or any(_least(named.get(name)) < least for name, least in _LEAST)
    said = _said_by_cpu(op, args, kwargs) if wrong else None
    if said is not None:
        raise said


# The least that arguments of convolutions and pooling may be.
_LEAST = (("padding", 0), ("output_padding", 0), ("stride", 1), ("dilation", 1))


def _least(values: Any) -> float:
    return min((v for v in values if isinstance(v, int)), default=math.inf) if isinstance(values, list) else math.inf


def on_cpu(tree: Any) -> Any:
    """CPU tensors, all zeros, for a tree's meta tensors; None if they would be too large."""
    metas = [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
    if sum(m.untyped_storage().nbytes() for m in metas) > _MOST_BYTES:
        return None
    return pytree.tree_map(_on_cpu, tree)


def on_meta(tree: Any) -> Any:
    """Meta tensors for a tree's tensors."""
    return pytree.tree_map_only(
        torch.Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), tree
    )


def _said_by_cpu(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    host = on_cpu((args, kwargs))
    if host is not None:
        try:
            op(*host[0], **host[1])
        except NotImplementedError as said:
            # "not implemented for 'Float'" is about the operands; an op that the CPU doesn't have says nothing of them.
            return said if "not implemented for '" in str(said) else None
        except Exception as said:  # noqa: BLE001 - whatever PyTorch says
            return said
    return None


def check_cast(result: torch.dtype, target: torch.dtype) -> None:
    """Raise PyTorch's RuntimeError unless an in-place or `out=` result of one dtype may go into another."""
    if not torch.can_cast(result, target):
        raise RuntimeError(f"result type {_name(result)} can't be cast to the desired output type {_name(target)}")


def _on_cpu(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_()
    return torch.device("cpu") if isinstance(x, torch.device) else x


_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float",
    torch.float64: "Double", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def _name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype))
