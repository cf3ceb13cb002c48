"""Check the device against the CPU on PyTorch's operator database.

    python tests/conformance/run.py                         all cases that have no verdict yet
    python tests/conformance/run.py linalg.* --dtypes float32 --kinds forward backward
    python tests/conformance/run.py --again fail            the failed ones anew

Verdicts are added to a file as they come (one JSON object a line, the last one of a case counts), so a run that was
stopped goes on where it was. Each worker is a process; one that dies or takes too long costs the case it was at.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "out" / "conformance.jsonl"
# A case that takes longer (seconds) hangs; a worker that grew larger (megabytes) is replaced.
LIMIT, LARGEST = 240, 5000


def read(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last verdict of each case, by (op, dtype, kind)."""
    verdicts: dict[tuple[str, str, str], dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            verdicts[record["op"], record["dtype"], record["kind"]] = record
    return verdicts


class Worker:
    """A process that judges cases, made anew when it died."""

    def __init__(self, program: list[str], limit: int = LIMIT) -> None:
        self.program, self.limit, self.process = program, limit, None

    def judge(self, case: dict[str, str]) -> dict[str, Any]:
        """The case with its verdict."""
        began = time.perf_counter()
        if self.process is None:
            self.process = subprocess.Popen(
                self.program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        timer = threading.Timer(self.limit, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            verdict = json.loads(answer)
            if verdict["megabytes"] > LARGEST:
                self.close()
            return verdict
        seconds = time.perf_counter() - began
        code = self.process.wait()
        self.process = None
        if seconds >= self.limit:
            return {**case, "verdict": "hang", "message": f"no verdict after {self.limit} s", "seconds": self.limit}
        return {**case, "verdict": "crash", "message": f"the process died with {code}", "seconds": round(seconds, 2)}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def serve(start: Callable[[], Callable[[dict[str, str]], dict[str, Any]]]) -> None:
    """The side of a worker: answer cases, one JSON object a line, until the input ends.

    start: imports what judging takes, and gives the function from a case to the case with its verdict.
    """
    # Answers go through a descriptor of their own: what libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge = start()
    for line in sys.stdin:
        began = time.perf_counter()
        verdict = judge(json.loads(line))
        verdict["seconds"] = round(time.perf_counter() - began, 2)
        verdict["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(json.dumps(verdict), file=answers, flush=True)


def run(
    cases: Iterable[dict[str, str]], workers: int, program: list[str], limit: int = LIMIT
) -> Iterator[dict[str, Any]]:
    """The verdicts of cases, as they come. Cases of one op and dtype go to one worker, which shares their programs."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = collections.defaultdict(list)
    for case in cases:
        groups[case["op"], case["dtype"]].append(case)
    todo: queue.SimpleQueue[list[dict[str, str]]] = queue.SimpleQueue()
    for group in groups.values():
        todo.put(group)
    done: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def serve() -> None:
        worker = Worker(program, limit)
        while True:
            try:
                group = todo.get_nowait()
            except queue.Empty:
                break
            for case in group:
                done.put(worker.judge(case))
        worker.close()
        done.put(None)

    for _ in range(workers):
        threading.Thread(target=serve, daemon=True).start()
    running = workers
    while running:
        verdict = done.get()
        if verdict is None:
            running -= 1
        else:
            yield verdict


def select(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """The cases that were asked for."""
    import checks
    import inputs

    ops = [op for name, op in inputs.operators().items() if any(fnmatch.fnmatch(name, p) for p in arguments.ops)]
    part, parts = (int(x) for x in arguments.shard.split("/"))
    cases = [vars(case) for case in checks.jobs(ops[part - 1 :: parts])]
    return [
        case
        for case in cases
        if (not arguments.dtypes or case["dtype"] in arguments.dtypes)
        and (not arguments.kinds or case["kind"] in arguments.kinds)
    ]


def main() -> int:
    """Run; the exit code is 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", default=["*"], help="names of operators, with wildcards (default: all)")
    parser.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts of the operators")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", nargs="+", default=[], metavar="VERDICT", help="repeat those with such verdicts")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: out/conformance.jsonl")
    arguments = parser.parse_args()

    program = [sys.executable, str(HERE / "worker.py")]
    return carry_out(select(arguments), arguments.results, arguments.again, arguments.workers, program)


def carry_out(
    cases: Iterable[dict[str, str]],
    path: Path,
    again: list[str],
    workers: int,
    program: list[str],
    limit: int = LIMIT,
) -> int:
    """Judge the cases that have no verdict in the file `path`, or one of `again`, and add theirs; 1 if one failed."""
    known = read(path)
    todo = [
        case
        for case in cases
        if (record := known.get((case["op"], case["dtype"], case["kind"]))) is None
        or record["verdict"] in again
        or "all" in again
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    counts: collections.Counter[str] = collections.Counter()
    with path.open("a") as results:
        for verdict in _with_progress(run(todo, workers, program, limit), todo):
            results.write(json.dumps(verdict) + "\n")
            results.flush()
            counts[verdict["verdict"]] += 1
            if verdict["verdict"] not in ("pass", "n/a"):
                print("{op} {dtype} {kind}: {verdict}: {message}".format(**verdict), flush=True)
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())) or "nothing to do")
    return int(any(counts[v] for v in ("fail", "crash", "hang")))


def _with_progress(verdicts: Iterator[dict[str, Any]], cases: list[Any]) -> Iterator[dict[str, Any]]:
    from tqdm import tqdm

    return iter(tqdm(verdicts, total=len(cases), disable=None, smoothing=0.02))


if __name__ == "__main__":
    sys.exit(main())
