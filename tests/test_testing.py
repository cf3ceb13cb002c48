"""torch_tpu.testing.compare finds the layer that differs, and only that."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from parity import expect
from torch import Tensor, nn

from torch_tpu.testing import compare


class Off(nn.Module):
    """Wrong on the device by a constant."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by if x.device.type == "tpu" else x


def model(by: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.GELU(), Off(by)), nn.LayerNorm(8), nn.Linear(8, 2))


def test_equal_models(capsys: pytest.CaptureFixture[str]) -> None:
    result = compare(model(), torch.randn(3, 4))
    assert result.first is None and result.fallbacks == {}
    assert [layer.name for layer in result.layers] == ["0", "1.0", "1.1", "1", "2", "3", ""]
    assert capsys.readouterr().out.startswith("all 7 layers agree")


def test_the_first_layer_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    mine = model(by=0.25)
    weights = [p.clone() for p in mine.parameters()]
    result = compare(mine, torch.randn(3, 4, device="tpu"))
    assert result.first is not None and (result.first.name, result.first.kind) == ("1.1", "Off")
    assert result.first.difference == pytest.approx(0.25, rel=1e-5)
    # The layers after it go on with what the CPU has, and agree.
    assert [layer.name for layer in result.layers if layer.error] == ["1.1"]
    out = capsys.readouterr().out
    assert "first layer that differs: 1.1 (Off), call 0; 0 more of 7 do" in out and "by 0.25" in out
    assert all(p.device.type == "cpu" and torch.equal(p, w) for p, w in zip(mine.parameters(), weights, strict=True))
    assert compare(mine, torch.randn(3, 4), atol=0.3, rtol=0).first is None


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    compare(model(by=1.0), [torch.randn(3, 4)], json=True)
    read = json.loads(capsys.readouterr().out)
    assert read["first"]["name"] == "1.1" and len(read["layers"]) == 7 and read["fallbacks"] == {}


class Twice(nn.Module):
    """Calls a layer twice, with keyword arguments, and gives a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.relu = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y = self.relu(self.layer(self.layer(x)))
        return {"y": y * scale, "largest": y.argmax(-1), "note": "kept"}


def test_inputs_by_name_and_results_of_any_kind() -> None:
    result = compare(Twice(), {"x": torch.randn(3, 4), "scale": 2.0})
    assert result.first is None
    assert [(layer.name, layer.call) for layer in result.layers] == [("layer", 0), ("layer", 1), ("relu", 0), ("", 0)]


# An op that only the CPU has. In a process of its own: fallbacks are counted for the whole of it.
FALLING_BACK = """
import torch
from torch_tpu.testing import compare
library = torch.library.Library("compare_test", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")

class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.ops.compare_test.twice(x)

x = torch.randn(4, 4)
result = compare(torch.nn.Sequential(torch.nn.Linear(4, 4), Twice()), x)
assert result.first is None and result.fallbacks == {"compare_test::twice": 1}
assert result.layers[1].fallbacks == result.fallbacks and result.layers[0].fallbacks == {}
try:
    torch.ops.compare_test.twice(x.to("tpu"))
except NotImplementedError:
    print("raises again")
"""


def test_ops_that_fell_back() -> None:
    out = expect(FALLING_BACK)
    assert "fell back to the CPU: compare_test::twice (1)" in out and out.endswith("raises again")


class Shapes(nn.Module):
    """Other shapes on the device."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:1] if x.device.type == "tpu" else x


def test_shapes_that_differ() -> None:
    result = compare(nn.Sequential(Shapes(), nn.Identity()), torch.randn(3, 4))
    assert result.first is not None and result.first.name == "0" and "shape" in str(result.first.error)


def test_infinity_and_nan() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    assert compare(Log(), torch.tensor([-1.0, 0.0, 1.0])).first is None


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    compare(model(), torch.randn(3, 4), progress=True)
    assert "/7" in capsys.readouterr().err
