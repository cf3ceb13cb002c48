"""Run all benchmarks one after the other, and say which kept their bars: `python benchmarks/run.py [NAME ...]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "import_time",
    "dispatch",
    "compiles",
    "second_process",
    "memory",
    "embeddings",
    "speed",
    "cold_start",
    "generation",
    "compiled",
    "dynamic_shapes",
    "repeated_layers",
    "compiled_second_process",
)


def main() -> int:
    """0 if all kept their bars."""
    failed = []
    for name in sys.argv[1:] or NAMES:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, Path(__file__).parent / f"{name}.py"], check=False).returncode:
            failed.append(name)
    print(f"\nbars not kept: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
