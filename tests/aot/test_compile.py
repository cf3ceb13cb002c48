"""Programs compiled ahead of time: what goes in, and what the reports say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install libtpu")
from torch_tpu import aot
from torch_tpu.aot.instructions import read
from torch_tpu.aot.program import lower


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(256, 512), nn.BatchNorm1d(512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        return self.last(torch.relu(self.norm(self.first(x + positions))))


STATE = ["first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias"]
X = (64, 256)


def test_a_module() -> None:
    report = aot.compile(Net().eval(), (torch.randn(X),), target="v5e:2x2")
    assert report.arguments == [*STATE, "norm.running_mean", "norm.running_var", "inputs[0]"]
    assert report.results == 1 and not report.updated
    assert report.target == "v5e:2x2" and report.fits
    products = 2 * 64 * (256 * 512 + 512 * 128)
    assert products < report.flops < 1.1 * products
    weights = 4 * (256 * 512 + 512 * 128)
    assert weights < report.memory.arguments < 2 * weights
    assert report.memory.total <= report.memory.available < report.chip.hbm
    assert 0 < report.roofline_seconds <= report.seconds < 1e-3 and 0 < report.mfu < 1
    assert report.bound_by == "memory" and report.intensity == pytest.approx(report.flops / report.bytes_accessed)


def test_the_ops_that_dominate_and_their_lines() -> None:
    report = aot.compile(Net().eval(), (torch.randn(X),), target="v5e")
    top = report.shares[0]
    line = Net.forward.__code__.co_firstlineno + 2
    assert (top.op, top.line) == ("aten::addmm", f"{Path(__file__).relative_to(Path.cwd())}:{line}")
    assert 2 * 64 * (256 * 512 + 512 * 128) <= top.flops <= sum(s.flops for s in report.shares)


def test_devices_make_no_difference() -> None:
    model, x = Net().eval(), torch.randn(X)
    here, there, nowhere = (lower(model.to(d), (x.to(d),)) for d in ("cpu", "tpu", "meta"))
    assert here.arguments == there.arguments == nowhere.arguments
    assert read(here.artifact) == read(there.artifact) == read(nowhere.artifact)


def test_an_exported_program() -> None:
    exported = torch.export.export(Net().eval(), (torch.randn(X),))
    report = aot.compile(exported, target="v6e:2x2")
    assert report.arguments[0] == "first.weight" and report.fits
    assert report.shares[0].op == "aten::addmm" and "test_compile.py" in report.shares[0].line


def test_an_exported_program_with_keywords_and_containers() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, more: dict[str, Tensor], *, last: Tensor) -> Tensor:
            return x * more["a"] - last

    inputs = torch.ones(8), {"a": torch.ones(8)}
    exported = torch.export.export(Sum(), inputs, {"last": torch.ones(8)})
    assert lower(exported, None).arguments == ["inputs[0]", "inputs[1]", "inputs[2]"]


def test_buffers_that_are_updated_are_results_in_place() -> None:
    report = aot.compile(Net().train(), (torch.randn(X),), target="v5e")
    assert report.updated == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert report.results == 1 and report.memory.aliased > 0


def test_a_training_step() -> None:
    model = Net()

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        loss = nn.functional.mse_loss(model(x), y)
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    report = aot.compile(step, (torch.randn(X), torch.randn(64, 128)), target="v5e")
    assert report.results == 1 + len(STATE)
    assert report.arguments[0] == "model.first.weight" and report.arguments[-2:] == ["inputs[0]", "inputs[1]"]
    loss = next(s for s in report.shares if s.op == "aten::mse_loss")
    assert loss.line.endswith(f"test_compile.py:{step.__code__.co_firstlineno + 1}")
    backward = next(s for s in report.shares if s.op == "aten::mm")
    assert backward.line.endswith(f"test_compile.py:{step.__code__.co_firstlineno + 2}")


def test_tensors_of_numbers_are_constants() -> None:
    lowered = lower(lambda x: torch.cat([torch.tensor([1.5], device=x.device), x]), (torch.ones(3),))
    assert lowered.arguments == ["inputs[0]"]


def test_random_numbers_are_an_argument() -> None:
    report = aot.compile(lambda x: nn.functional.dropout(x, 0.5), (torch.ones(8, 128),), target="v5e")
    assert report.arguments == ["inputs[0]", "random"]


def test_a_model_that_does_not_fit() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(32768, 32768, bias=False) for _ in range(5)))
    report = aot.compile(model, (torch.empty(8, 32768, device="meta"),), target="v5e")
    assert not report.fits and report.executable is None
    assert (
        19 << 30 < report.memory.total < 22 << 30
        and report.memory.over == report.memory.total - report.memory.available
    )
    assert "does NOT fit" in str(report) and report.to_dict()["fits"] is False
    with pytest.raises(RuntimeError, match="does not fit"):
        report.save("nowhere")
    assert aot.compile(model, (torch.empty(8, 32768, device="meta"),), target="v6e").fits


def test_saving(tmp_path: Path) -> None:
    report = aot.compile(torch.sin, (torch.ones(8, 128),), target="v5e")
    report.save(tmp_path / "sin.tpu")
    assert (tmp_path / "sin.tpu").read_bytes() == report.executable != b""
    assert json.loads(report.to_json())["executable_bytes"] == len(report.executable)


@pytest.mark.parametrize("target", ["v4", "v5p", "v6e:2x2", pytest.param("tpu7x", marks=pytest.mark.slow)])
def test_targets(target: str) -> None:
    report = aot.compile(torch.matmul, (torch.ones(256, 256), torch.ones(256, 256)), target=target)
    assert report.fits and report.estimated_seconds and report.estimated_seconds < 1e-3


@pytest.mark.parametrize("target", ["v9", "v7x:2x2x1", "v5e:", "v5e:2by2", ""])
def test_unknown_targets(target: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"unknown target|topology"):
        aot.compile(torch.sin, (torch.ones(2),), target=target)


def test_what_has_no_lowering_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"aten::_linalg_eigvals|aten::linalg_eig"):
        aot.compile(torch.linalg.eigvals, (torch.ones(4, 4),), target="v5e")


@pytest.mark.parametrize(
    ("program", "op"), [(lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"), (lambda x: x.nonzero(), "nonzero")]
)
def test_what_depends_on_values_is_refused_with_its_line(program, op: str) -> None:
    line = program.__code__.co_firstlineno
    with pytest.raises(NotImplementedError, match=rf"{op} at .*test_compile\.py:{line}: .*depends on values"):
        aot.compile(program, (torch.ones(4),), target="v5e")


def test_programs_know_that_they_are_compiled() -> None:
    asked: list[bool] = []
    aot.stablehlo(lambda x: asked.append(torch.compiler.is_compiling()) or -x, (torch.ones(4),))
    assert asked == [True] and not torch.compiler.is_compiling()


def test_inputs_that_are_no_tuple() -> None:
    with pytest.raises(TypeError, match="tuple"):
        aot.compile(torch.sin, torch.ones(2), target="v5e")
    with pytest.raises(TypeError, match="function"):
        aot.compile("model.pt", (torch.ones(2),), target="v5e")


def test_stablehlo(tmp_path: Path) -> None:
    text = aot.stablehlo(Net().eval(), (torch.randn(X),), tmp_path / "net.mlir")
    assert "stablehlo.dot_general" in text and "test_compile.py" in text
    assert (tmp_path / "net.mlir").read_text() == text
    code = aot.stablehlo(Net().eval(), (torch.randn(X),), tmp_path / "net.mlirbc")
    assert code.startswith(b"ML\xefR") and b"StableHLO" in code
    assert (tmp_path / "net.mlirbc").read_bytes() == code
