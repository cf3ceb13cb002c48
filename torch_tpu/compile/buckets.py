"""Programs shared by sizes: inputs get room up to a bound, results are what is true of padded ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .padding import Unpadded
from .program import Program
from .sizes import Symbols, bucket, number

log = logging.getLogger(__name__)

Shape = tuple[int, ...]

# Sizes are counted in int32; integers among the inputs may be anything.
LARGEST = 1 << 30


@dataclass
class _Plan:
    """What a call with certain sizes needs: the bounds, the sizes as tensors, the shapes of padded inputs and those of
    results (None where nothing is padded)."""

    bounds: list[int]
    counts: list[torch.Tensor]
    inputs: list[Shape | None]
    results: list[Shape | None]


class Padded:
    """A program's calls, on padded inputs if that can be had: then one program serves all sizes up to a bound."""

    def __init__(self, program: Program) -> None:
        self.program, self.plans, self.is_exact = program, {}, False

    def __call__(self, written: list[Any], inputs: list[Any], symbols: Symbols) -> list[torch.Tensor]:
        """The results, of their true sizes, padded in memory."""
        key = tuple(symbols[s] for s in self.program.symbols)
        if not self.is_exact and max(map(abs, key)) <= LARGEST:
            plan = self.plans.get(key) or self._plan(key)
            room = [x if s is None else with_room(x, s) for x, s in zip(inputs, plan.inputs, strict=True)]
            try:
                got = self.program.padded_op(written, [*room, *plan.counts], plan.bounds)
            except Unpadded as reason:
                log.info("a program is compiled for each size anew: %s", reason)
                self.is_exact = True
            else:
                return [x if s is None else _prefix(x, s) for x, s in zip(got, plan.results, strict=True)]
        return self.program.run(written, inputs, symbols)

    def _plan(self, key: tuple[int, ...]) -> _Plan:
        names = self.program.symbols
        true = dict(zip(names, key, strict=True))
        bounds = {s: bucket(n) for s, n in true.items()}
        plan = _Plan(
            list(bounds.values()),
            [torch.tensor(n) for n in key],
            [_shape(n.meta["val"], bounds) for n in self.program.inputs],
            [_shape(n.meta["val"], true) for n in self.program.results],
        )
        self.plans[key] = plan
        return plan


def _shape(fake: torch.Tensor, symbols: Symbols) -> Shape | None:
    if all(isinstance(n, int) for n in fake.shape):
        return None
    return tuple(number(n, symbols) for n in fake.shape)


def with_room(x: torch.Tensor, sizes: Shape) -> torch.Tensor:
    """A tensor whose first elements along each dimension are those of `x`: the memory it lies in, if there is room."""
    if tuple(x.shape) == sizes:
        return x
    strides = _strides(sizes, x)
    if strides is not None and _end(x, sizes, strides) * x.element_size() <= x.untyped_storage().nbytes():
        return x.as_strided(sizes, strides)
    more = [b - n for n, b in zip(x.shape, sizes, strict=True)]
    return torch.constant_pad_nd(x, [m for pad in reversed(more) for m in (0, pad)])


def _end(x: torch.Tensor, sizes: Shape, strides: Sequence[int]) -> int:
    return x.storage_offset() + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1


def _strides(sizes: Shape, x: torch.Tensor) -> list[int] | None:
    """The strides of a tensor of `sizes` without gaps, its dimensions in the order of x's; None if x has others."""
    order = sorted(range(x.ndim), key=lambda d: (x.stride(d), -d))
    strides, step = [0] * x.ndim, 1
    for d in order:
        strides[d] = step
        step *= sizes[d]
    same = all(n < 2 or a == b for n, a, b in zip(x.shape, x.stride(), strides, strict=True))
    return strides if same else None


def _prefix(x: torch.Tensor, sizes: Shape) -> torch.Tensor:
    """The first elements along each dimension, in the same memory, of a tensor that is no view."""
    strides, step = list(x.stride()), 1
    for d in reversed(range(x.ndim)):  # of a dimension of one element, as in a tensor without gaps
        strides[d] = step if sizes[d] < 2 else strides[d]
        step = strides[d] * max(sizes[d], 1)
    return x.new_empty(0).set_(x.untyped_storage(), 0, sizes, strides)


def compact(x: Any) -> Any:
    """A padded tensor as any other: without gaps in memory."""
    if not isinstance(x, torch.Tensor) or not x.numel():
        return x
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    return x.contiguous() if span > x.numel() else x
