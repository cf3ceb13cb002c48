"""docs/chip.md: what compiles for a TPU chip, written from the verdicts of a run of chip.py and read back by the tests.

python tests/conformance/chip_table.py --target v5e:2x2
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import chip
import run

PAGE = run.HERE.parents[1] / "docs" / "chip.md"
LETTERS = {"forward": "F", "backward": "B"}

Key = tuple[str, str, str]

_SPARSE = "The device has no sparse layouts; they are refused by name."
# Why cases do not compile: (operator, dtype, kind of check, reason), with wildcards.
KNOWN: list[tuple[str, str, str, str]] = [
    ("to_sparse", "*", "*", _SPARSE),
    ("sparse.*", "*", "*", _SPARSE),
    ("chalf", "*", "*", "JAX and XLA have no complex32; such tensors are refused by name."),
]

_INTRODUCTION = """# What compiles for TPU chips

Every entry of PyTorch's operator database and of those of its foreach ops, lowered as on any machine and compiled ahead
of time by libtpu {libtpu} for `{target}`, two samples of each dtype. Measured and written by `make chip`.

A case is forward, or forward and backward, and passes if every program that the device runs for its samples compiles
for the chip. Ops that take neither float32 nor bfloat16 are checked in the first dtype they take. No values are
compared: [operators.md](operators.md) does that on XLA's CPU plugin.

What XLA's compiler for TPUs doesn't take, and what stands in for it:

