"""Scripts checked against a chip that is not here."""

from __future__ import annotations

import html.parser
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install libtpu")
from torch_tpu import _C, compiler, eager
from torch_tpu.aot.check import CheckReport, Finding, check
from torch_tpu.aot.page import page

DATA = Path(__file__).parent.parent / "data"
TRAINING = """
import torch

model = torch.nn.Linear(256, 256).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.ones(64 + (step == 3), 256, device="tpu")
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def failing(report: CheckReport, name: str) -> list[Finding]:
    """What fails, without the file's name in the lines."""
    found = [f for f in report.findings if f.fails]
    assert all(f.line.rpartition(":")[0].endswith(name) for f in found)
    return found


def number(f: Finding) -> int:
    return int(f.line.rpartition(":")[2])


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> CheckReport:
    return check(script(tmp_path_factory.mktemp("training"), TRAINING), [], "v5e")


def test_a_training_loop_passes(training: CheckReport) -> None:
    assert training.ok and training.steps == 4 and training.target == "v5e:1x1"
    assert not training.traceback and not training.cpu_fallbacks
    assert all(p.report is not None and p.report.fits for p in training.programs)
    assert {"aten::addmm", "aten::mm"} <= {op for p in training.programs for op in p.ops}
    assert 0 < training.bound_seconds <= training.estimated_seconds < 1e-3 and 0 < training.mfu < 1


def test_a_step_is_what_lies_between_two_steps_of_the_optimizer(training: CheckReport) -> None:
    by_op = {p.ops[0]: p for p in training.programs if p.step_launches}
    assert by_op["aten::addmm"].step_launches == 1
    # Forward and the gradient of the weights: that of the input is not needed.
    products = 2 * 65 * 256 * 256 * 2
    assert products <= training.step_flops < 1.1 * products
    assert training.step_launches < sum(p.launches for p in training.programs)


def test_lines_are_the_users(training: CheckReport) -> None:
    lines = {p.ops[0]: p.lines for p in training.programs}
    assert [line.rpartition(":")[2] for line in lines["aten::addmm"]] == ["9"]
    # The backward pass runs in another thread.
    assert [line.rpartition(":")[2] for line in lines["aten::mm"]] == ["9"]


def test_recompiles_and_their_cause(training: CheckReport) -> None:
    found = {f.op: f for f in training.findings if f.kind == "recompile"}
    assert "2 programs, 1 of them after the second step" in found["aten::addmm"].message
    assert "mat1: float32[64, 256] -> float32[65, 256]" in found["aten::addmm"].message
    assert not any(f.fails for f in found.values())


def test_memory(training: CheckReport) -> None:
    memory = training.memory
    weights = 4 * 256 * 257
    assert 2 * weights < memory.peak < 8 * weights and memory.fits
    assert 0 < memory.code == sum(p.report.memory.code for p in training.programs)
    assert memory.total == memory.peak + memory.scratch + memory.code < memory.available < 16 << 30


def test_the_device_is_left_as_it_was(tmp_path: Path) -> None:
    before = _C.memory_limit(), eager.build, list(compiler.observers)
    check(script(tmp_path, "import torch\ntorch.ones(3, device='tpu')"), [], "v5e")
    assert (_C.memory_limit(), eager.build, compiler.observers) == before


