"""What the benchmarks share: tables, bars, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Bars:
    """Collects figures and the bars they must keep."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def at_most(self, name: str, value: float, limit: float, unit: str = "") -> None:
        """Print a figure and whether it is at most `limit`."""
        met = value <= limit
        print(f"{name}: {value:,.4g}{unit} (bar: at most {limit:,.4g}{unit}) {'met' if met else 'NOT MET'}", flush=True)
        if not met:
            self.failed.append(name)

    def finish(self) -> None:
        """Exit, with 1 if a bar was not met."""
        if self.failed:
            print(f"not met: {', '.join(self.failed)}")
        sys.exit(1 if self.failed else 0)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns; numbers with three digits."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))


def python(code: str, **environment: str) -> str:
    """Run code in a new process; its output on both channels. Raises with the output if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT / "examples",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def host_bytes() -> int:
    """This process's memory that lies in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
