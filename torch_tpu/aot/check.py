"""Whether a script would run on a chip: it runs on the device that is here, and all its programs are compiled for the
chip."""

from __future__ import annotations

import contextlib
import hashlib
import runpy
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _C, lines, runtime
from ..arguments import difference
from ..lines import Line
from ..topology import require_libtpu
from . import text
from .chips import Chip, chip_of, topology_name
from .record import Recorded, Recorder
from .report import Report, compile_artifact

Track = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Finding:
    """Something to know. kind: "script", "unsupported", "chip", "memory", "fallback", "recompile" or "graph break".

    fails: whether the script can't run on the chip for it. line: the user's, "" if unknown; source: what stands there.
    """

    kind: str
    fails: bool
    line: str
    source: str
    op: str
    message: str


@dataclass(frozen=True)
class Checked:
    """A program of the run. ops, lines: that needed it; inside: the lines of libraries. launches: in the run.
    step_launches: in the last step, or in the run if it has no steps. report: None if the chip's compiler refused it,
    for the reason `message`.
    """

    ops: list[str]
    lines: list[str]
    inside: list[str]
    launches: int
    step_launches: int
    report: Report | None
    message: str = ""

    @property
    def step_seconds(self) -> float:
        """The best guess of the time it takes in a step."""
        return self.report.seconds * self.step_launches if self.report else 0.0


@dataclass(frozen=True)
class Need:
    """The run's memory, in bytes of one device. peak: of tensors and scratch memory here. scratch: the most that one of
    the programs takes on the chip. code: of all programs, which stay there. available: on the chip. refused: an
    allocation was too much, and is in none of these."""

    peak: int
    scratch: int
    code: int
    available: int
    refused: bool = False

    @property
    def total(self) -> int:
        """What the chip needs at most."""
        return self.peak + self.scratch + self.code

    @property
    def over(self) -> int:
        """What the chip lacks, 0 if it has enough."""
        return max(self.total - self.available, 0)

    @property
    def fits(self) -> bool:
        """Whether the chip has what was allocated, and nothing was refused."""
        return not (self.over or self.refused)


@dataclass
class CheckReport:
    """The outcome of a check. steps: optimizer steps of the run. seconds: that the run and the compiler took."""

    script: str
    arguments: list[str]
    target: str
    chip: Chip
    findings: list[Finding]
    programs: list[Checked]
    memory: Need
    steps: int
    padding: list[dict[str, Any]] = field(default_factory=list)
    graph_breaks: dict[str, int] = field(default_factory=dict)
    cpu_fallbacks: dict[str, int] = field(default_factory=dict)
    traceback: str = ""
    run_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the script runs on the chip, as far as can be told without one."""
        return not any(f.fails for f in self.findings)

    @property
    def bound_seconds(self) -> float:
        """No step is faster (no run, if it has no steps): the sum of its launches' rooflines."""
        return sum(p.report.roofline_seconds * p.step_launches for p in self.programs if p.report)

    @property
    def estimated_seconds(self) -> float:
        """The sum of the compiler's estimates over a step's launches, without what lies between them."""
        return sum(p.step_seconds for p in self.programs)

    @property
    def step_launches(self) -> int:
        """The programs that a step launches."""
        return sum(p.step_launches for p in self.programs)

    @property
    def step_flops(self) -> float:
        """The FLOPs of a step."""
        return sum(p.report.flops * p.step_launches for p in self.programs if p.report)

    @property
    def mfu(self) -> float:
        """The share of the chip's peak that is used if the estimate is right."""
        return self.step_flops / (self.estimated_seconds * self.chip.device_flops) if self.estimated_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        names = ("ok", "bound_seconds", "estimated_seconds", "step_launches", "step_flops", "mfu")
        plain = {k: v for k, v in self.__dict__.items() if k not in ("programs", "chip", "findings", "memory")}
        return plain | {
            **{n: getattr(self, n) for n in names},
            "chip": asdict(self.chip),
            "findings": [asdict(f) for f in self.findings],
            "memory": asdict(self.memory) | {"total": self.memory.total, "fits": self.memory.fits},
            "programs": [_program_dict(p) for p in self.programs],
        }

    def __str__(self) -> str:
        return text.check(self)


