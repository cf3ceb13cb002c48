"""What a lowering may ask besides its arguments: the outputs PyTorch promises, precision, random numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ._jax import jnp, lax


@dataclass
class Context:
    """The state of one program being lowered.

    outs: the fake tensors of the op being lowered, flat, in the order of its returns (None for absent ones).
    ins: the op's positional arguments, with fake tensors for tensors; empty where nobody says.
    rng: uint32[4], the generator's seed (low, high word) and offset (low, high word); None outside random ops.
    rng_used: random elements drawn so far, each op's rounded up to 4.
    emulated: the program is for the CPU plugin.
    rows: 0-d int32, how many rows (of dimension 0) of the padded operands are valid; None where no operand is padded.
    row_operands: the padded operands, as the lowering receives them. See rows.py.
    row_dims: for each of these, the dimension that is padded (0 if not given); rules other than rows="any" take 0 only.
    grown: results padded along a dimension, by position: (dimension, rows they have more than the operands).
    row_outputs: indices of the results whose dimension 0 is padded likewise, filled in by the lowering.
    """

    outs: list[Any] = field(default_factory=list)
    ins: Sequence[Any] = ()
    rng: Any = None
    rng_used: int = 0
    matmul_precision: str = "highest"
    deterministic: bool = False
    emulated: bool = False
    rows: Any = None
    row_operands: tuple[Any, ...] = ()
    row_dims: tuple[int, ...] = ()
    grown: dict[int, tuple[int, int]] = field(default_factory=dict)
    row_outputs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.row_dims = self.row_dims or (0,) * len(self.row_operands)


_state = threading.local()


def context() -> Context:
    """The context of the lowering under way; RuntimeError outside one."""
    try:
        return _state.stack[-1]
    except (AttributeError, IndexError):
        raise RuntimeError("this is only known while an op is being lowered") from None


@contextmanager
def using(ctx: Context) -> Iterator[Context]:
    """Make `ctx` the current context of this thread."""
    stack = _state.__dict__.setdefault("stack", [])
    stack.append(ctx)
    try:
        yield ctx
    finally:
        stack.pop()


def out(i: int = 0) -> torch.Tensor:
    """The i-th promised output (a fake tensor): its shape, dtype and strides."""
    return context().outs[i]


def is_contiguous(i: int) -> bool:
    """Whether the i-th positional argument is, for the few ops whose results mean something else if not."""
    ins = context().ins
    return ins[i].is_contiguous() if i < len(ins) else True


def precision(*operands: Any) -> Any:
    """The lax.Precision of a product of `operands`, from torch.get_float32_matmul_precision()."""
    if any(x.dtype == jnp.float32 or x.dtype == jnp.complex64 for x in operands):
        name = context().matmul_precision
        return {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT}[name]
    return lax.Precision.HIGHEST if any(x.dtype == jnp.float64 for x in operands) else lax.Precision.DEFAULT
