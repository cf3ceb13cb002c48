"""The command `torch-tpu`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from torch_tpu.cli import app

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed: pip install libtpu"
)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from torch_tpu.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
    torch.tpu.clear_cache()
    return tmp_path / "cache"


def test_info() -> None:
    result = invoke("info", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and told["torch"] == torch.__version__
    assert told["devices"]["tpu:0"] == torch.tpu.get_device_name(0) and Path(told["plugin"]).is_file()
    text = invoke("info").stdout
    assert "TPU" in text and torch.__version__ in text and told["plugin"] in text


def test_cache(folder: Path) -> None:
    assert json.loads(invoke("cache", "list", "--json").stdout) == []
    torch.ones(3, device="tpu").cosh()
    size = json.loads(invoke("cache", "size", "--json").stdout)
    assert size["programs"] == 2 and size["folder"] == str(folder) and size["bytes"] > 1000
    listed = json.loads(invoke("cache", "list", "--json").stdout)
    assert sum(e["bytes"] for e in listed) == size["bytes"]
    assert all(e["name"] in invoke("cache", "list").stdout for e in listed)
    assert json.loads(invoke("cache", "clear", "--json").stdout)["deleted"] == 2
    assert "no programs" in invoke("cache", "list").stdout


def test_warming(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, torch\ntorch.ones(int(sys.argv[1]), device='tpu').sinh().sum()")
    result = invoke("cache", "warm", script, "7", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["added"] == 3
    assert invoke("cache", "warm", tmp_path / "none.py").exit_code == 2
    script.write_text("raise ValueError('no')")
    result = invoke("cache", "warm", script)
    assert result.exit_code == 1 and "ValueError: no" in result.stdout


@needs_libtpu
def test_check(tmp_path: Path) -> None:
    script, page = tmp_path / "script.py", tmp_path / "page.html"
    script.write_text("import sys, torch\nprint(sys.argv[1:])\ntorch.ones(5, device='tpu')")
    done = run("check", script, "--steps", "2", "-x", "--target", "v6e", "--json", "--html", page)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] and told["target"] == "v6e:1x1" and told["arguments"] == ["--steps", "2", "-x"]
    assert "['--steps', '2', '-x']" in done.stderr
    assert page.read_text().startswith("<!DOCTYPE html>")


@needs_libtpu
def test_check_tells_by_its_exit_code() -> None:
    result = invoke("check", DATA / "wrong.py", "luck")
    assert (
        result.exit_code == 1
        and "FAILS (1 reason)" in result.stdout
        and "wrong.py:10: [script] ValueError: no luck" in result.stdout
    )
    for wrong in (["missing.py"], [DATA / "wrong.py", "--target", "v9"]):
        result = invoke("check", *wrong)
        assert result.exit_code == 2 and result.stderr.startswith("torch-tpu: ")


@needs_libtpu
def test_options_after_two_dashes_are_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, torch\ntorch.ones(len(sys.argv), device='tpu')")
    result = invoke("check", "--json", "--", script, "--json", "--target", "v9")
    assert result.exit_code == 0 and json.loads(result.stdout)["arguments"] == ["--json", "--target", "v9"]


def test_help_names_the_commands() -> None:
    text = invoke("--help").stdout
    assert all(name in text for name in ("info", "check", "cache"))
    assert invoke().exit_code == 2


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
@pytest.mark.parametrize("script", [["examples/train_gpt.py", "--steps", "3"]], ids=lambda s: Path(s[0]).stem)
def test_the_examples_pass(script: list[str], target: str) -> None:
    done = run("check", *script, "--target", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"on {target}:" in done.stdout and "passes" in done.stdout


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
def test_generating_passes(target: str) -> None:
    pytest.importorskip("gguf")
    done = run("check", "examples/generate.py", "--tokens", "3", "--target", target)
    assert done.returncode == 0, done.stdout + done.stderr