def check(script: str, arguments: Sequence[str], target: str, track: Track = lambda items: items) -> CheckReport:
    """Run a script on the device and compile everything it compiled for a target, see `aot.compile`.

    A device's memory is limited to the chip's while it runs. track: is given the programs and hands them on one by one,
    to show progress. ValueError for an unknown target, FileNotFoundError for the script, ImportError without libtpu.
    """
    chip, name = chip_of(target), topology_name(target)
    if not Path(script).is_file():
        raise FileNotFoundError(f"{script} is no file")
    require_libtpu()  # before the script runs for nothing
    began = time.perf_counter()
    # Programs from the disk are not lowered, so there would be nothing to compile for the chip.
    no_disk_cache = runtime.environment(TORCH_TPU_CACHE_DIR="")
    with _limited_memory(chip) as limit, no_disk_cache, Recorder() as recorder:
        devices = range(torch.tpu.device_count())
        for device in devices:
            torch.tpu.reset_peak_memory_stats(device)
        before = torch.tpu.cpu_fallbacks()
        failure = run(script, arguments)
        fallbacks = {op: n - before.get(op, 0) for op, n in torch.tpu.cpu_fallbacks().items() if n > before.get(op, 0)}
        peak = max(torch.tpu.max_memory_allocated(device) for device in devices)
        launches = [p.launches for p in recorder.programs]
    ran = time.perf_counter()
    programs = _compile_all(recorder, launches, name, track)
    scratch = max((p.report.memory.temporaries for p in programs if p.report), default=0)
    code = sum(p.report.memory.code for p in programs if p.report)
    report = CheckReport(
        script=script,
        arguments=list(arguments),
        target=name,
        chip=chip,
        findings=[],
        programs=programs,
        memory=Need(peak, scratch, code, chip.usable, isinstance(failure, torch.OutOfMemoryError)),
        steps=len(recorder.steps),
        padding=_padding(programs),
        graph_breaks=_graph_breaks(),
        cpu_fallbacks=fallbacks,
        traceback="" if failure is None else _traceback(failure),
        run_seconds=ran - began,
        compile_seconds=time.perf_counter() - ran,
    )
    found = _findings(report, recorder, failure, limit)
    # The first of a kind says why, those of the same line that follow from it don't.
    report.findings = list({(f.kind, f.line, f.fails or f.message): f for f in reversed(list(found))}.values())[::-1]
    return report


def run(script: str, arguments: Sequence[str]) -> BaseException | None:
    """Run a script as `python script arguments` would; what it raised. An exit with 0 is no failure."""
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [script, *arguments], [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        return exit_ if exit_.code else None
    except Exception as error:  # noqa: BLE001 - whatever the script raises is what is reported
        return error
    finally:
        sys.argv, sys.path[:] = before
    return None


@contextlib.contextmanager
def _limited_memory(chip: Chip) -> Iterator[int]:
    before = _C.memory_limit()
    limit = min(before, chip.usable)
    _C.set_memory_limit(limit)
    try:
        yield limit
    finally:
        _C.set_memory_limit(before)


def _compile_all(recorder: Recorder, launches: list[int], target: str, track: Track) -> list[Checked]:
    """Each distinct program once, those that take longest first."""
    in_step = recorder.last_step() or launches
    groups: dict[str, list[int]] = defaultdict(list)
    for i, made in enumerate(recorder.programs):
        groups[hashlib.sha256(made.artifact or b"").hexdigest()].append(i)
    checked = []
    for indices in track(list(groups.values())):
        alike = [recorder.programs[i] for i in indices]
        report, message = None, ""
        try:
            report = compile_artifact(alike[0].artifact or b"", target)
        except RuntimeError as error:
            message = str(error)
        checked.append(
            Checked(
                ops=list(dict.fromkeys(m.op for m in alike)),
                lines=list(dict.fromkeys(str(m.line) for m in alike if m.line)),
                inside=list(dict.fromkeys(str(m.place.inside) for m in alike if m.place.inside)),
                launches=sum(launches[i] for i in indices),
                step_launches=sum(in_step[i] for i in indices),
                report=report,
                message=message,
            )
        )
    return sorted(checked, key=lambda p: -p.step_seconds)


def _findings(report: CheckReport, recorder: Recorder, failure: BaseException | None, limit: int) -> Iterator[Finding]:
    asked = _C.cpu_fallback()
    for u in dict.fromkeys(recorder.unsupported):
        reason = "runs on the CPU, as TORCH_TPU_FALLBACK=cpu asks" if asked else u.reason
        yield _finding("fallback" if asked else "unsupported", not asked, u.line, u.op, reason)
    if failure is not None:
        yield _of_failure(failure, report, limit)
    elif not report.programs:
        yield _finding("script", True, None, "", "the script ran nothing on device 'tpu': there is nothing to check")
    for p in report.programs:
        line = _parsed(p.lines[0]) if p.lines else None
        if p.report is None:
            yield _finding("chip", True, line, p.ops[0], f"{report.target} does not compile it: {_brief(p.message)}")
        elif not p.report.fits:
            m = p.report.memory
            words = f"needs {text.size(m.total)}, {report.target} has {text.size(m.available)}"
            yield _finding("memory", True, line, p.ops[0], words)
    if report.memory.over:
        m = report.memory
        parts = f"tensors take {text.size(m.peak)}, a program's scratch memory {text.size(m.scratch)}, code "
        words = f"{parts}{text.size(m.code)}: {report.target} has {text.size(m.available)}"
        yield _finding("memory", True, None, "", words)
    for (op, line), count in recorder.on_host.items():
        yield _finding("host", False, line, op, f"runs on the host, {count} times, with a copy there and back each")
    yield from _recompiles(recorder.programs)
    for reason, count in report.graph_breaks.items():
        yield _finding("graph break", False, None, "torch.compile", f"{count} times: {reason}")


def _brief(message: str) -> str:
    """What the compiler says, without what it guesses of the place."""
    return message.partition("Suspected Python Code Location")[0].strip()


def _of_failure(failure: BaseException, report: CheckReport, limit: int) -> Finding:
    line = lines.of_traceback(failure.__traceback__)
    words = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, torch.OutOfMemoryError):
        if limit == report.chip.usable:
            words = str(failure).partition(". Free tensors")[0]  # its advice is for this machine
            return _finding("memory", True, line, "", f"does not fit {report.target}: {words}")
        here = f"this machine's limit of {text.size(limit)} is below the {text.size(report.chip.usable)} of "
        return _finding("memory", True, line, "", f"{here}{report.target}, so no more can be told: {failure}")
    kind = "unsupported" if isinstance(failure, NotImplementedError) else "script"
    return _finding(kind, True, line, "", words)


