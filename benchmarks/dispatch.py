"""What an op costs beyond the execution of its program: `python benchmarks/dispatch.py`.

The whole cost of a call from Python, averaged over many calls and synchronised at the end, against a loop in C++ in the
same process that does nothing but execute the same program on resident arguments. Rounds of the two alternate; the
median of the rounds' ratios counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch_tpu._C as core
from bars import Bars, table

LIMIT = 1.8
CALLS = 10_000
ROUNDS = 11


def cases(device: str) -> dict[str, Callable[[], object]]:
    """The ops, on 64x64 float32 tensors of `device`."""
    x, y = (torch.rand(64, 64).to(device) for _ in range(2))
    target = torch.zeros(64, 64).to(device)
    return {
        "add": lambda: x + y,
        "mul by a scalar": lambda: x * 1.5,
        "relu": lambda: torch.relu(x),
        "add_": lambda: target.add_(y),
        "add of a transposed view": lambda: x.T + y,
    }


def microseconds(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """The whole cost of one call."""
    for _ in range(100):
        call()
    synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    synchronize()
    return (time.perf_counter() - began) / CALLS * 1e6


def raw_microseconds(call: Callable[[], object]) -> float:
    """One execute of the call's program in a C++ loop."""
    core.remember_launches(True)
    call()
    seconds = core.measure_last_launch(CALLS)
    core.remember_launches(False)
    return seconds * 1e6


def main() -> None:
    """Measure, print, compare with the bar."""
    bars, rows = Bars(), []
    reference = cases("cpu")
    for name in reference:
        whole, raw = [], []
        for _ in range(ROUNDS):
            # New tensors every time: the raw loop may use up the memory of those it updates in place.
            whole.append(microseconds(cases("tpu")[name], torch.tpu.synchronize))
            raw.append(raw_microseconds(cases("tpu")[name]))
        host = microseconds(reference[name], lambda: None)
        ratio = statistics.median(w / r for w, r in zip(whole, raw, strict=True))
        rows.append((name, statistics.median(whole), statistics.median(raw), ratio, host))
    table(["64x64 float32", "whole, us", "raw execute, us", "ratio", "torch on CPU, us"], rows)
    for name, _, _, ratio, _ in rows:
        bars.at_most(name, ratio, LIMIT, " times the raw execute")
    bars.finish()


if __name__ == "__main__":
    main()
