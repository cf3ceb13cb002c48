"""Plots of a check's outcome, as SVG."""

from __future__ import annotations

import math
from html import escape

from . import text
from .check import Checked, CheckReport

_WIDTH = 860


def memory(report: CheckReport) -> str:
    """What the run needs of the chip's memory, as one bar."""
    need = report.memory
    scale = (_WIDTH - 40) / max(need.total, need.available, 1)
    peak, rest = need.peak * scale, max((need.scratch + need.code) * scale, 1)
    limit = 20 + need.available * scale
    return _svg(
        86,
        _box(20, 24, (_WIDTH - 40), 26, "track", ""),
        _box(20, 24, max(peak, 1), 26, "first", f"tensors at the peak: {text.size(need.peak)}"),
        _box(20 + peak, 24, rest, 26, "second", f"scratch: {text.size(need.scratch)}, code: {text.size(need.code)}"),
        f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="18" y2="56" class="limit"/>',
        _text(limit, 74, f"{text.size(need.available)} on the chip", "end"),
        _text(20, 14, f"{text.size(need.total)} needed at most ({need.total / need.available:.1%})"),
    )


def times(report: CheckReport, most: int = 15) -> str:
    """The programs that take most of a step."""
    shown = [p for p in report.programs if p.step_seconds][:most]
    if not shown:
        return ""
    longest, rows = shown[0].step_seconds, []
    for i, p in enumerate(shown):
        y, label = 6 + i * 24, f"{_name(p)} x {p.step_launches}"
        width = 300 * p.step_seconds / longest
        bound = 300 * (p.report.roofline_seconds * p.step_launches if p.report else 0) / longest
        rows += [
            _text(8, y + 13, label[:68]),
            _box(450, y, max(width, 1), 16, "track", ""),
            _box(450, y, max(bound, 1), 16, "first", f"{label}, {', '.join([*p.lines, *p.inside])}"),
            _text(458 + width, y + 13, text.seconds(p.step_seconds)),
        ]
    return _svg(12 + len(shown) * 24, *rows)


def roofline(report: CheckReport) -> str:
    """Each program by its FLOPs a byte and the FLOPs a second it can have, under the chip's roof, on log scales."""
    points = [p for p in report.programs if p.report and p.report.flops > 0 and p.report.bytes_accessed > 0]
    if not points:
        return ""
    chip = report.chip
    ridge = chip.device_flops / chip.device_bandwidth
    low = min(-2, math.floor(min(math.log10(p.report.intensity) for p in points)))
    high = max(4, math.ceil(math.log10(ridge)) + 1)
    rates = [p.report.flops / p.report.seconds for p in points]
    top = math.ceil(math.log10(chip.device_flops))
    bottom = min(top - 6, math.floor(math.log10(min(rates))))
    left, right, above, below = 90, _WIDTH - 20, 16, 330

    def x(intensity: float) -> float:
        return left + (math.log10(intensity) - low) / (high - low) * (right - left)

    def y(rate: float) -> float:
        return below - (math.log10(rate) - bottom) / (top - bottom) * (below - above)

    parts = []
    for e in range(low, high + 1):
        parts += [_rule(x(10**e), above, x(10**e), below), _text(x(10**e), below + 18, f"{10.0**e:g}", "middle")]
    for e in range(bottom, top + 1):
        parts += [_rule(left, y(10**e), right, y(10**e)), _text(left - 8, y(10**e) + 4, text.number(10.0**e), "end")]
    start = max(10.0**low, 10.0**bottom / chip.device_bandwidth)
    corners = [(start, start * chip.device_bandwidth), (ridge, chip.device_flops), (10.0**high, chip.device_flops)]
    parts.append(f'<polyline class="roof" points="{" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)}"/>')
    for p, rate in zip(points, rates, strict=True):
        radius = 3 + 9 * math.sqrt(p.step_seconds / (report.estimated_seconds or 1))
        title = f"{_name(p)}: {p.report.intensity:.2f} FLOP a byte, {text.number(rate)}FLOP a second"
        parts.append(
            f'<circle class="dot" cx="{x(p.report.intensity):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}">'
            f"<title>{escape(title)}</title></circle>"
        )
    parts.append(_text((left + right) / 2, below + 38, "FLOP per byte of memory traffic", "middle"))
    return _svg(below + 46, *parts)


def _name(p: Checked) -> str:
    return ", ".join(op.removeprefix("aten::") for op in p.ops[:2])


def _svg(height: float, *parts: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _box(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2">{inner}</rect>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="rule" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
