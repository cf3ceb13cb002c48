"""Compiles that changing sizes cost: `python benchmarks/dynamic_shapes.py`.

100 lengths from 1 to 512 through a compiled Llama's forward, in any order; and a training loop with batches of 2 to 16.
Results are compared with eager ones. Programs of the model and programs that only pad or cut are counted apart.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import compiled_models as models
import torch
import torch.nn.functional as F
from bars import Bars, table

from torch_tpu import eager

LENGTHS, LONGEST, BATCHES = 100, 512, (2, 16)
FORWARD_LIMIT, TRAINING_LIMIT = 10, 6


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Programs made meanwhile: "model" for graphs, "small" for ops."""
    made, build = Counter(), eager.build

    def counting(name: str, *args: object) -> object:
        made["model" if name.startswith("torch_tpu::") else "small"] += 1
        return build(name, *args)

    eager.build = counting
    try:
        yield made
    finally:
        eager.build = build


def forward() -> Counter[str]:
    """Programs of the forwards."""
    model = models.Llama().to("tpu").eval()
    fast = torch.compile(model)
    lengths = [*random.Random(0).sample(range(2, LONGEST), LENGTHS - 2), 1, LONGEST]
    total: Counter[str] = Counter()
    with torch.no_grad():
        for n in lengths:
            tokens = torch.randint(models.VOCABULARY, (1, n)).to("tpu")
            with counted() as made:
                got = fast(tokens)
            total += made
            torch.testing.assert_close(got, model(tokens), rtol=1e-4, atol=1e-4)
    return total


def training() -> Counter[str]:
    """Programs of the steps: forward, backward, optimizer."""
    model = models.GPT().to("tpu")
    eager_model = copy.deepcopy(model)

    def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    fast = torch.compile(loss_of)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager_model)]
    update = torch.compile(optimizers[0].step)
    total: Counter[str] = Counter()
    sizes = random.Random(0)
    for _ in range(20):
        tokens = torch.randint(models.VOCABULARY, (sizes.randint(*BATCHES), 64)).to("tpu")
        with counted() as made:
            got = fast(model, tokens)
            got.backward()
            update()
        total += made
        expected = loss_of(eager_model, tokens)
        expected.backward()
        optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    return total


def main() -> None:
    """Count, compare, print."""
    torch.manual_seed(0)
    bars = Bars()
    lengths, batches = forward(), training()
    bars.at_most(f"programs of the model for {LENGTHS} lengths", lengths["model"], FORWARD_LIMIT)
    bars.at_most("programs that only pad or cut, for as many", lengths["small"], LENGTHS)
    bars.at_most("programs of the model in training, varying batches", batches["model"], TRAINING_LIMIT)
    table(["", "model", "others"], [("100 lengths", *_pair(lengths)), ("20 batches of 2 to 16", *_pair(batches))])
    bars.finish()


def _pair(made: Counter[str]) -> tuple[int, int]:
    return made["model"], made["small"]


if __name__ == "__main__":
    main()
