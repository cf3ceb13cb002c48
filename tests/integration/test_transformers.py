"""Hugging Face architectures train and generate on "tpu" as on the CPU, without falling back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from architectures import ARCHITECTURES, QUICK, Architecture, Inputs

STEPS = 3
TOKENS = 8


def train(model: torch.nn.Module, inputs: Inputs, call: dict[str, Any]) -> dict[str, Any]:
    """Logits before, losses and gradient norms of the steps, and weights after."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    result: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(STEPS):
        output = model(**inputs, **call)
        if step == 0:
            result["outputs"] = [x.detach().cpu() for x in output.to_tuple() if isinstance(x, torch.Tensor)]
        output.loss.backward()
        result["norms"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        result["losses"].append(output.loss.item())
    result["weights"] = {name: p.detach().cpu() for name, p in model.named_parameters()}
    return result


def generate(model: torch.nn.Module, architecture: Architecture, inputs: Inputs) -> torch.Tensor:
    """Greedy continuations."""
    prompt = {name: inputs[name] for name in architecture.prompt}
    return model.eval().generate(**prompt, max_new_tokens=TOKENS, do_sample=False, use_cache=True).cpu()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ARCHITECTURES]
)
def test_trains_and_generates_as_on_the_cpu(name: str) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    host, inputs = architecture.build(), architecture.inputs()
    model = copy.deepcopy(host).to("tpu")
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in host.named_parameters()]  # ties are kept
    there = {key: value.to("tpu") for key, value in inputs.items()}
    before = torch.tpu.cpu_fallbacks()
    if architecture.prompt:
        assert torch.equal(generate(model, architecture, there), generate(host, architecture, inputs))
    got, expected = (train(m.train(), i, architecture.call) for m, i in ((model, there), (host, inputs)))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    assert expected["losses"][-1] < expected["losses"][0]
    assert torch.tpu.cpu_fallbacks() == before
