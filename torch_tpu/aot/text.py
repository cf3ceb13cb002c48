"""Reports as text for a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .check import Checked, CheckReport, Finding
    from .report import Report


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: float) -> str:
    """A count with a prefix: 1.5 M."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.0f}" if not prefix else f"{count:.1f} {prefix}"
        count /= 1000
    return f"{count:.1f} P"


def seconds(value: float | None) -> str:
    """A duration in s, ms or us."""
    if value is None:
        return "unknown"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.2f} {unit}"
    return f"{value * 1e6:.2f} us"


def report(r: Report) -> str:
    """A page on one program."""
    m = r.memory
    verdict = "fits" if r.fits else f"does NOT fit, by {size(m.over)}"
    lines = [
        f"{r.target}, one device of {size(r.chip.hbm / r.chip.devices)}: {verdict}",
        f"memory      {size(m.total)} of {size(m.available)}"
        + (
            f": arguments {size(m.arguments)}, outputs {size(m.outputs)} ({size(m.aliased)} in place of arguments), "
            f"temporaries {size(m.temporaries)}, code {size(m.code)}"
            if m.arguments or m.outputs
            else ""
        ),
        f"work        {number(r.flops)}FLOP, {size(r.bytes_accessed)} moved, {r.intensity:.1f} FLOP a byte",
        f"time        {seconds(r.roofline_seconds)} at least ({r.bound_by} bound), "
        f"{seconds(r.estimated_seconds)} by the compiler's estimate, MFU {r.mfu:.1%}",
    ]
    total = sum(s.flops for s in r.shares) or 1
    lines += ["", "most FLOPs  (bytes as if nothing were fused)"]
    lines += [
        f"  {s.flops / total:6.1%}  {number(s.flops)}FLOP  {size(s.bytes)}  {s.op}  {short(s.line)}"
        for s in r.shares[:8]
        if s.flops
    ]
    if r.waste:
        lines += ["", "padding"]
        lines += [f"  {w.used:6.1%} used  {w.shape}  {short(w.where)}" for w in r.waste[:8]]
    return "\n".join(lines)


def check(r: CheckReport) -> str:
    """The outcome of a check: what fails first, then what is worth knowing."""
    failing = [f for f in r.findings if f.fails]
    step = "a step" if r.steps > 1 else "the run"
    command = " ".join([r.script, *r.arguments])
    verdict = "passes" if r.ok else f"FAILS ({len(failing)} reason{'s' if len(failing) > 1 else ''})"
    lines = [
        f"{command} on {r.target}: {verdict}",
        *_findings(failing),
        "",
        f"programs    {len(r.programs)} compiled for {r.target} in {r.compile_seconds:.0f} s, "
        f"{sum(p.launches for p in r.programs)} launches in the run" + (f" of {r.steps} steps" if r.steps else ""),
        f"memory      {size(r.memory.total)} of {size(r.memory.available)}: {size(r.memory.peak)} at the run's peak, "
        f"{size(r.memory.scratch)} scratch memory of a program on the chip, {size(r.memory.code)} of code",
        f"time        {step}: {seconds(r.bound_seconds)} at least, {seconds(r.estimated_seconds)} by the compiler's "
        f"estimate, in {r.step_launches} launches; {number(r.step_flops)}FLOP, MFU {r.mfu:.1%}",
    ]
    top = [p for p in r.programs if p.step_seconds][:8]
    if top:
        lines += ["", f"most of {step}"]
        total = r.estimated_seconds
        lines += [f"  {p.step_seconds / total:6.1%}  {p.step_launches:>4} x {where(p)}" for p in top]
    for kind, title in _NOTES:
        found = [f for f in r.findings if f.kind == kind and not f.fails]
        if found:
            lines += ["", f"{title}: {len(found)}", *_findings(found[:10])]
    if r.padding:
        lines += ["", "padding (share of the tile or matrix unit that is used)"]
        lines += [f"  {w['used']:6.1%}  {w['shape']}  {w['where']}" for w in r.padding[:10]]
    if r.traceback:
        lines += ["", "the script raised", r.traceback.rstrip()]
    return "\n".join(lines)


_NOTES = (
    ("fallback", "on the CPU"),
    ("host", "on the host, on any device"),
    ("recompile", "compiled more than once at one place"),
    ("graph break", "graph breaks"),
)


def _findings(findings: list[Finding]) -> list[str]:
    lines = []
    for f in findings:
        lines.append(f"  {f.line or 'somewhere'}: [{f.kind}] {f.op + ': ' if f.op else ''}{f.message}")
        if f.source and f.fails:
            lines.append(f"      {f.source}")
    return lines


def where(p: Checked) -> str:
    """The ops and lines that need a program."""
    lines = [*p.lines[:2], *(["..."] if len(p.lines) > 2 else [])]
    inside = [short(line) for line in p.inside[:2]] + (["..."] if len(p.inside) > 2 else [])
    return f"{', '.join(p.ops[:3])}  {', '.join(lines)}" + (f", in {', '.join(inside)}" if inside else "")


def short(words: str) -> str:
    """Lines of installed libraries from their package on."""
    return _SITE.sub("", words)


_SITE = re.compile(r"\S*/site-packages/")
