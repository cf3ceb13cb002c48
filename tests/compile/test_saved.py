"""PyTorch's caches keep compiled graphs: a second process traces, lowers and compiles nothing, and gives the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import expect
from torch import nn
from torch._dynamo.utils import counters
from torch.fx._graph_pickler import GraphPickler

from torch_tpu.compile import saved
from torch_tpu.compile.plan import Output, Plan, ProgramCall

WORK = """
import json, sys
import torch
from torch import nn
from torch._dynamo.utils import counters

torch._dynamo.config.caching_precompile = PRECOMPILE
results = {}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).to("tpu")

def loss_of(x):
    return model(x).square().sum()

fast = torch.compile(loss_of, dynamic=False)
loss = fast(torch.ones(3, 4, device="tpu"))
loss.backward()
results["loss"] = loss.item()
results["gradients"] = [p.grad.sum().item() for p in model.parameters()]
results["buffers"] = [b.sum().item() for b in model.buffers()]
if not PRECOMPILE:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.compile(optimizer.step)()
    results["parameters"] = [p.sum().item() for p in model.parameters()]

    def rows_of(x):
        return torch.softmax(x, 1).sum(0)

    rows = torch.compile(rows_of, dynamic=True)
    results["dynamic"] = [rows(torch.ones(n, 3, device="tpu")).sum().item() for n in (5, 9)]

    def partly_on_the_cpu(x, y):
        return x + 1, y * 2, x.sum(0).expand(4, 3)

    made = torch.compile(partly_on_the_cpu)(torch.ones(2, 3, device="tpu"), torch.ones(2))
    results["mixed"] = [t.sum().item() for t in made]
stats = torch.tpu.cache_stats()
torch.compiler.save_cache_artifacts()
counted = {k: dict(counters[k]) for k in ("aot_autograd", "dynamo_cache", "stats")}
print(json.dumps([results, stats["compiles"], "jax" in sys.modules, counted]))
"""


def work(
    folder: Path, precompile: bool = False, programs: str = "tpu", **more: str
) -> tuple[Any, int, bool, dict[str, Any]]:
    """(results, compiles, whether JAX was imported, Dynamo's counters) of a process with caches in a folder."""
    code = WORK.replace("PRECOMPILE", str(precompile))
    variables = {"TORCH_TPU_CACHE_DIR": str(folder / programs), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
    return tuple(json.loads(expect(code, **variables, **more).splitlines()[-1]))


def test_a_second_process_traces_no_graph_and_compiles_nothing(tmp_path: Path) -> None:
    results, compiles, _, counted = work(tmp_path)
    assert compiles > 4 and counted["aot_autograd"]["autograd_cache_saved"] == counted["aot_autograd"]["total"]
    again, compiles, jax, counted = work(tmp_path)
    assert again == results and compiles == 0 and not jax
    assert counted["aot_autograd"]["autograd_cache_hit"] == counted["aot_autograd"]["total"] >= 4
    # Without the programs the kept graphs are lowered again.
    again, compiles, jax, counted = work(tmp_path, programs="others")
    assert again == results and compiles > 4 and jax
    assert counted["aot_autograd"]["autograd_cache_hit"] == counted["aot_autograd"]["total"]


def test_with_caching_precompile_a_second_process_traces_no_python(tmp_path: Path) -> None:
    results, compiles, _, counted = work(tmp_path, precompile=True)
    assert compiles > 1 and counted["stats"]["unique_graphs"] == 1
    again, compiles, jax, counted = work(tmp_path, precompile=True)
    assert again == results and compiles == 0 and not jax
    assert counted["dynamo_cache"] == {"dynamo_cache_hit": 1} and counted["stats"] == {}
    # What was kept for another environment is made anew.
    again, compiles, _, counted = work(tmp_path, precompile=True, LIBTPU_INIT_ARGS="--other")
    assert again == results and compiles > 1
    assert counted["dynamo_cache"] == {"dynamo_cache_error": 1} and counted["stats"]["unique_graphs"] == 1


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """PyTorch's caches are empty, its counters zero."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_a_graph_that_cant_be_pickled_is_not_kept_and_runs(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise TypeError("no")

    monkeypatch.setattr(GraphPickler, "dumps", refuse)
    assert torch.compile(lambda x: x.sinh())(torch.zeros(3, device="tpu")).tolist() == [0.0] * 3
    assert (
        counters["aot_autograd"]["autograd_cache_bypass"] == 1
        and "autograd_cache_saved" not in counters["aot_autograd"]
    )


def test_another_version_of_the_package_is_another_key(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cosh() - 1

    for version in ("one", "one", "two"):
        torch._dynamo.reset()
        monkeypatch.setattr(saved.cache, "version", lambda v=version: v)
        torch.compile(fn)(torch.zeros(3, device="tpu"))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["aot_autograd"]["autograd_cache_miss"] == 2


def test_pytorchs_switch_turns_it_off(own_cache: None) -> None:
    with torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(lambda x: x.tan())(torch.zeros(3, device="tpu", requires_grad=True)).sum().backward()
    assert not {k for k in counters["aot_autograd"] if k.startswith("autograd_cache")}


def test_only_graphs_of_programs_run_from_a_plan(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[saved.CompiledGraph] = []
    init = saved.CompiledGraph.__init__

    def noted(self: saved.CompiledGraph, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(saved.CompiledGraph, "__init__", noted)
    x = torch.ones(2, 3, device="tpu")
    torch.compile(nn.Linear(3, 4).to("tpu"), dynamic=False)(x).sum().backward()
    assert [g.plan is not None and len(g.plan.calls) for g in made] == [1, 1]
    made.clear()
    torch.compile(lambda x: x.sin().sum(0), dynamic=True)(x)
    torch.compile(lambda x, y: (x.sin(), y.sin()), dynamic=False)(x, torch.ones(2))
    assert [g.plan for g in made] == [None, None]


def test_a_kept_graph_that_lost_its_program_says_so() -> None:
    plan = Plan("kept", 2, [ProgramCall("graph_of_another_division", [], [0], [1])], [Output(1)])
    run = plan.function(lambda: None)
    with pytest.raises(RuntimeError, match="no longer gives its program graph_of_another_division"):
        run([torch.ones(3, device="tpu")])
