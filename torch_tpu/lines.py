"""Which line of the user's Python an op comes from."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Line:
    """A line of Python; its file is given relative to the working directory if it lies below."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    def as_frame(self) -> str:
        """The line as a stack trace has it."""
        return f'  File "{self.file}", line {self.number}, in <module>\n'

    @property
    def text(self) -> str:
        """The line's source, "" if it can't be read."""
        return linecache.getline(self.file, self.number).strip()


@dataclass(frozen=True)
class Place:
    """Where an op was called. line: the user's. inside: the innermost line outside PyTorch if that is another one, in a
    library's model. frames: all frames; empty in the backward pass, which runs in a thread of its own, where there is
    no Python: the line is the main thread's then.
    """

    line: Line | None
    inside: Line | None
    frames: tuple[str, ...]


def current() -> Place:
    """Where the running code of this thread was called from."""
    frames = [f for f in _frames(sys._getframe(1)) if not _below(f.f_code.co_filename, _PACKAGE)]
    line = _first(frames, is_users)
    if line is None:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        return Place(_first(_frames(main), is_users), None, ())
    inside = _first(frames, lambda file: not file.startswith("<") and not _is_pytorch(file))
    places = tuple(f"{f.f_code.co_filename}:{f.f_lineno}" for f in frames)
    return Place(line, None if inside == line else inside, places)


def of_traceback(traceback: TracebackType | None) -> Line | None:
    """The innermost line of the user's in a traceback."""
    lines = []
    while traceback is not None:
        lines.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return next((_line(f, n) for f, n in reversed(lines) if is_users(f)), None)


def of_stack_trace(text: str) -> Line | None:
    """The innermost line outside PyTorch in the stack trace of a graph's node, so a library's line in its model."""
    frames = _FRAME.findall(text)
    return next((_line(f, int(n)) for f, n in reversed(frames) if not f.startswith("<") and not _is_pytorch(f)), None)


# An op and its line within the names of a program's instructions, which JAX joins with slashes.
_ORIGIN = re.compile(r"\{([\w:.]+)(?:@([^{}]*):(\d+))?\}")


def origin(op: str, stack_trace: str | None) -> str:
    """An op and the user's line in a node's stack trace, as `of_origin` finds them again in an instruction's name."""
    line = of_stack_trace(stack_trace or "")
    return f"{{{op}}}" if line is None else f"{{{op}@{line}}}"


def of_origin(name: str) -> tuple[str, Line | None] | None:
    """(op, line) of the innermost origin that has a line in an instruction's name; None if it has no origin at all."""
    found = [(op, Line(file, int(number)) if number else None) for op, file, number in _ORIGIN.findall(name)]
    return next((pair for pair in reversed(found) if pair[1]), found[0] if found else None)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is the user's: not of Python, PyTorch, this package, or another installed one."""
    return not file.startswith("<") and not _below(file, *_PYTORCH, *_INSTALLED, *_PYTHON)


@functools.cache
def _is_pytorch(file: str) -> bool:
    """Whether a file is of PyTorch, this package, or Python itself."""
    return _below(file, *_PYTORCH) or (_below(file, *_PYTHON) and not _below(file, *_INSTALLED))


_PACKAGE = str(Path(__file__).parent)
_PYTORCH = (str(Path(torch.__file__).parent), _PACKAGE)
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
_PYTHON = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))


@functools.cache
def _below(file: str, *folders: str) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(Path(folder).resolve()) for folder in folders)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _first(frames: Iterable[FrameType], wanted: Callable[[str], bool]) -> Line | None:
    return next((_line(f.f_code.co_filename, f.f_lineno) for f in frames if wanted(f.f_code.co_filename)), None)


def _line(file: str, number: int) -> Line:
    path = Path(file).resolve()
    here = Path.cwd()
    return Line(str(path.relative_to(here)) if path.is_relative_to(here) else str(path), number)