| not on TPUs | instead |
| --- | --- |
| products of int64 matrices | products of elements, summed (`lowering/matmul.py`) |
| FFT in complex128 | products of matrices (`lowering/fft.py`) |
| products of a matrix of 64 bits and one of 32, as in JAX's SVD | an SVD of our own (`lowering/linalg.py`) |
| eigenvalues of general matrices, `ldl_factor`, `ldl_solve` | the host: [device.md](device.md), Ops on the host |
| float64 | emulated by the compiler: slower, less range, long compiles |
| complex32, sparse layouts | NotImplementedError that names them |
"""


def reason(key: Key) -> str | None:
    """Why a case is known not to compile."""
    for *patterns, why in KNOWN:
        if all(fnmatch.fnmatchcase(k, p) for k, p in zip(key, patterns, strict=True)):
            return why
    return None


def render(
    verdicts: dict[Key, dict[str, Any]], programs: list[dict[str, Any]], target: str, missing: Iterable[Key]
) -> str:
    """The page for some verdicts and what the compiler said of their programs. missing: cases that were not run."""
    introduction = _INTRODUCTION.format(libtpu=importlib.metadata.version("libtpu"), target=target)
    parts = [_totals(verdicts.values(), missing), _failures(verdicts), _slow(programs), _operators(verdicts)]
    return "\n".join([introduction, *(line for part in parts for line in part)]) + "\n"


def _totals(verdicts: Iterable[dict[str, Any]], missing: Iterable[Key]) -> list[str]:
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for v in verdicts:
        if v["verdict"] != "n/a":
            counts[_column(v["dtype"]), v["kind"]][v["verdict"] == "pass"] += 1
    left = collections.Counter((_column(dtype), kind) for _, dtype, kind in missing)
    lines = [
        "## Totals",
        "",
        "| dtype | kind | cases run | compile | % | not run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (dtype, kind), c in sorted(
        counts.items(), key=lambda item: (_COLUMNS.index(item[0][0]), item[0][1] != "forward")
    ):
        share = 100 * c[True] / c.total()
        lines.append(f"| {dtype} | {kind} | {c.total()} | {c[True]} | {share:.2f} | {left[dtype, kind]} |")
    return [*lines, ""]


_COLUMNS = [*chip.DTYPES, "other"]


def _column(dtype: str) -> str:
    return dtype if dtype in chip.DTYPES else "other"


def _failures(verdicts: dict[Key, dict[str, Any]]) -> list[str]:
    by_reason: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for key, v in verdicts.items():
        if v["verdict"] not in ("pass", "n/a"):
            why = reason(key) or f"Unexplained: {' '.join(v['message'].split())[:300]}"
            by_reason[why][key[0]].add(f"{key[1]} {key[2]}")
    lines = ["## What does not compile, and why", ""]
    for why, ops in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        listed = ", ".join(f"`{op}` ({', '.join(sorted(cases))})" for op, cases in sorted(ops.items()))
        lines.append(f"- {why} {listed}.")
    return [*lines, ""]


def _slow(programs: list[dict[str, Any]]) -> list[str]:
    slowest: dict[str, float] = {}
    for p in programs:
        if p["seconds"] > chip.SLOW:
            slowest[p["op"]] = max(p["seconds"], slowest.get(p["op"], 0))
    total, seconds = len(programs), sum(p["seconds"] for p in programs)
    lines = [
        "## Time",
        "",
        f"{total} programs took {seconds:.0f} s of processor time, {seconds / max(total, 1):.2f} s each.",
    ]
    if slowest:
        lines[-1] += f" Longer than {chip.SLOW} s:"
        listed = sorted(slowest.items(), key=lambda item: -item[1])
        lines += ["", "| op | s |", "| --- | --- |", *(f"| `{op}` | {s:.0f} |" for op, s in listed)]
    return [*lines, ""]


def _operators(verdicts: dict[Key, dict[str, Any]]) -> list[str]:
    lines = [
        "## Operators",
        "",
        "F: forward compiles; B: backward; a small letter does not; a dot doesn't apply.",
        "",
        f"| operator | {' | '.join(_COLUMNS)} |",
        "| --- " * (len(_COLUMNS) + 1) + "|",
    ]
    by_cell = {(op, _column(dtype), kind): v for (op, dtype, kind), v in verdicts.items()}
    for op in dict.fromkeys(op for op, _, _ in verdicts):
        cells = ["".join(_letter(by_cell.get((op, d, k)), k) for k in LETTERS) for d in _COLUMNS]
        lines.append(f"| {op} | {' | '.join(cells)} |")
    return lines


def _letter(verdict: dict[str, Any] | None, kind: str) -> str:
    if verdict is None or verdict["verdict"] == "n/a":
        return "."
    return LETTERS[kind] if verdict["verdict"] == "pass" else LETTERS[kind].lower()


def read(page: str) -> dict[Key, bool]:
    """Whether each case (operator, dtype or "other", kind) of a page compiles."""
    result: dict[Key, bool] = {}
    for line in page.partition("## Operators")[2].splitlines():
        op, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == len(_COLUMNS) and op not in ("operator", "---"):
            for dtype, cell in zip(_COLUMNS, cells, strict=True):
                result.update({(op, dtype, k): c.isupper() for k, c in zip(LETTERS, cell, strict=True) if c != "."})
    return result


def passes(page: dict[Key, bool], case: dict[str, str]) -> bool:
    """Whether a case compiles: what a page that was read does not list as failing does."""
    return page.get((case["op"], _column(case["dtype"]), case["kind"]), True)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=chip.TARGET, help=f"default: {chip.TARGET}")
    parser.add_argument("--results", type=Path, help="default: out/chip-TARGET.jsonl")
    arguments = parser.parse_args()
    path = arguments.results or chip.results_of(arguments.target)
    order = {name: i for i, name in enumerate(chip.operators())}
    verdicts = {key: v for key, v in run.read(path).items() if key[0] in order}
    verdicts = dict(sorted(verdicts.items(), key=lambda item: order[item[0][0]]))
    programs = [json.loads(line) for line in chip.programs_of(path).read_text().splitlines()]
    asked = ((c["op"], c["dtype"], c["kind"]) for c in chip.cases(["*"], []))
    missing = [key for key in asked if key not in verdicts]
    PAGE.write_text(render(verdicts, programs, arguments.target, missing))
    print("\n".join(_totals(verdicts.values(), missing)))


if __name__ == "__main__":
    main()
