"""What this process compiles, for which line and why: `torch.tpu.compile_log()`, TORCH_LOGS, and `forbid_compiles`.

Nothing here runs on a hit. `making` encloses each miss; `compiler` says when XLA is about to compile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import lines
from .lines import Line

log = logging.getLogger(__name__)

Arguments = dict[str, str]

# A process that makes more programs than this keeps the last ones, and compares with the last ones of each op.
_MOST, _MOST_OPS, _MOST_OF_AN_OP = 4096, 4096, 16


@dataclass(frozen=True)
class Compile:
    """A program that was made.

    name: its op, or the graph of torch.compile. line: the user's that called it, in a backward pass the one that the
    main thread is at, None if unknown. seconds: of lowering and compiling, or of loading. from_disk: loaded from the
    disk cache. why: what tells it from the nearest program of that name. arguments: what of the call decides it.
    """

    name: str
    line: Line | None
    seconds: float
    from_disk: bool
    why: str
    arguments: Arguments = field(repr=False)

    def __str__(self) -> str:
        done = "loaded from disk" if self.from_disk else "compiled"
        return f"{self.name} at {self.line or 'an unknown line'}: {done} in {self.seconds:.3f} s, {self.why}"


class CompileLog(list[Compile]):
    """Compiles in the order they ended. `print` shows a table."""

    def __str__(self) -> str:
        rows = [("seconds", "from", "program", "line", "why")]
        rows += [(f"{c.seconds:.3f}", "disk" if c.from_disk else "XLA", c.name, str(c.line or ""), c.why) for c in self]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join(x.ljust(w) for x, w in zip(row, [*widths, 0], strict=True)) for row in rows)


class CompileForbidden(RuntimeError):
    """A compile under `torch.tpu.forbid_compiles()`."""


_made: deque[Compile] = deque(maxlen=_MOST)
_known: OrderedDict[str, deque[Arguments]] = OrderedDict()
_labels: OrderedDict[str, str] = OrderedDict()
_forbidden = {"compiles": 0, "loads": 0}
_lock = threading.RLock()
_under_way = threading.local()


def entries() -> CompileLog:
    """The compiles of this process, a copy."""
    with _lock:
        return CompileLog(_made)


def clear() -> None:
    """Forget the compiles. What later ones are compared with stays."""
    with _lock:
        _made.clear()


def label(op: str, words: str) -> None:
    """Show an op of torch.compile's, whose name is a hash, by other words."""
    with _lock:
        _labels[op] = words
        while len(_labels) > _MOST_OPS:
            _labels.popitem(last=False)


@contextlib.contextmanager
def forbid(loads: bool = False) -> Iterator[None]:
    """See `torch.tpu.forbid_compiles`."""
    kinds = ["compiles", "loads"] if loads else ["compiles"]
    with _lock:
        for kind in kinds:
            _forbidden[kind] += 1
    try:
        yield
    finally:
        with _lock:
            for kind in kinds:
                _forbidden[kind] -= 1


class making:
    """Context manager around a miss. Logs what was made inside, if a program was.

    arguments: what `arguments.describe` says of the call. compare: `arguments.difference`.
    """

    def __init__(self, op: str, arguments: Arguments, compare: Callable[..., str]) -> None:
        self.name, self.arguments, self.compare = _labels.get(op, op), arguments, compare
        self.line = lines.current().line
        self.from_disk: bool | None = None

    def __enter__(self) -> making:
        self.outer, _under_way.making = getattr(_under_way, "making", None), self
        self.began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        _under_way.making = self.outer
        if kind is None and self.from_disk is not None:
            self._add()

    def loaded(self) -> None:
        """The program came from the disk. CompileForbidden if that is not allowed."""
        if _forbidden["loads"]:
            raise self._error("a load")
        self.from_disk = True

    def compiling(self) -> None:
        """XLA is about to compile. CompileForbidden if it may not."""
        if _forbidden["compiles"]:
            raise self._error("a compile")
        self.from_disk = False

    def _why(self) -> str:
        before = _known.get(self.name)
        if not before:
            return "the first program of this name"
        return self.compare(before, self.arguments) or "one like it is no longer in memory, or has other numbers"

    def _add(self) -> None:
        seconds = time.perf_counter() - self.began
        with _lock:
            made = Compile(self.name, self.line, seconds, bool(self.from_disk), self._why(), self.arguments)
            _made.append(made)
            _known.setdefault(self.name, deque(maxlen=_MOST_OF_AN_OP)).append(self.arguments)
            while len(_known) > _MOST_OPS:
                _known.popitem(last=False)
        log.log(logging.DEBUG if self.from_disk else logging.INFO, "%s", made)

    def _error(self, what: str) -> CompileForbidden:
        with _lock:
            why = self._why()
        where = f"at {self.line}" if self.line else "at an unknown line"
        return CompileForbidden(f"torch.tpu.forbid_compiles(): {self.name} {where} needs {what}: {why}")


def compiling() -> None:
    """XLA is about to compile in this thread. CompileForbidden if it may not."""
    current = getattr(_under_way, "making", None)
    if current is not None:
        current.compiling()
    elif _forbidden["compiles"]:
        raise CompileForbidden("torch.tpu.forbid_compiles(): a program needs a compile")
