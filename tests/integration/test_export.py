"""A model on the device is exported, moved to the CPU, and run by ExecuTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        mixed = self.embed(tokens) + torch.sin(positions)[:, None]
        return torch.softmax(self.layers(mixed) * self.scale, -1)


def exported() -> tuple[torch.export.ExportedProgram, Tensor, Tensor]:
    """The program, made on the device, an input, and what the CPU makes of it."""
    torch.manual_seed(0)
    model, tokens = Model().eval(), torch.randint(20, (2, 6))
    with torch.no_grad():
        expected = model(tokens)
    return torch.export.export(model.to("tpu"), (tokens.to("tpu"),)), tokens, expected


def test_the_program_runs_where_it_was_made_and_on_the_cpu(tmp_path: Path) -> None:
    program, tokens, expected = exported()
    assert {p.device.type for p in program.state_dict.values()} == {"tpu"}
    torch.testing.assert_close(program.module()(tokens.to("tpu")).detach().cpu(), expected)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    torch.testing.assert_close(loaded.module()(tokens.to("tpu")).detach().cpu(), expected)
    moved = move_to_device_pass(program, "cpu")
    torch.testing.assert_close(moved.module()(tokens), expected)


def test_executorch_runs_the_moved_program(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    from executorch.exir import to_edge
    from executorch.runtime import Runtime

    program, tokens, expected = exported()
    edge = to_edge(move_to_device_pass(program, "cpu"))
    path = tmp_path / "model.pte"
    path.write_bytes(edge.to_executorch().buffer)
    (got,) = Runtime.get().load_program(path).load_method("forward").execute([tokens])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
