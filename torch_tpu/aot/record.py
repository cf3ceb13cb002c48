"""What a run of a script compiles and launches, with the lines it comes from."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import _C, compiler, eager, host, lines
from ..arguments import describe
from ..lines import Line, Place


@dataclass
class Recorded:
    """A program that was made. artifact: its portable StableHLO, None where nothing is computed. arguments: what of a
    call decides the program, by name. step: optimizer steps before it.
    """

    op: str
    place: Place
    arguments: dict[str, str]
    step: int
    artifact: bytes | None = None
    program: _C.Program | None = field(default=None, repr=False)

    @property
    def line(self) -> Line | None:
        """The user's line."""
        return self.place.line

    @property
    def launches(self) -> int:
        """How often it was launched."""
        return self.program.launches if self.program is not None else 0


@dataclass(frozen=True)
class Unsupported:
    """An op that has no lowering."""

    op: str
    line: Line | None
    reason: str


class Recorder:
    """Context manager. Inside, every program is made anew and remembered, and what has no lowering runs on the CPU.

    steps: the launches of each of the `programs` so far, at the end of each optimizer step. on_host: how often ops ran
    on the host that do on any device, by op and line.
    """

    def __init__(self) -> None:
        self.programs: list[Recorded] = []
        self.unsupported: list[Unsupported] = []
        self.steps: list[list[int]] = []
        self.on_host: Counter[tuple[str, Line | None]] = Counter()
        self._building = threading.local()
        self._build = eager.build

    def __enter__(self) -> Recorder:
        torch.tpu.init()
        _C.clear_programs()
        self._build, eager.build = eager.build, self._recorded
        compiler.observers.append(self._observe)
        host.observers.append(self._ran_on_host)
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *error: object) -> None:
        eager.build = self._build
        compiler.observers.remove(self._observe)
        host.observers.remove(self._ran_on_host)
        self._hook.remove()
        _C.clear_programs()

    def _recorded(self, name: str, values: list[Any], storages: list[Any], with_rows: bool, fallback: bool) -> Any:
        """`eager.build`, remembering."""
        place = lines.current()
        made = Recorded(name, place, describe(name, values, storages, with_rows), len(self.steps))
        self._building.program = made
        try:
            made.program = self._build(name, values, storages, with_rows, False)
        except NotImplementedError as error:
            self.unsupported.append(Unsupported(name, place.line, str(error)))
            if name.startswith("torch_tpu::"):
                raise  # a compiled graph can't run on the CPU
            return self._build(name, values, storages, with_rows, True)
        finally:
            self._building.program = None
            if made.artifact is not None:
                self.programs.append(made)
        return made.program

    def _observe(self, artifact: bytes) -> None:
        made = getattr(self._building, "program", None)
        if made is not None:
            made.artifact = artifact
        else:
            self.programs.append(Recorded("program", lines.current(), {}, len(self.steps), artifact))

    def _ran_on_host(self, op: str) -> None:
        self.on_host[op, lines.current().line] += 1

    def _stepped(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.steps.append([p.launches for p in self.programs])

    def last_step(self) -> list[int] | None:
        """The launches of each program from the end of the last but one optimizer step to that of the last one; None
        if there were fewer than two."""
        if len(self.steps) < 2:
            return None
        before, after = self.steps[-2:]
        before = before + [0] * (len(self.programs) - len(before))
        after = after + [0] * (len(self.programs) - len(after))
        return [max(0, b - a) for a, b in zip(before, after, strict=True)]
