"""torch.compile of the operators of the database gives what they give eagerly, gradients included."""

from __future__ import annotations

import sys

import inputs
import pytest
import run

# Every n-th operator, as in test_conformance.py; of these, quick runs take every n-th again.
STEP, QUICK = 8, 8


def failures(names: list[str]) -> list[str]:
    """What compiled code gives otherwise than eager, or not at all."""
    cases = [{"op": name, "dtype": "float32", "kind": "compiled"} for name in names]
    verdicts = list(run.run(cases, 2, [sys.executable, str(run.HERE / "worker.py")]))
    assert sum(v["verdict"] == "pass" for v in verdicts) > 0.9 * len(names)
    return ["{op}: {verdict}: {message}".format(**v) for v in verdicts if v["verdict"] not in ("pass", "n/a")]


def names() -> list[str]:
    """The operators that take float32."""
    ops = list(inputs.operators().values())[::STEP]
    return [op.full_name for op in ops if inputs.DTYPES[0] in inputs.dtypes(op)]


def test_some_operators_compile_as_eager() -> None:
    assert failures(names()[::QUICK]) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_operators_compile_as_eager() -> None:
    assert failures(names()) == []