def _recompiles(programs: Sequence[Recorded]) -> Iterator[Finding]:
    """Ops that were compiled more than once at the same place, and what was different; the worst first."""
    places: dict[Any, list[Recorded]] = defaultdict(list)
    for made in programs:
        places[made.op, made.place].append(made)
    found = [(sum(m.step >= 2 for m in made), made) for made in places.values() if len(made) > 1]
    for late, made in sorted(found, key=lambda item: (-item[0], -len(item[1]))):
        if not late and not made[0].place.frames:
            continue  # all of the backward pass
        described = [m.arguments for m in made]
        causes = dict.fromkeys(difference(described[:i], d) for i, d in enumerate(described) if i)
        causes = [c for c in causes if c]
        words = f"{len(made)} programs" + (f", {late} of them after the second step" if late else "")
        words += (": " + "; ".join(causes[:3]) + (" and more" if len(causes) > 3 else "")) if causes else ""
        inside = made[0].place.inside
        where = f"in {text.short(str(inside))}: " if inside else ""
        yield _finding("recompile", False, made[0].line, made[0].op, where + words)


def _padding(programs: Sequence[Checked], most: int = 12) -> list[dict[str, Any]]:
    """The worst shapes of the run, by what is lost in all launches of a step."""
    found = {}
    for p in programs:
        for w in p.report.waste if p.report else ():
            where = text.where(p)
            found[where, w.shape] = asdict(w) | {"where": where, "lost_in_step": w.lost * max(p.step_launches, 1)}
    products = sorted((w for w in found.values() if w["unit"] == "FLOPs"), key=lambda w: -w["lost_in_step"])
    arrays = sorted((w for w in found.values() if w["unit"] == "bytes"), key=lambda w: -w["lost"])
    return [*products[:most], *arrays[:most]]


def _graph_breaks() -> dict[str, int]:
    if "torch._dynamo" not in sys.modules:
        return {}
    from torch._dynamo.utils import counters

    return {str(reason).strip(): int(count) for reason, count in counters["graph_break"].items()}


def _finding(kind: str, fails: bool, line: Line | None, op: str, message: str) -> Finding:
    return Finding(kind, fails, str(line or ""), line.text if line else "", op, message)


def _parsed(line: str) -> Line:
    file, _, number = line.rpartition(":")
    return Line(file, int(number))


def _traceback(failure: BaseException) -> str:
    """From the script's first frame on."""
    frames = traceback.extract_tb(failure.__traceback__)
    first = next((i for i, f in enumerate(frames) if lines.is_users(f.filename)), 0)
    return "".join([*traceback.format_list(frames[first:]), *traceback.format_exception_only(failure)])


def _program_dict(p: Checked) -> dict[str, Any]:
    made = {k: v for k, v in asdict(p).items() if k != "report"}
    return made | {"report": p.report.to_dict() if p.report else None, "step_seconds": p.step_seconds}
