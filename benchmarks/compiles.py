"""Programs are compiled for shapes, not for values: `python benchmarks/compiles.py`.

Counts compilations after the second iteration of loops in which only values change (there must be none), and those of
ops whose results have as many rows as a mask has true values (at most one per op and power of two).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable

import torch
from bars import ROOT, Bars, table

sys.path.insert(0, str(ROOT / "examples"))
from generate import answer
from train_gpt import Config, train
from transformers import LlamaConfig, LlamaForCausalLM


def compiles() -> int:
    """How often this process has compiled. The disk cache is off: every program it needs is one."""
    return torch.tpu.cache_stats()["compiles"]


class Marks:
    """Notes the number of compilations at each iteration."""

    def __init__(self) -> None:
        self.marks: list[int] = []

    def __call__(self, *_: object) -> None:
        self.marks.append(compiles())

    def after_second(self) -> int:
        """Compilations in the third iteration and later."""
        return self.marks[-1] - self.marks[1]


def loop(body: Callable[[object], object], values: Iterable[object]) -> Marks:
    """Run `body` for each value."""
    marks = Marks()
    for value in values:
        body(value)
        marks()
    return marks


def training() -> Marks:
    """Warm-up, a cosine schedule, clipping, AdamW."""
    marks = Marks()
    train(Config(steps=30, warmup=5, layers=2, width=32, batch=4), "tpu", marks)
    return marks


def decoding() -> Marks:
    """Greedy decoding with a static cache."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_hidden_layers=2, eos_token_id=-1, **sizes)).eval()
    marks = Marks()
    answer(model, torch.arange(7)[None], "tpu", 30, marks)
    return marks


def columns() -> Marks:
    """`y[:, t] = f(x[:, t])`."""
    x, y = torch.rand(16, 64).to("tpu"), torch.zeros(16, 64, device="tpu")

    def body(t: int) -> None:
        y[:, t] = torch.tanh(x[:, t]) * 2 + 1

    marks = loop(body, range(x.shape[1]))
    torch.testing.assert_close(y.cpu(), torch.tanh(x.cpu()) * 2 + 1)
    return marks


def scales() -> Marks:
    """`x * s` for 100 values of s."""
    x = torch.rand(64, 64).to("tpu")
    return loop(lambda s: x * s, [random.uniform(-2, 2) for _ in range(100)])


def assign(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x with its places under the mask set to as many new values."""
    x = x.clone()
    x[mask] = torch.arange(int(mask.sum()), dtype=x.dtype).to(x.device)
    return x


DYNAMIC: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "nonzero": lambda x, mask: mask.nonzero(),
    "y = x[mask]; (y * 2).sum()": lambda x, mask: (x[mask] * 2).sum(),
    "x[mask] = scalar": lambda x, mask: x.clone().masked_fill_(mask, 0.0).index_put_((mask,), torch.tensor(3.0)),
    "x[mask] = y": assign,
}


def by_count(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> tuple[int, int]:
    """(compilations, how many there may be) over 100 different counts of true values up to 512."""
    chance = random.Random(0)
    counts = sorted(chance.sample(range(1, 513), 100))
    before, ops = compiles(), 0
    for count in counts:
        mask = torch.zeros(1024, dtype=torch.bool)
        mask[torch.randperm(1024)[:count]] = True
        x = torch.rand(1024)
        x_tpu, mask_tpu = x.to("tpu"), mask.to("tpu")
        launches = torch.tpu.cache_stats()["launches"]
        result = function(x_tpu, mask_tpu)
        ops = max(ops, torch.tpu.cache_stats()["launches"] - launches)
        torch.testing.assert_close(result.cpu(), function(x, mask))
    powers = len({(count - 1).bit_length() for count in counts})
    return compiles() - before, ops * powers


def main() -> None:
    """Count, print, compare with the bars."""
    os.environ["TORCH_TPU_CACHE_DIR"] = ""
    bars, rows = Bars(), []
    cases = {
        "training with a learning-rate schedule": training,
        "greedy decoding with a static cache": decoding,
        "y[:, t] = f(x[:, t])": columns,
        "x * s": scales,
    }
    for name, case in cases.items():
        marks = case()
        rows.append((name, len(marks.marks), marks.marks[1], marks.after_second()))
        bars.at_most(f"{name}: compiles after the second iteration", marks.after_second(), 0)
    for name, function in DYNAMIC.items():
        count, limit = by_count(function)
        bars.at_most(f"{name}: compiles for 100 counts", count, limit)
    table(["loop", "iterations", "compiles until the 2nd", "after"], rows)
    bars.finish()


if __name__ == "__main__":
    main()
