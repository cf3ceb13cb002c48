"""The compile log says what was compiled, where and why; compiles can be made errors."""

from __future__ import annotations

import inspect
import logging
import threading
from pathlib import Path

import pytest
import torch
from parity import run_python

from torch_tpu import arguments, compile_log
from torch_tpu.compile_log import Compile


@pytest.fixture
def start() -> int:
    """An empty log."""
    torch.tpu.clear_cache()
    torch.tpu.clear_compile_log()
    return 0


def test_an_op_is_logged_with_line_and_arguments_once(start: int) -> None:
    x = torch.zeros(3, 7, device="tpu")
    torch.tpu.clear_compile_log()
    for _ in range(3):
        x.cosh()
        line = inspect.currentframe().f_lineno - 1
    (made,) = torch.tpu.compile_log()
    assert made.name == "aten::cosh" and made.arguments == {"self": "float32[3, 7]"} and made.seconds > 0
    assert made.line.number == line and Path(made.line.file).name == Path(__file__).name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x[:2], "self: float32[8, 6] -> float32[2, 6], memory of self: none -> a slice of float32[8, 6]"),
        (lambda x: x.t(), "self: float32[8, 6] -> float32[6, 8] with strides [1, 6]"),
        (lambda x: x.double(), "self: float32[8, 6] -> float64[8, 6]"),
    ],
)
def test_what_differs_from_the_nearest_program_is_told(change: object, why: str, start: int) -> None:
    torch.tpu.clear_compile_log()
    compile_log._known.clear()
    x = torch.zeros(8, 6, device="tpu")
    changed = change(x)
    torch.expm1(x), torch.expm1(changed)
    first, second = [c for c in torch.tpu.compile_log() if c.name == "aten::expm1"]
    assert first.why == "the first program of this name" and second.why == why


def test_static_arguments_shared_memory_and_modes_are_told(start: int) -> None:
    compile_log._known.clear()
    x = torch.zeros(8, 6, device="tpu")
    x.cumsum(0), x.cumsum(1)
    assert torch.tpu.compile_log()[-1].why == "dim: 0 -> 1"
    torch.hypot(x, x + 1), torch.hypot(x, x)
    assert torch.tpu.compile_log()[-1].why == "sharing memory: none -> self and other"
    with torch.tpu.mode("debug"):
        x.cumsum(1)
    assert torch.tpu.compile_log()[-1].why == "mode: none -> debug"


