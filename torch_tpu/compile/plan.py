"""What a graph does, without the graph: enough to run it as long as all its programs are at hand.

Most graphs are one program, so this is a list of places. Loading a graph's nodes takes longer than loading its program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import compile_log
from .program import define, lowered_as, promised_as

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class ProgramCall:
    """A program's launch: which places of the list of values it writes to, reads, and puts its results at."""

    name: str
    written: list[int]
    read: list[int]
    results: list[int]


@dataclass(frozen=True)
class Output:
    """An output of a graph: the value at a place, or if that is None a constant."""

    place: int | None
    value: Any = None


@dataclass(frozen=True)
class Plan:
    """A graph that only launches programs, all of fixed sizes. places: how many values there are, inputs first."""

    name: str
    places: int
    calls: list[ProgramCall]
    outputs: list[Output]

    def function(self, define_programs: Callable[[], None]) -> Run:
        """The graph as a function of a list of its inputs, which it empties, to a list of its outputs.

        define_programs: defines the programs' ops; called if one of them has to be lowered.
        """
        calls = [(self._op(call, define_programs), call) for call in self.calls]
        outputs = [(o.place, o.value) for o in self.outputs]
        places = self.places

        def run(arguments: list[Any]) -> list[Any]:
            values = [*arguments, *[None] * (places - len(arguments))]
            arguments.clear()
            for op, call in calls:
                got = op([values[i] for i in call.written], [values[i] for i in call.read], [])
                for i, value in zip(call.results, got, strict=True):
                    values[i] = value
            return [value if place is None else values[place] for place, value in outputs]

        return run

    def _op(self, call: ProgramCall, define_programs: Callable[[], None]) -> Callable[..., Any]:
        def redefine() -> None:
            define_programs()
            if promised_as(call.name) is promise:
                raise RuntimeError(
                    f"the kept graph {self.name} no longer gives its program {call.name}: "
                    "delete PyTorch's compile cache, torch._inductor.runtime.cache_dir_utils.cache_dir()"
                )

        def lower(*arguments: Any) -> list[Any]:
            redefine()
            return lowered_as(call.name)(*arguments)

        def promise(sizes: Sequence[int]) -> list[Any]:
            redefine()
            return promised_as(call.name)(sizes)

        op = define(call.name, lower, promise, len(call.results), replace=False)
        compile_log.label(op.name(), self.name)
        return op
