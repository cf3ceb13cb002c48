"""Check that PyTorch's operator database compiles for a TPU chip. No TPU is needed, but libtpu is.

    python tests/conformance/chip.py                          all cases that have no verdict yet, for v5e:2x2
    python tests/conformance/chip.py linalg.* --dtypes float32 --target v6e:2x2
    python tests/conformance/chip.py --again fail             the failed ones anew
    python tests/conformance/chip.py _foreach_*               the database of the ops on lists of tensors is included

A case is an op, a dtype and "forward" or "backward". Its samples run on the device as usual, and each program that was
compiled for them is compiled for the chip, too; the case passes if all of them compile. Values are not looked at:
`run.py` does. Ops that take neither float32 nor bfloat16 are checked in the first dtype they take.

Verdicts are added to out/chip-v5e-2x2.jsonl as they come, and what the compiler said of each program to
out/chip-v5e-2x2.programs.jsonl, so nothing is compiled twice, also by a later run, unless its lowering has changed.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import run

HERE = Path(__file__).resolve().parent
TARGET = "v5e:2x2"
DTYPES = ("float32", "bfloat16")
KINDS = ("forward", "backward")
# A compile that takes longer (seconds of processor time) is worth a look.
SLOW = 5
# As in run.py, but some programs take a minute to compile.
LIMIT = 900


class Compiler:
    """libtpu's verdicts on programs, remembered in a file."""

    def __init__(self, target: str, path: Path) -> None:
        from torch_tpu.topology import Topology

        self.topology, self.path = Topology(target), path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {record["program"]: record for record in map(json.loads, lines)}

    def compile(self, op: str, artifact: bytes) -> dict[str, Any]:
        """{program: its hash, op, message: what the compiler objects to or "", seconds: of processor time}."""
        name = hashlib.sha256(artifact).hexdigest()
        if name not in self.known:
            began = time.process_time()
            try:
                self.topology.compile(artifact)
                message = ""
            except RuntimeError as error:
                message = str(error)
            seconds = round(time.process_time() - began, 2)
            self.known[name] = {"program": name, "op": op, "message": message, "seconds": seconds}
            with self.path.open("a") as file:
                file.write(json.dumps(self.known[name]) + "\n")
        return self.known[name]


class Recorder:
    """Knows the programs that were needed since `clear`: (op, artifact)."""

    def __init__(self) -> None:
        from torch_tpu import compiler, eager

        self.needed: dict[tuple[str, bytes], None] = {}
        self._compiled: list[bytes] = []
        self._programs: dict[str, tuple[Any, list[bytes]]] = {}
        self._build = eager.build
        self._lock = threading.RLock()
        compiler.observers.append(self._compiled.append)
        eager.build = self.build

    def clear(self) -> None:
        """Forget what was needed. Programs that are needed again are not made again, but come by `build` again."""
        import torch

        self.needed.clear()
        torch.tpu._C.clear_programs()

    def build(self, name: str, values: list[Any], storages: list[Any], with_rows: bool, fallback: bool) -> Any:
        """`eager.build`, remembering."""
        from torch_tpu import cache

        key = cache.key(name, values, storages, with_rows)
        with self._lock:
            if key not in self._programs:
                self._compiled.clear()
                try:
                    program = self._build(name, values, storages, with_rows, fallback)
                finally:
                    # Also what the device's own compiler refused.
                    self.needed.update(dict.fromkeys((name, artifact) for artifact in self._compiled))
                self._programs[key] = program, list(self._compiled)
            program, artifacts = self._programs[key]
            self.needed.update(dict.fromkeys((name, artifact) for artifact in artifacts))
        return program


def judge(case: dict[str, str], recorder: Recorder, compiler: Compiler, samples: int) -> dict[str, Any]:
    """The case with its verdict, the ops that were lowered, the number of programs and the longest compile."""
    import torch

    op, dtype = operators()[case["op"]], getattr(torch, case["dtype"])
    recorder.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran, errors = _run(op, dtype, case["kind"], samples)
    answers = [(name, compiler.compile(name, artifact)) for name, artifact in recorder.needed]
    errors += [f"{name}: {answer['message']}" for name, answer in answers if answer["message"]]
    verdict = "fail" if errors else "pass" if ran else "n/a"
    return {
        **case,
        "verdict": verdict,
        "message": " | ".join(dict.fromkeys(errors)),
        "lowered": sorted({name for name, _ in answers}),
        "programs": len({answer["program"] for _, answer in answers}),
        "slowest": max((answer["seconds"] for _, answer in answers), default=0),
    }


