"""Other projects' models compile on "tpu" without a graph break, and train as they do eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from architectures import ARCHITECTURES, QUICK
from test_transformers import train


def losses_and_weights(model: torch.nn.Module, step: Callable[[torch.nn.Module], torch.Tensor]) -> dict[str, Any]:
    """Losses of three steps, and weights and buffers after."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    losses = []
    for _ in range(3):
        loss = step(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "state": {n: x.cpu() for n, x in model.state_dict().items()}}


def assert_alike(model: torch.nn.Module, step: Callable[[torch.nn.Module], torch.Tensor]) -> None:
    """The compiled model trains as the model does."""
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True)
    got, expected = losses_and_weights(model, step), losses_and_weights(eager, step)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    assert expected["losses"][-1] < expected["losses"][0]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ARCHITECTURES]
)
def test_transformers_train_as_eagerly(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build().to("tpu")
    inputs = {key: value.to("tpu") for key, value in architecture.inputs().items()}
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True)
    got, expected = train(model, inputs, architecture.call), train(eager, inputs, architecture.call)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    assert expected["losses"][-1] < expected["losses"][0]