def alone(program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What a program prints as JSON, in a process of its own: for scripts that leave their traces in PyTorch."""
    command = [sys.executable, "-c", program, *arguments]
    return json.loads(subprocess.run(command, text=True, stdout=-1, check=True, env=os.environ | environment).stdout)


CHECK = "import sys; from torch_tpu.cli import app; app(['check', '--json', sys.argv[1]], standalone_mode=False)"


def why(report: dict[str, Any]) -> list[tuple[str, str, int]]:
    """(kind, op, line) of what fails."""
    return [(f["kind"], f["op"], int(f["line"].rpartition(":")[2] or 0)) for f in report["findings"] if f["fails"]]


def test_ops_without_a_lowering_are_all_named() -> None:
    report = alone(CHECK, str(DATA / "no_lowering.py"))
    assert why(report) == [("unsupported", "unheard_of::blur", 18), ("unsupported", "", 19)]
    blur, sparse = (f for f in report["findings"] if f["fails"])
    assert "not implemented" in blur["message"] and blur["source"] == "y = blur(x @ x)"
    assert "sparse" in sparse["message"] and not report["ok"]
    assert report["cpu_fallbacks"] == {"unheard_of::blur": 1}


def test_fallbacks_that_were_asked_for_do_not_fail(tmp_path: Path) -> None:
    text = (DATA / "no_lowering.py").read_text().replace(".to_sparse()", "").replace("print(z)", "")
    report = alone(CHECK, script(tmp_path, text), TORCH_TPU_FALLBACK="cpu")
    assert report["ok"] and not why(report)
    assert [(f["kind"], f["op"]) for f in report["findings"]] == [("fallback", "unheard_of::blur")]


def test_a_model_that_does_not_fit() -> None:
    limit = _C.memory_limit()
    _C.set_memory_limit(64 << 30)  # of a large machine; nothing is allocated
    try:
        report = check(str(DATA / "too_large.py"), [], "v5e")
    finally:
        _C.set_memory_limit(limit)
    (found,) = failing(report, "too_large.py")
    assert (found.kind, number(found)) == ("memory", 11)
    assert "does not fit v5e:1x1" in found.message and "31250 MiB" in found.message and not report.memory.fits
    assert "TORCH_TPU_MEMORY_LIMIT" not in found.message


def test_a_machine_too_small_to_tell() -> None:
    limit = _C.memory_limit()
    _C.set_memory_limit(1 << 30)
    try:
        report = check(str(DATA / "too_large.py"), [], "v5e")
    finally:
        _C.set_memory_limit(limit)
    assert "this machine's limit of 1.0 GiB" in failing(report, "too_large.py")[0].message


def test_what_the_chip_refuses() -> None:
    report = alone(CHECK, str(DATA / "refused.py"))
    assert why(report) == [("chip", "unheard_of::product", 19)]
    (found,) = (f for f in report["findings"] if f["fails"])
    assert "s64[4,4]" in found["message"] and "Suspected" not in found["message"]


SMALL_CHIP = """
import dataclasses, json, sys
from torch_tpu.aot import chips
from torch_tpu.aot.check import check

chips.CHIPS["v5e"] = dataclasses.replace(chips.CHIPS["v5e"], usable=600 << 10)
print(json.dumps(check(sys.argv[1], [], "v5e").to_dict()))
"""


def test_a_program_that_is_too_large_for_the_chip(tmp_path: Path) -> None:
    # In a process of its own, where nothing else is on the device. The tensors would fit, a program's code of about
    # 1 MB does not.
    path = script(tmp_path, "import torch\nx = torch.ones(64, 64, device='tpu')\ny = x @ x")
    report = alone(SMALL_CHIP, path)
    assert set(why(report)) == {("memory", "aten::ones", 2), ("memory", "aten::mm", 3), ("memory", "", 0)}
    assert not report["memory"]["fits"]
    words = " ".join(f["message"] for f in report["findings"])
    assert "v5e:1x1 has 600.0 KiB" in words and "tensors take" in words


def test_a_script_that_raises() -> None:
    report = check(str(DATA / "wrong.py"), ["luck"], "v5e")
    (found,) = failing(report, "wrong.py")
    assert (found.kind, found.message, number(found)) == ("script", "ValueError: no luck", 10)
    assert (
        "no {sys.argv[1]}" in found.source
        and report.traceback.startswith('  File "')
        and "runpy" not in report.traceback
    )


def test_lengths_that_vary_are_told() -> None:
    report = check(str(DATA / "wrong.py"), ["luck"], "v5e")
    cosh = next(f for f in report.findings if f.op == "aten::cosh")
    assert cosh.message.startswith("6 programs: self: float32[2, 3] -> float32[3, 3]; ")


@pytest.mark.parametrize(("text", "ok"), [("raise SystemExit(3)", False), ("raise SystemExit(0)", True)])
def test_exits(tmp_path: Path, text: str, ok: bool) -> None:
    assert check(script(tmp_path, f"import torch\ntorch.ones(5, device='tpu')\n{text}"), [], "v5e").ok == ok


def test_a_script_without_the_device(tmp_path: Path) -> None:
    report = check(script(tmp_path, "print('hello')"), [], "v5e")
    assert [f.message for f in report.findings if f.fails] == [
        "the script ran nothing on device 'tpu': there is nothing to check"
    ]


def test_graph_breaks_and_compiled_graphs(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "@torch.compile(backend='tpu', dynamic=False)\n"
        "def f(x):\n"
        "    y = (x @ x).relu()\n"
        "    print('break')\n"
        "    return y + 1\n"
        "f(torch.ones(128, 128, device='tpu'))\n"
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    report = check(script(tmp_path, text), [], "v5e")
    assert report.ok and sum(report.graph_breaks.values()) == 1
    assert [f.kind for f in report.findings] == ["graph break"]
    product = next(s for p in report.programs for s in p.report.shares if s.op == "aten::mm")
    assert product.line.endswith("script.py:4") and product.flops == 2 * 128**3


def test_wrong_targets_and_scripts() -> None:
    with pytest.raises(ValueError, match="unknown target"):
        check(str(DATA / "wrong.py"), [], "v9")
    with pytest.raises(FileNotFoundError, match=r"missing\.py"):
        check("missing.py", [], "v5e")


def test_json(training: CheckReport) -> None:
    plain = json.loads(json.dumps(training.to_dict()))
    assert plain["ok"] is True and plain["chip"]["name"] == "v5e" and plain["memory"]["fits"] is True
    assert len(plain["programs"]) == len(training.programs)
    assert plain["programs"][0]["report"]["flops"] == training.programs[0].report.flops


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in order; notes what is referred to."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [str(v) for k, v in attrs if k in ("href", "src", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Page:
    made = Page()
    made.feed(text)
    made.close()
    assert not made.open
    return made


def test_the_page_stands_by_itself(training: CheckReport) -> None:
    text = page(training)
    made = parsed(text)
    assert made.references == ["data:,"]
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    assert made.seen.count("svg") == 3 and made.seen.count("circle") > 3 and "script" not in made.seen
    assert "passes" in text and "aten::addmm" in text


def test_the_page_of_a_failure_escapes_what_others_say(tmp_path: Path) -> None:
    text = "import torch\ntorch.ones(5, device='tpu')\nraise ValueError('<script>alert(1)</script>')"
    made = page(check(script(tmp_path, text), [], "v5e"))
    assert "script" not in parsed(made).seen
    assert "&lt;script&gt;alert(1)" in made and "fails" in made


def test_ops_on_the_host_are_told(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch\nx = torch.eye(3, device='tpu')\nfor _ in range(2):\n    torch.linalg.eig(x)")
    report = check(str(path), [], "v5e")
    (found,) = (f for f in report.findings if f.kind == "host")
    assert report.ok and (found.op, number(found)) == ("aten::linalg_eig", 4) and "2 times" in found.message
    assert "on the host" in str(report)
