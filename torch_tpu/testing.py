"""Compare a model on "tpu" with the same model on the CPU, layer by layer."""

from __future__ import annotations

import contextlib
import copy
import json as json_module
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from . import _C, device

__all__ = ["Comparison", "Layer", "compare"]


@dataclass(frozen=True)
class Layer:
    """One call of one module.

    name: in the model, "" for the model itself. kind: its class. call: which call of this module it was, from 0.
    difference, relative: the largest of its outputs, NaN if their shapes differ. error: how they differ, as
    `torch.testing.assert_close` words it, None if they agree. fallbacks: the ops that ran on the CPU in it and how
    often, less those of the modules inside.
    """

    name: str
    kind: str
    call: int
    difference: float
    relative: float
    error: str | None
    fallbacks: dict[str, int]


@dataclass(frozen=True)
class Comparison:
    """The calls of all modules, in the order in which they returned."""

    layers: list[Layer] = field(default_factory=list)

    @property
    def first(self) -> Layer | None:
        """The first call whose outputs differ; None if all agree."""
        return next((layer for layer in self.layers if layer.error is not None), None)

    @property
    def fallbacks(self) -> dict[str, int]:
        """The ops that fell back to the CPU, and how often."""
        total: dict[str, int] = {}
        for layer in self.layers:
            for op, count in layer.fallbacks.items():
                total[op] = total.get(op, 0) + count
        return total

    def json(self) -> str:
        """All of it as a JSON object: first, fallbacks, layers."""
        first = asdict(self.first) if self.first else None
        return json_module.dumps(
            {"first": first, "fallbacks": self.fallbacks, "layers": [asdict(layer) for layer in self.layers]}
        )

    def __str__(self) -> str:
        first, count = self.first, len(self.layers)
        if first is None:
            worst = max((layer.difference for layer in self.layers), default=0.0)
            lines = [f"all {count} layers agree, the largest difference is {worst:.3g}"]
        else:
            at = f"{first.name or 'the model'} ({first.kind}), call {first.call}"
            more = sum(layer.error is not None for layer in self.layers) - 1
            lines = [
                f"first layer that differs: {at}; {more} more of {count} do",
                f"  by {first.difference:.3g}, {first.relative:.3g} relatively",
                *(f"  {line}" for line in str(first.error).splitlines() if line),
            ]
        lines += [f"fell back to the CPU: {op} ({n})" for op, n in self.fallbacks.items()]
        return "\n".join(lines)


def compare(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    json: bool = False,
    progress: bool | None = None,
) -> Comparison:
    """Run a model on the CPU and on "tpu", and print the first layer that differs, by how much, and what fell back.

    Every module on "tpu" goes on with what the CPU's gave, so differences don't add up: a layer that differs does so by
    itself. Ops without a lowering run on the CPU here. The model stays as it is: copies run, in its mode, without
    gradients. Layers that draw random numbers differ; `model.eval()` turns dropout off.

    inputs: one tensor, positional arguments, or keyword arguments, on any device. rtol, atol: by default those of
    `torch.testing.assert_close`. json: print `Comparison.json()` instead. progress: show a bar on stderr (by default if
    that is a terminal), if tqdm is installed.
    """
    args, kwargs = _arguments(inputs)
    expected: list[tuple[str, Any]] = []
    with torch.no_grad():
        host = copy.deepcopy(model).to("cpu")
        with _after_each(host, lambda name, module, out: expected.append((name, _map(out, _copy)))):
            host(*_to(args, "cpu"), **_to(kwargs, "cpu"))
        del host
        there = _Run(expected, {"rtol": rtol, "atol": atol}, _bar(len(expected), progress))
        with _falling_back(), there.bar:
            on_tpu = copy.deepcopy(model).to("tpu")
            with _after_each(on_tpu, there.check):
                on_tpu(*_to(args, "tpu"), **_to(kwargs, "tpu"))
    result = Comparison(there.layers)
    print(result.json() if json else result)
    return result


