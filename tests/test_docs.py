"""Every Python block in the README and the docs runs. The blocks of a file share their names, in order."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!http)([^)#]+)")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_python_blocks_run(file: Path) -> None:
    text, names = file.read_text(), {"__name__": file.stem}
    if "from transformers import" in text:
        pytest.importorskip("transformers")
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], str(file), "exec"), names)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_links_lead_somewhere(file: Path) -> None:
    for target in LINK.findall(file.read_text()):
        assert (file.parent / target).exists(), target


def test_every_name_of_the_table_exists() -> None:
    table = (ROOT / "docs" / "device.md").read_text().partition("## torch.tpu")[2]
    names = [n for row in re.findall(r"^\|[^|]+\|(.*)\|$", table, re.MULTILINE) for n in re.findall(r"`(\w+)`", row)]
    assert len(names) > 40
    missing: list[Any] = [n for n in names if not hasattr(torch.tpu, n)]
    assert not missing


def test_every_variable_is_documented() -> None:
    used = set()
    for path in (ROOT / "torch_tpu").rglob("*.py"):
        used |= set(re.findall(r"environ(?:\.get\(|\[)\"(TORCH_TPU_\w+)\"", path.read_text()))
    documented = (ROOT / "docs" / "device.md").read_text()
    assert used and not {name for name in used if name not in documented}
