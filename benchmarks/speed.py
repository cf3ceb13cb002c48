"""Warm eager speed against torch on the CPU: `python benchmarks/speed.py`.

A Qwen3 and a GPT-2 of 4 layers, 256 wide, batch 2x64: forward, training step (AdamW), greedy generation of 32 tokens
after 32. Both devices take turns in one process, torch on the CPU with two threads.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from bars import Bars, table
from models import MODELS, tokens
from transformers import PreTrainedModel

LIMIT = 1.5
DEVICES = ("tpu", "cpu")


def forward(model: PreTrainedModel, inputs: torch.Tensor) -> Callable[[], object]:
    """Logits, without gradients."""

    @torch.no_grad()
    def run() -> object:
        return model(input_ids=inputs)

    return run


def step(model: PreTrainedModel, inputs: torch.Tensor) -> Callable[[], object]:
    """Loss, gradients and an update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        model(input_ids=inputs, labels=inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def generation(model: PreTrainedModel, inputs: torch.Tensor) -> Callable[[], object]:
    """32 tokens after 32, one sequence, with the default cache."""
    return lambda: model.generate(inputs[:1, :32], max_new_tokens=32, do_sample=False)


CASES = {"forward": (forward, 10), "step": (step, 5), "generate 32": (generation, 2)}


def seconds(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median time of each, in three turns of `repeats`.

    A turn begins with two runs that don't count: the idle threads of the one before it still spin on the cores.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            for i in range(repeats + 2):
                began = time.perf_counter()
                run()
                torch.tpu.synchronize()
                if i >= 2:
                    times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print, compare with the bars."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    bars, rows = Bars(), []
    for name, build in MODELS.items():
        host, inputs = build().eval(), tokens()
        models = {"tpu": copy.deepcopy(host).to("tpu"), "cpu": host}
        for case, (make, repeats) in CASES.items():
            time_of = seconds({d: make(models[d], inputs.to(d)) for d in DEVICES}, repeats)
            ratio = time_of["tpu"] / time_of["cpu"]
            rows.append((f"{name} {case}", *(1000 * time_of[d] for d in DEVICES), ratio))
            if case != "generate 32":
                bars.at_most(f"{name} {case}, tpu / cpu", ratio, LIMIT)
    table(["", "tpu, ms", "cpu, ms", "ratio"], rows)
    bars.finish()


if __name__ == "__main__":
    main()
