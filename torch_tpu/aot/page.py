"""A check's outcome as one page of HTML that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from . import plots, text
from .check import CheckReport

_TITLES = {
    "script": "the script",
    "unsupported": "no lowering",
    "chip": "the chip's compiler",
    "memory": "memory",
    "fallback": "runs on the CPU",
    "host": "runs on the host",
    "recompile": "compiled more than once",
    "graph break": "graph break",
}


def page(report: CheckReport) -> str:
    """The page; what the script or the compiler say is escaped."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"size": text.size, "number": text.number, "seconds": text.seconds, "short": text.short}
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    drawn = {f.__name__: jinja2.utils.markupsafe.Markup(f(report)) for f in (plots.memory, plots.times, plots.roofline)}
    return template.render(
        r=report,
        titles=_TITLES,
        plots=drawn,
        failing=[f for f in report.findings if f.fails],
        noted=[f for f in report.findings if not f.fails],
        step="step" if report.steps > 1 else "run",
    )
