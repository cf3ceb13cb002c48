"""A process that checks cases: one JSON line in for each, one out. It may die; `run.py` goes on without it."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback

# Answers go through a descriptor of their own: what libraries print is no answer.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import checks  # noqa: E402
import compare  # noqa: E402
import inputs  # noqa: E402
import torch  # noqa: E402


def main() -> None:
    """Answer until the input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        case = json.loads(line)
        began = time.perf_counter()
        verdict, message = _judge(case)
        case.update(verdict=verdict, message=message, seconds=round(time.perf_counter() - began, 2))
        case["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(json.dumps(case), file=_answers, flush=True)


def _judge(case: dict[str, str]) -> tuple[str, str]:
    op = inputs.operators()[case["op"]]
    try:
        count = checks.check(op, getattr(torch, case["dtype"]), case["kind"])
    except compare.Wrong as wrong:
        return "fail", str(wrong)
    except Exception as error:  # noqa: BLE001 - a fault of the harness is a failure, too
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "fail", f"harness: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    return ("pass", "") if count else ("n/a", "")


if __name__ == "__main__":
    main()
