"""What the checks run: PyTorch's operator database, the dtypes and numbers of samples, and the way to the device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
# Samples per op and dtype; the other dtypes take FEW, as do layouts, gradgrad and transforms.
MANY, FEW = 5, 2
_MANY_OF = frozenset({torch.float32, torch.bfloat16, torch.int64})
# Some generators give thousands of samples; those that count are spread over this many.
_LOOKED_AT = 200
# The attribute of tensors that are not moved.
STAYS = "stays_on_cpu"


@functools.cache
def operators() -> dict[str, OpInfo]:
    """The entries of the operator database by name, `name.variant` for variants of a test."""
    return {op.full_name: op for op in database.op_db}


def dtypes(op: OpInfo) -> list[torch.dtype]:
    """The dtypes of `DTYPES` that an op supports on the CPU."""
    supported = op.supported_dtypes("cpu")
    return [d for d in DTYPES if d in supported]


def dtype_name(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def sample_count(dtype: torch.dtype) -> int:
    """How many samples a dtype gets."""
    return MANY if dtype in _MANY_OF else FEW


def samples(op: OpInfo, dtype: torch.dtype, count: int, requires_grad: bool = False) -> list[SampleInput]:
    """`count` of an op's samples on the CPU, spread evenly over what its generator gives; the same in every process."""
    torch.manual_seed(0)
    made = spread(
        list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), _LOOKED_AT)), count
    )
    if op.name == "tensor_split":
        for x in tensors([s.args for s in made]):
            setattr(x, STAYS, True)  # where to split must be on the CPU on any device
    return made


def error_inputs(op: OpInfo) -> list[ErrorInput]:
    """An op's wrong inputs."""
    torch.manual_seed(0)
    return list(op.error_inputs("cpu")) if op.error_inputs_func is not None else []


def spread(items: list[Any], count: int) -> list[Any]:
    """The first, the last and evenly spaced items between."""
    if len(items) <= count or count == 1:
        return items[:count]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def to_tpu(sample: SampleInput) -> SampleInput:
    """A sample with its tensors on the device: the same storages, strides, offsets, sharing and need of a gradient."""
    storages: dict[int, torch.Tensor] = {}
    return _mapped(sample, lambda x: _moved(x, storages), _device)


def copied(sample: SampleInput) -> SampleInput:
    """A sample with tensors of its own on the CPU, alike in all that `to_tpu` keeps."""
    storages: dict[int, torch.Tensor] = {}
    return _mapped(sample, lambda x: _moved(x, storages, "cpu"), lambda x: x)


def with_tensors(sample: SampleInput, fn: Callable[[torch.Tensor], Any]) -> SampleInput:
    """A sample with `fn` applied to each of its tensors."""
    return _mapped(sample, fn, lambda x: x)


def _mapped(sample: SampleInput, tensor: Callable[[torch.Tensor], Any], other: Callable[[Any], Any]) -> SampleInput:
    def leaf(x: Any) -> Any:
        return tensor(x) if isinstance(x, torch.Tensor) else other(x)

    return SampleInput(
        pytree.tree_map(leaf, sample.input),
        args=pytree.tree_map(leaf, tuple(sample.args)),
        kwargs=pytree.tree_map(leaf, dict(sample.kwargs)),
        output_process_fn_grad=sample.output_process_fn_grad,
        broadcasts_input=sample.broadcasts_input,
        name=sample.name,
    )


def _device(x: Any) -> Any:
    if isinstance(x, torch.Generator):
        return torch.Generator("tpu").manual_seed(x.initial_seed())
    return "tpu" if isinstance(x, str | torch.device) and str(x) in ("cpu", "cpu:0") else x


def _moved(x: torch.Tensor, storages: dict[int, torch.Tensor], device: str = "tpu") -> torch.Tensor:
    if x.is_meta or hasattr(x, STAYS):
        return x
    with torch.no_grad():
        moved = _detached(x.detach(), storages, device)
    return moved.requires_grad_() if x.requires_grad else moved


def _detached(x: torch.Tensor, storages: dict[int, torch.Tensor], device: str) -> torch.Tensor:
    if x.layout != torch.strided:
        return x.to(device, copy=True)
    if x.is_conj():
        return _detached(x.conj(), storages, device).conj()
    if x.is_neg():
        return torch._neg_view(_detached(torch._neg_view(x), storages, device))
    key = x.untyped_storage()._cdata
    if key not in storages:
        elements = x.untyped_storage().nbytes() // x.element_size()
        flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, (elements,), (1,))
        storages[key] = flat.to(device, copy=True)
    whole = storages[key].view(x.dtype)
    return torch.as_strided(whole, x.shape, x.stride(), x.storage_offset()).detach()


# -- layouts of our own ------------------------------------------------------------------------------------------


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.dim() >= 2 else x


def _strided(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 0:
        return x
    wide = torch.stack([x, torch.zeros_like(x)], dim=-1)
    return wide[..., 0]


def _offset(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(3), x.reshape(-1)])[3:].view(x.shape)


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape) if x.dim() >= 1 and x.shape[0] > 0 else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def _scalar(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1)[0].clone() if x.numel() else x


def _empty(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((0, *x.shape[1:])) if x.dim() >= 1 else x


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": _transposed,
    "strided": _strided,
    "offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
    "0-d": _scalar,
    "empty": _empty,
}


# What PyTorch's own CPU kernels don't survive, or do without a check that others have.
_NOT_ON_CPU = {
    ("_chunk_cat", "0-d"): "segmentation fault",
    ("repeat_interleave", "empty"): "keeps an output_size that contradicts the repeats",
    ("_batch_norm_with_update", "expanded"): "updates statistics that overlap",
}


def laid_out(op: OpInfo, sample: SampleInput) -> Iterator[tuple[str, SampleInput]]:
    """A sample in each of `LAYOUTS` that changes it."""
    for name, change in LAYOUTS.items():
        if (op.name, name) in _NOT_ON_CPU:
            continue
        changed = with_tensors(sample, lambda x, change=change: _changed(x, change))
        if any(a is not b for a, b in zip(tensors(changed), tensors(sample), strict=True)):
            yield name, changed


def _changed(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if x.layout != torch.strided or x.is_conj() or x.is_neg() or hasattr(x, STAYS):
        return x
    made = change(x)
    return (
        x
        if made is x or (made.shape == x.shape and made.stride() == x.stride() and not made.storage_offset())
        else made
    )


def tensors(tree: SampleInput | Iterable[Any] | Any) -> list[torch.Tensor]:
    """The tensors of a sample or of a tree."""
    if isinstance(tree, SampleInput):
        tree = (tree.input, tuple(tree.args), dict(tree.kwargs))
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def in_double(sample: SampleInput) -> SampleInput:
    """A sample with its floating-point tensors, and dtypes asked for, in double precision."""

    def dtype(x: Any) -> Any:
        return double(x) if isinstance(x, torch.dtype) else x

    return _mapped(copied(sample), lambda x: x.detach().to(double(x.dtype)), dtype)


def double(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the same kind in double precision."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


@dataclasses.dataclass(frozen=True)
class Case:
    """One verdict: an entry of the database, a dtype, a kind of check."""

    op: str
    dtype: str
    kind: str