class _Run:
    """The run on the device: compares each output with the CPU's, which it puts in its place."""

    def __init__(self, expected: list[tuple[str, Any]], tolerances: dict[str, float | None], bar: Any) -> None:
        self.expected, self.tolerances, self.bar = expected, tolerances, bar
        self.layers: list[Layer] = []
        self.fallbacks = device.cpu_fallbacks()
        self.calls: dict[str, int] = {}

    def check(self, name: str, module: nn.Module, out: Any) -> Any:
        at = len(self.layers)
        known, expected = self.expected[at] if at < len(self.expected) else (None, None)
        if known != name:
            raise RuntimeError(
                f"the devices took different ways: call {at} is of {name!r} on tpu, of {known!r} on the CPU"
            )
        got = _map(out, lambda x: x.cpu())
        difference, relative, error = _difference(got, expected, self.tolerances)
        call = self.calls[name] = self.calls.get(name, -1) + 1
        kind = type(module).__name__
        self.layers.append(Layer(name, kind, call, difference, relative, error, self._new_fallbacks()))
        self.bar.update()
        if math.isnan(difference):
            return out
        values = iter([x for x in pytree.tree_leaves(expected) if isinstance(x, Tensor)])
        return _map(out, lambda x: next(values).to(x.device))

    def _new_fallbacks(self) -> dict[str, int]:
        now = device.cpu_fallbacks()
        new = {op: n - self.fallbacks.get(op, 0) for op, n in now.items() if n > self.fallbacks.get(op, 0)}
        self.fallbacks = now
        return new


def _difference(got: Any, expected: Any, tolerances: dict[str, float | None]) -> tuple[float, float, str | None]:
    """(largest difference, largest relative one, how assert_close words it)."""
    pairs = [[x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)] for tree in (got, expected)]
    error = None
    try:
        torch.testing.assert_close(*pairs, equal_nan=True, **tolerances)
    except AssertionError as problem:
        error = str(problem)
    if [x.shape for x in pairs[0]] != [x.shape for x in pairs[1]]:
        return float("nan"), float("nan"), error
    largest = relative = 0.0
    for g, e in zip(*pairs, strict=True):
        kind = torch.complex128 if e.is_complex() else torch.float64
        g, e = g.to(kind), e.to(kind)
        apart = torch.where((g == e) | (g.isnan() & e.isnan()), 0.0, (g - e).abs())
        largest = max(largest, apart.nan_to_num(float("inf")).max().item() if apart.numel() else 0.0)
        share = torch.where(apart == 0, 0.0, apart / e.abs())
        relative = max(relative, share.nan_to_num(float("inf")).max().item() if share.numel() else 0.0)
    return largest, relative, error


@contextlib.contextmanager
def _after_each(model: nn.Module, do: Callable[[str, nn.Module, Any], Any]) -> Iterator[None]:
    """Calls `do(name, module, output)` when a module returns; what it gives, if not None, takes the output's place."""
    handles = [
        module.register_forward_hook(lambda module, args, out, name=name: do(name, module, out))
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _falling_back() -> Iterator[None]:
    """Ops without a lowering run on the CPU inside, quietly."""
    before = _C.cpu_fallback()
    _C.set_cpu_fallback(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*has no lowering for device 'tpu'.*")
            yield
    finally:
        _C.set_cpu_fallback(before)


class _NoBar(contextlib.nullcontext):
    def update(self) -> None:
        """Nothing to show."""


def _bar(total: int, shown: bool | None) -> Any:
    """A progress bar over `total` calls."""
    if sys.stderr.isatty() if shown is None else shown:
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(total=total, unit="layer", leave=False)
    return _NoBar()


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, Sequence) else ((inputs,), {})


def _map(tree: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    return pytree.tree_map_only(Tensor, fn, tree)


def _to(tree: Any, where: str) -> Any:
    return _map(tree, lambda x: x.to(where))


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone()
