"""docs/operators.md: what passes, by operator and dtype, written from the verdicts of a run and read back by the tests.

python tests/conformance/table.py          write the table from out/conformance.jsonl
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import run
from known import KNOWN

TABLE = run.HERE.parents[1] / "docs" / "operators.md"
DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")
# A letter in the table for each kind of check: those of every dtype, those made once an operator.
PER_DTYPE = {"forward": "F", "backward": "B", "in-place": "I", "out": "O"}
ONCE = {"view": "V", "layout": "L", "errors": "E", "vmap": "M", "jvp": "J", "gradgrad": "G"}
KINDS = {**PER_DTYPE, **ONCE}

Key = tuple[str, str, str]

_INTRODUCTION = """# Operators

Every entry of PyTorch's operator database (`torch.testing._internal.common_methods_invocations.op_db`), run on device
"tpu" (XLA's CPU plugin) and compared with PyTorch on the CPU: values within PyTorch's tolerances, shapes, dtypes,
strides (as PyTorch's fake tensors promise), aliasing, errors. Measured and written by `make conformance`, with at most
5 samples for float32, bfloat16 and int64, 2 for the other dtypes and for the checks made once an operator.

| letter | check |
| --- | --- |
| F | forward |
| B | backward: gradients of all inputs |
| I | the in-place variant |
| O | the `out=` variant: into a tensor alike, a strided one, one to resize |
| V | results share memory with inputs as on the CPU, and writes through them show |
| L | inputs transposed, strided, at an offset, expanded, channels-last, 0-d, empty |
| E | wrong inputs raise the CPU's type of exception (what only shows in values does in debug mode) |
| M | `torch.func.vmap` |
| J | `torch.func.jvp` |
| G | gradients of gradients |

A capital letter passes, a small one fails, a dot doesn't apply: the CPU doesn't support it.
"""


def reason(key: Key) -> str | None:
    """Why a case is known to fail."""
    for op, dtype, kind, why in KNOWN:
        if all(fnmatch.fnmatch(k, pattern) for k, pattern in zip(key, (op, dtype, kind), strict=True)):
            return why
    return None


def render(verdicts: dict[Key, dict[str, Any]]) -> str:
    """The page for some verdicts."""
    return "\n".join([_INTRODUCTION, *_totals(verdicts.values()), *_failures(verdicts), *_operators(verdicts)]) + "\n"


def _totals(verdicts: Iterable[dict[str, Any]]) -> list[str]:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for v in verdicts:
        if v["verdict"] != "n/a":
            counts[v["kind"]]["cases"] += 1
            counts[v["kind"]][v["verdict"]] += 1
    lines = [
        "## Totals",
        "",
        "| check | cases | pass | fail | crash or hang | pass % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        c = counts[kind]
        died = c["crash"] + c["hang"]
        share = f"{100 * c['pass'] / c['cases']:.2f}" if c["cases"] else "-"
        lines.append(f"| {kind} | {c['cases']} | {c['pass']} | {c['fail']} | {died} | {share} |")
    return [*lines, ""]


def _failures(verdicts: dict[Key, dict[str, Any]]) -> list[str]:
    by_reason: dict[str, list[Key]] = collections.defaultdict(list)
    for key, v in verdicts.items():
        if v["verdict"] not in ("pass", "n/a"):
            by_reason[reason(key) or f"unexplained: {v['message']}"].append(key)
    lines = ["## What fails, and why", ""]
    for why, keys in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        cases = collections.defaultdict(set)
        for op, _, kind in keys:
            cases[op].add(kind)
        listed = ", ".join(f"`{op}` ({', '.join(sorted(kinds))})" for op, kinds in sorted(cases.items()))
        lines.append(f"- {why} {len(keys)} cases: {listed}")
    return [*lines, ""]


def _operators(verdicts: dict[Key, dict[str, Any]]) -> list[str]:
    lines = ["## Operators", "", f"| operator | {' | '.join(DTYPES)} | once |", "| --- " * (len(DTYPES) + 2) + "|"]
    for op in dict.fromkeys(op for op, _, _ in verdicts):
        cells = ["".join(_letter(verdicts.get((op, d, k))) for k in PER_DTYPE) for d in DTYPES]
        first = next(d for d in DTYPES if (op, d, "layout") in verdicts)
        once = "".join(_letter(verdicts.get((op, first, k))) for k in ONCE)
        lines.append(f"| {op} | {' | '.join(cells)} | {once} |")
    return lines


def _letter(verdict: dict[str, Any] | None) -> str:
    if verdict is None or verdict["verdict"] == "n/a":
        return "."
    letter = KINDS[verdict["kind"]]
    return letter if verdict["verdict"] == "pass" else letter.lower()


def read(page: str) -> dict[Key, bool]:
    """Whether each case of a page passes; of the checks made once an operator the dtype is ''."""
    result: dict[Key, bool] = {}
    for line in page.partition("## Operators")[2].splitlines():
        op, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == len(DTYPES) + 1 and op not in ("operator", "---"):
            for dtype, kinds, cell in zip([*DTYPES, ""], [PER_DTYPE] * len(DTYPES) + [ONCE], cells, strict=True):
                result.update({(op, dtype, k): c.isupper() for k, c in zip(kinds, cell, strict=True) if c != "."})
    return result


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=run.RESULTS, help="default: out/conformance.jsonl")
    arguments = parser.parse_args()
    import inputs

    order = {name: i for i, name in enumerate(inputs.operators())}
    verdicts = {k: v for k, v in run.read(arguments.results).items() if k[0] in order}
    TABLE.write_text(render(dict(sorted(verdicts.items(), key=lambda item: order[item[0][0]]))))
    print("\n".join(_totals(verdicts.values())))
    unexplained = [k for k, v in verdicts.items() if v["verdict"] not in ("pass", "n/a") and reason(k) is None]
    print(f"{len(unexplained)} failures without a reason in known.py", *unexplained[:20], sep="\n")


if __name__ == "__main__":
    sys.exit(main())