def _run(op: Any, dtype: Any, kind: str, count: int) -> tuple[int, list[str]]:
    """Run samples on the device: how many the CPU runs, too, and what the device raised for those."""
    import checks
    import inputs

    def backward(sample: inputs.SampleInput) -> Any:
        return checks._gradients(op, sample)[0]

    function = backward if kind == "backward" else op
    ran, errors = 0, []
    for sample in inputs.samples(op, dtype, count, requires_grad=kind == "backward"):
        if checks._attempt(function, inputs.copied(sample))[1] is None:
            ran += 1
            try:
                checks._run(function, inputs.to_tpu(sample), "tpu")
            except Exception as error:  # noqa: BLE001 - whatever it raises, the op does not run on the device
                errors.append(f"device: {checks._brief(error)}")
    return ran, errors


def serve(target: str, samples: int, programs: Path) -> None:
    """Answer cases, one JSON object a line, until the input ends."""
    os.environ["TORCH_TPU_CACHE_DIR"] = ""  # programs that come from the disk are not lowered

    def start() -> Callable[[dict[str, str]], dict[str, Any]]:
        import torch

        torch.set_num_threads(1)
        torch.tpu.init()
        recorder, compiler = Recorder(), Compiler(target, programs)
        return lambda case: judge(case, recorder, compiler, samples)

    run.serve(start)


def operators() -> dict[str, Any]:
    """The entries of PyTorch's operator database and of those of its foreach ops, by name."""
    import inputs
    from torch.testing._internal import common_methods_invocations as database

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    foreach = [op for kind in kinds for op in getattr(database, f"foreach_{kind}_op_db")]
    return {**inputs.operators(), **{op.full_name: op for op in foreach}}


def cases(patterns: list[str], dtypes: list[str]) -> Iterator[dict[str, str]]:
    """The cases of the ops that a pattern fits. Without dtypes: `DTYPES`, or the first that an op takes."""
    import checks
    import inputs

    for name, op in operators().items():
        if any(fnmatch.fnmatch(name, p) for p in patterns):
            taken = {inputs.dtype_name(d): d for d in inputs.dtypes(op)}
            chosen = [d for d in taken if d in (dtypes or DTYPES)]
            for dtype in chosen if dtypes or chosen else list(taken)[:1]:
                for kind in KINDS:
                    if kind in checks.kinds(op, taken[dtype]):
                        yield {"op": name, "dtype": dtype, "kind": kind}


def results_of(target: str) -> Path:
    """The file with the verdicts for a target."""
    return run.RESULTS.with_name(f"chip-{target.replace(':', '-')}.jsonl")


def programs_of(results: Path) -> Path:
    """The file with what the compiler said of each program, beside the verdicts."""
    return results.with_suffix(".programs.jsonl")


def worker(target: str, samples: int, results: Path) -> list[str]:
    """The command of a process that answers cases."""
    options = ["--target", target, "--samples", str(samples), "--results", str(results)]
    return [sys.executable, __file__, "--serve", *options]


def main() -> int:
    """Run; the exit code is 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", default=["*"], help="names of operators, with wildcards (default: all)")
    parser.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE")
    parser.add_argument("--target", default=TARGET, help=f"chips as libtpu names them (default: {TARGET})")
    parser.add_argument("--samples", type=int, default=2, help="of each case (default: 2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", nargs="+", default=[], metavar="VERDICT", help="repeat those with such verdicts")
    parser.add_argument("--results", type=Path, help="default: out/chip-TARGET.jsonl")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = arguments.results or results_of(arguments.target)
    if arguments.serve:
        serve(arguments.target, arguments.samples, programs_of(path))
        return 0

    program = worker(arguments.target, arguments.samples, path)
    todo = cases(arguments.ops, arguments.dtypes)
    return run.carry_out(todo, path, arguments.again, arguments.workers, program, LIMIT)


if __name__ == "__main__":
    sys.exit(main())
