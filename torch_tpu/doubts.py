"""Which calls are put to the CPU before they are compiled: shape functions let them pass, and its kernels may not."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from .lowering import variants
from .lowering.registry import RULES

Arguments = dict[str, Any]  # by their names in the schema, with meta tensors


def is_doubtful(op: OpOverload, named: Arguments) -> bool:
    """Whether an op may refuse these arguments for what they are."""
    kind = op._schema.name.removeprefix("aten::").removesuffix("_")
    return (
        kind in _CHECKED_BY_KERNELS
        or _reduces_nothing(named)
        or _has_wrong_indices(kind, named)
        or _has_wrong_windows(kind, named)
        or _has_no_kernel(kind, named)
        or _is_made_complex(named)
    )


def is_elementwise(op: OpOverload) -> bool:
    """Whether the dtypes an op takes can be asked with one element. Shape functions promote what kernels refuse."""
    functional = variants.functional(op) if variants.mutates(op) else None
    rule = RULES.get((functional.op if functional else op).name())
    kind = op._schema.name.removeprefix("aten::")
    return kind.startswith("_foreach_") or kind in _RANDOM or (rule is not None and rule.rows == "pointwise")


def is_inexact(x: torch.Tensor) -> bool:
    """Whether a tensor holds floats or complex numbers."""
    return x.is_floating_point() or x.is_complex()


_RANDOM = frozenset({"rand", "randn"})

# Ops whose kernels refuse what their shape functions let pass.
_CHECKED_BY_KERNELS = frozenset(
    ["aminmax", "as_strided_scatter", "bucketize", "masked_scatter", "multinomial", "searchsorted", "select_scatter"]
)


def _reduces_nothing(named: Arguments) -> bool:
    """No elements, or dims that are not there."""
    this, dims = named.get("self"), named.get("dim")
    if not isinstance(this, torch.Tensor):
        return False
    rank = max(this.ndim, 1)
    dims = dims if isinstance(dims, list) else [dims]
    return this.numel() == 0 or any(isinstance(d, int) and not -rank <= d < rank for d in dims)


def _has_wrong_indices(kind: str, named: Arguments) -> bool:
    """Of a dtype that no index has, a target's included."""
    one, many, target = named.get("index"), named.get("indices"), named.get("target")
    return (
        (isinstance(one, torch.Tensor) and one.dtype not in (torch.int64, torch.int32))
        or any(isinstance(i, torch.Tensor) and i.dtype not in _INDICES for i in pytree.tree_leaves(many))
        or (kind.startswith("nll_loss") and target.dtype != torch.int64)
    )


_INDICES = frozenset({torch.int64, torch.int32, torch.uint8, torch.bool})

# The least that arguments of convolutions and pooling may be.
_LEAST = (("padding", 0), ("output_padding", 0), ("stride", 1), ("dilation", 1))


def _has_wrong_windows(kind: str, named: Arguments) -> bool:
    """That don't move, or more output padding than there are steps."""
    if any(_least(named.get(name)) < least for name, least in _LEAST):
        return True
    if kind != "convolution" or not named["transposed"]:
        return False
    steps = zip(named["output_padding"], named["stride"], named["dilation"], strict=False)
    return any(padding >= max(stride, dilation) for padding, stride, dilation in steps)


def _least(values: Any) -> float:
    return min((v for v in values if isinstance(v, int)), default=math.inf) if isinstance(values, list) else math.inf


# Ops that have no kernel for integers and bools, and for bools and complex numbers.
_OF_FLOATS = frozenset(
    [
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_trilinear3d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "logcumsumexp",
        "smooth_l1_loss",
        "huber_loss",
        "mse_loss",
        "binary_cross_entropy",
    ]
)
_OF_ORDERED = frozenset(["argmax", "argmin", "median", "nanmedian", "sort", "scatter_reduce", "index_reduce"])


def _has_no_kernel(kind: str, named: Arguments) -> bool:
    this = named.get("self")
    if not isinstance(this, torch.Tensor):
        return False
    is_ordered = this.dtype != torch.bool and not this.is_complex()
    return (kind in _OF_FLOATS and not is_inexact(this)) or (kind in _OF_ORDERED and not is_ordered)


def _is_made_complex(named: Arguments) -> bool:
    """A complex factor of real tensors."""
    leaves = pytree.tree_leaves(named)
    is_complex = any(isinstance(x, torch.Tensor) and x.is_complex() for x in leaves)
    return any(isinstance(x, complex) for x in leaves) and not is_complex
