"""A process that checks cases: one JSON line in for each, one out. It may die; `run.py` goes on without it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import run


def start() -> Callable[[dict[str, str]], dict[str, Any]]:
    """What judges a case."""
    import checks
    import compare
    import inputs
    import torch

    torch.set_num_threads(1)

    def judge(case: dict[str, str]) -> dict[str, Any]:
        op = inputs.operators()[case["op"]]
        try:
            count = checks.check(op, getattr(torch, case["dtype"]), case["kind"])
        except compare.Wrong as wrong:
            return {**case, "verdict": "fail", "message": str(wrong)}
        except Exception as error:  # noqa: BLE001 - a fault of the harness is a failure, too
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"harness: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            return {**case, "verdict": "fail", "message": message}
        return {**case, "verdict": "pass" if count else "n/a", "message": ""}

    return judge


if __name__ == "__main__":
    run.serve(start)
