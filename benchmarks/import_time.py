"""What the package adds to `import torch`: `python benchmarks/import_time.py`.

Alternates processes with and without it and compares medians. Also checks that the import prints nothing and does not
load JAX.
"""

from __future__ import annotations

import statistics

from bars import Bars, python, table

ROUNDS = 7
LIMIT = 1.2
CODE = """
import sys, time
began = time.perf_counter()
import torch
seconds = time.perf_counter() - began
assert "jax" not in sys.modules, "JAX was imported"
assert ("torch_tpu" in sys.modules) == {loaded}, "autoload did not do what was asked"
print(seconds)
"""


def seconds(loaded: bool) -> float:
    """Of one import in a new process; fails if anything else was printed."""
    return float(python(CODE.format(loaded=loaded), TORCH_DEVICE_BACKEND_AUTOLOAD=str(int(loaded))))


def main() -> None:
    """Measure, print, compare with the bar."""
    seconds(False), seconds(True)  # files into memory, bytecode written
    without, loaded = [], []
    for _ in range(ROUNDS):
        without.append(seconds(False))
        loaded.append(seconds(True))
    table(
        ["import torch", "median, s", "least, s"],
        [(n, statistics.median(v), min(v)) for n, v in (("without torch_tpu", without), ("with torch_tpu", loaded))],
    )
    bars = Bars()
    bars.at_most("import with it", statistics.median(loaded) / statistics.median(without), LIMIT, " times without")
    bars.finish()


if __name__ == "__main__":
    main()