def test_loads_from_disk_are_told_apart(start: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    x = torch.zeros(5, device="tpu")
    x.asinh()
    torch.tpu.clear_cache()
    x.asinh()
    compiled, loaded = [c for c in torch.tpu.compile_log() if c.name == "aten::asinh"]
    assert not compiled.from_disk and loaded.from_disk and "no longer in memory" in loaded.why


def loss_of(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ x.t()).sum()


def test_graphs_go_by_the_name_of_their_function(start: int) -> None:
    torch._dynamo.reset()
    loss = torch.compile(loss_of)
    for n in (4, 6):
        loss(torch.ones(n, 4, device="tpu", requires_grad=True)).backward()
    graphs = [c for c in torch.tpu.compile_log() if c.name.startswith("loss_of")]
    names = [c.name.partition(" (")[0] + c.name.partition(")")[2] for c in graphs]
    assert names == ["loss_of, forward", "loss_of, backward"] * 2
    assert "inputs[0]: float32[4, 4] -> float32[" in graphs[2].why


def test_the_table_names_all(start: int) -> None:
    torch.zeros(3, 5, device="tpu").sinh()
    head, *rows = str(torch.tpu.compile_log()).splitlines()
    assert head.split() == ["seconds", "from", "program", "line", "why"]
    assert len(rows) == len(torch.tpu.compile_log()) and "aten::sinh" in rows[-1]


def test_the_log_is_bounded() -> None:
    with compile_log._lock:
        kept = list(compile_log._made)
        compile_log._made.extend([Compile("op", None, 0.0, False, "", {})] * (compile_log._MOST + 10))
        assert len(torch.tpu.compile_log()) == compile_log._MOST
        compile_log._made.clear()
        compile_log._made.extend(kept)


def test_copies_are_the_callers(start: int) -> None:
    torch.zeros(3, 5, device="tpu").tan()
    count = len(torch.tpu.compile_log())
    torch.tpu.compile_log().clear()
    assert len(torch.tpu.compile_log()) == count > 0
    torch.tpu.clear_compile_log()
    assert torch.tpu.compile_log() == []


PRINTING = """
import torch
x = torch.zeros(3, device="tpu")
x.cos()
torch.tpu.clear_cache()
x.cos()
"""


@pytest.mark.parametrize(("setting", "loads"), [("torch_tpu", 0), ("+torch_tpu", 1), ("+torch_tpu.compile_log", 1)])
def test_torch_logs_prints_each_compile(setting: str, loads: int, tmp_path: Path) -> None:
    done = run_python(PRINTING, TORCH_LOGS=setting, TORCH_TPU_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    about = [line for line in done.stderr.splitlines() if "aten::cos " in line]
    assert sum("compiled in" in line for line in about) == 1
    assert sum("loaded from disk in" in line for line in about) == loads


def test_nothing_is_printed_unless_asked(tmp_path: Path) -> None:
    assert run_python(PRINTING, TORCH_TPU_CACHE_DIR=str(tmp_path)).stderr == ""


def test_compiles_are_logged_as_such(start: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="torch_tpu.compile_log"):
        torch.zeros(13, device="tpu").erfc()
    assert "aten::erfc at " in caplog.text


# --- forbidden compiles


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk cache: every miss compiles."""
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", "")


def test_a_forbidden_compile_names_op_line_and_cause(start: int, no_disk: None) -> None:
    x, y = torch.zeros(3, device="tpu"), torch.zeros(4, device="tpu")
    x.atan()
    with torch.tpu.forbid_compiles():
        x.atan()
        with pytest.raises(torch.tpu.CompileForbidden, match=r"aten::atan at .*_log.py:\d+ needs a compile"):
            y.atan()
        with pytest.raises(RuntimeError, match=r"self: float32\[3\] -> float32\[4\]"):
            y.atan()
    assert y.atan().tolist() == [0.0] * 4


def test_it_is_forbidden_in_all_threads(start: int, no_disk: None) -> None:
    x = torch.ones(3, 11, device="tpu", requires_grad=True)
    out = (x.sin() * x.sin()).sum()
    with torch.tpu.forbid_compiles(), pytest.raises(torch.tpu.CompileForbidden):
        out.backward()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            torch.zeros(17, device="tpu").atanh()
        except torch.tpu.CompileForbidden as error:
            caught.append(error)

    with torch.tpu.forbid_compiles():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_compiled_functions_are_meant_too(start: int, no_disk: None) -> None:
    torch._dynamo.reset()
    fn = torch.compile(lambda x: x.sin().cos(), dynamic=False)
    x, y = torch.zeros(3, device="tpu"), torch.zeros(5, device="tpu")
    with torch.no_grad():
        fn(x)
        with torch.tpu.forbid_compiles():
            fn(x)
            with pytest.raises(torch.tpu.CompileForbidden, match="forward at"):
                fn(y)
        assert fn(y).tolist() == [1.0] * 5


def test_loads_are_allowed_unless_forbidden_too(start: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    x = torch.zeros(6, device="tpu")
    x.acosh()
    torch.tpu.clear_cache()
    with torch.tpu.forbid_compiles(loads=True), pytest.raises(torch.tpu.CompileForbidden, match="needs a load"):
        x.acosh()
    with torch.tpu.forbid_compiles():
        x.acosh()


def test_it_nests_and_ends_with_its_block(start: int, no_disk: None) -> None:
    x = torch.zeros(23, device="tpu")
    with torch.tpu.forbid_compiles():
        with pytest.raises(ValueError, match="mine"), torch.tpu.forbid_compiles():
            raise ValueError("mine")
        with pytest.raises(torch.tpu.CompileForbidden):
            x.cosh()
    x.cosh()


def test_wrong_arguments_raise_as_ever() -> None:
    x, y = torch.zeros(3, device="tpu"), torch.zeros(4, device="tpu")
    with torch.tpu.forbid_compiles(), pytest.raises(RuntimeError, match="size of tensor"):
        x + y


def test_of_equally_near_programs_the_latest_counts() -> None:
    assert arguments.difference([{"x": "1"}, {"x": "2"}], {"x": "3"}) == "x: 2 -> 3"
