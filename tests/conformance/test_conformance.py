"""A part of the operator database passes as docs/operators.md says. The whole is run by run.py."""

import collections
import sys

import checks
import inputs
import pytest
import run
import table

# Every n-th operator, so that all families are met.
STEP = 8
DTYPES = ("float32", "bfloat16", "int64")


@pytest.fixture(scope="module")
def promised() -> dict[table.Key, bool]:
    """What the table says."""
    return table.read(table.TABLE.read_text())


def test_no_failure_lacks_a_reason(promised: dict[table.Key, bool]) -> None:
    dtypes = {name: inputs.dtype_name(d[0]) for name, op in inputs.operators().items() if (d := inputs.dtypes(op))}
    failing = [(op, dtype or dtypes[op], kind) for (op, dtype, kind), passes in promised.items() if not passes]
    assert [key for key in failing if table.reason(key) is None] == []


def test_the_table_has_every_operator() -> None:
    page = table.TABLE.read_text()
    # Some entries are for CUDA alone.
    names = [name for name, op in inputs.operators().items() if inputs.dtypes(op)]
    assert [name for name in names if f"\n| {name} |" not in page] == []


def test_the_table_keeps_what_was_asked_of_it(promised: dict[table.Key, bool]) -> None:
    counts: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for (_, _, kind), passes in promised.items():
        counts[kind][passes] += 1
    share = {kind: c[True] / c.total() for kind, c in counts.items()}
    assert share["forward"] >= 0.99 and share["backward"] >= 0.98
    assert min(share[k] for k in ("in-place", "out", "view")) >= 0.99 and share["errors"] >= 0.95


@pytest.mark.timeout(1200)
def test_a_part_of_the_database_is_as_the_table_says(promised: dict[table.Key, bool]) -> None:
    ops = list(inputs.operators().values())[::STEP]
    cases = [vars(case) for case in checks.jobs(ops) if case.dtype in DTYPES]
    worse = []
    for verdict in run.run(cases, 2, [sys.executable, str(run.HERE / "worker.py")]):
        dtype = "" if verdict["kind"] in table.ONCE else verdict["dtype"]
        if verdict["verdict"] not in ("pass", "n/a") and promised.get((verdict["op"], dtype, verdict["kind"]), True):
            worse.append("{op} {dtype} {kind}: {verdict}: {message}".format(**verdict))
    assert not worse, "\n".join(worse)


def test_a_worker_that_dies_costs_its_case_only(tmp_path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    case = json.loads(line)\n"
        "    if case['kind'] == 'out':\n"
        "        os.abort()\n"
        "    print(json.dumps({**case, 'verdict': 'pass', 'message': '', 'megabytes': 0}), flush=True)\n"
    )
    cases = [{"op": "add", "dtype": "float32", "kind": kind} for kind in ("forward", "out", "view")]
    verdicts = [v["verdict"] for v in run.run(cases, 1, [sys.executable, str(program)])]
    assert verdicts == ["pass", "crash", "pass"]


def test_wrong_results_are_told() -> None:
    op = inputs.operators()["add"]
    wrong = {"values": lambda s: s.input + 1, "shape": lambda s: s.input[None], "dtype": lambda s: s.input.double()}
    sample = inputs.samples(op, inputs.DTYPES[0], 1)[0]
    for on_device in wrong.values():
        run_it = lambda s, f=on_device: f(s) if s.input.device.type == "tpu" else s.input  # noqa: E731
        with pytest.raises(checks.Wrong):
            checks._same(op, run_it, sample)
