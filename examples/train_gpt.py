"""Train a small GPT on real text, byte by byte: `python examples/train_gpt.py --device tpu`.

Plain PyTorch: nothing here knows of a device but the string it is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model, of a batch, and of the training run."""

    vocabulary: int = 256
    context: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 3
    batch: int = 16
    steps: int = 100
    warmup: int = 10
    learning_rate: float = 2e-3
    clip: float = 1.0
    seed: int = 1


class Block(nn.Module):
    """Attention over the past, then two linear layers, each around a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer; input embedding and output layer share their weights."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(self._init)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) token numbers to (batch, time, vocabulary) logits."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def text() -> Tensor:
    """Real text that every Python has: the help topics of the language, as bytes."""
    source = importlib.util.find_spec("pydoc_data.topics").origin
    return torch.frombuffer(bytearray(Path(source).read_bytes()), dtype=torch.uint8).long()


def batches(config: Config, data: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """Draws (input, target) on the CPU, so that every device sees the same."""
    generator = torch.Generator().manual_seed(config.seed)

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - config.context, (config.batch, 1), generator=generator)
        window = data[starts + torch.arange(config.context + 1)]
        return window[:, :-1], window[:, 1:]

    return draw


def schedule(config: Config) -> Callable[[int], float]:
    """Linear warm-up, then a cosine down to a tenth."""

    def factor(step: int) -> float:
        if step < config.warmup:
            return (step + 1) / config.warmup
        progress = (step - config.warmup) / max(1, config.steps - config.warmup)
        return 0.55 + 0.45 * math.cos(math.pi * progress)

    return factor


def train(config: Config, device: str, on_step: Callable[[int, float], None] = lambda step, loss: None) -> list[float]:
    """The losses of a training run on `device`."""
    torch.manual_seed(config.seed)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(config))
    draw = batches(config, text())
    losses = []
    for step in range(config.steps):
        tokens, targets = (t.to(device) for t in draw())
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        on_step(step, losses[-1])
    return losses


def main() -> None:
    """Train and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=Config.steps)
    arguments = parser.parse_args()
    began = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if step % 10 == 0 or step == arguments.steps - 1:
            print(f"step {step:4}  loss {loss:.4f}  {time.perf_counter() - began:6.1f} s")

    train(Config(steps=arguments.steps), arguments.device, report)


if __name__ == "__main__":
    main()
