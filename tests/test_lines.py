"""Which line of the user's an op comes from."""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path

import pytest
import torch

from torch_tpu import lines
from torch_tpu.lines import Line


def shown(file: str) -> str:
    """A file as a Line gives it: relative if it lies below the working directory, as an environment may."""
    path = Path(file).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


HERE = shown(__file__)


def test_the_current_line() -> None:
    place = lines.current()
    number = sys._getframe().f_lineno - 1
    assert place.line == Line(HERE, number) and place.line.text == "place = lines.current()"
    assert place.inside is None and place.frames[0].endswith(f"test_lines.py:{number}")


def test_a_line_inside_a_library() -> None:
    library = types.ModuleType("library")
    file = str(Path(pytest.__file__).parent / "model.py")
    exec(compile("\ndef call(f):\n    return f()", file, "exec"), library.__dict__)
    place = library.call(functools.partial(lines.current))
    assert place.line == Line(HERE, sys._getframe().f_lineno - 1) and place.inside == Line(shown(file), 3)


def test_the_line_of_an_error() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        assert lines.of_traceback(error.__traceback__) == Line(HERE, sys._getframe().f_lineno - 2)
    assert lines.of_traceback(None) is None


def test_the_line_of_a_stack_trace() -> None:
    torch_file, installed = torch.nn.modules.linear.__file__, pytest.__file__
    users = f'  File "{__file__}", line 7, in f\n    x\n'
    library = f'  File "{installed}", line 3, in g\n    y\n'
    inner = f'  File "{torch_file}", line 134, in forward\n    z\n'
    assert lines.of_stack_trace(users + inner) == Line(HERE, 7)
    assert lines.of_stack_trace(users + library + inner) == Line(shown(installed), 3)
    assert lines.of_stack_trace(inner) is None and lines.of_stack_trace("") is None


def test_whose_a_file_is() -> None:
    assert lines.is_users(__file__)
    for other in (torch.__file__, pytest.__file__, json.__file__, lines.__file__, "<frozen runpy>"):
        assert not lines.is_users(other)


def test_origins_are_found_in_names() -> None:
    trace = f'File "{__file__}", line 7, in f'
    name = f'loc("jit(run)/{lines.origin("aten::mm", trace)}/{lines.origin("aten::add.Tensor", None)}/add")'
    assert lines.of_origin(name) == ("aten::mm", Line(HERE, 7))
    assert lines.of_origin(f"a/{lines.origin('aten::mm', None)}/b") == ("aten::mm", None)
    assert lines.of_origin("jit(run)/add") is None
