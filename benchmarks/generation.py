"""What `generate` compiles: `python benchmarks/generation.py`.

Greedy generation with Qwen3 and GPT-2, in an empty cache of programs. With the default cache of keys and values, which
grows by a token each time, at most 12 programs a new token, and none in a second run of the same lengths; with a static
cache none after the second token.
"""

from __future__ import annotations

import os

import torch
from bars import Bars, table
from models import MODELS, tokens
from transformers import PreTrainedModel, StoppingCriteria

TOKENS = 24
LIMIT = 12


class Marks(StoppingCriteria):
    """Notes the number of compilations after each token."""

    def __init__(self) -> None:
        self.marks = [compiles()]

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.marks.append(compiles())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def by_token(self) -> list[int]:
        """Compilations for each token."""
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]


def compiles() -> int:
    """How often this process has compiled. The disk cache is off: every program it needs is one."""
    return torch.tpu.cache_stats()["compiles"]


def by_token(model: PreTrainedModel, inputs: torch.Tensor, cache: str) -> list[int]:
    """Compilations for each token of a run."""
    marks = Marks()
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    model.generate(inputs, cache_implementation=cache, stopping_criteria=[marks], **options)
    return marks.by_token()


def main() -> None:
    """Count, print, compare with the bars."""
    os.environ["TORCH_TPU_CACHE_DIR"] = ""
    bars, rows = Bars(), []
    for name, build in MODELS.items():
        torch.tpu.clear_cache()
        torch.manual_seed(0)
        model, inputs = build().eval().to("tpu"), tokens(1, 16).to("tpu")
        first, second = (by_token(model, inputs, "dynamic") for _ in range(2))
        static = by_token(model, inputs, "static")
        bars.at_most(f"{name}, dynamic cache: most compiles of a token after the second", max(first[2:]), LIMIT)
        bars.at_most(f"{name}, dynamic cache: compiles of a second run", sum(second), 0)
        bars.at_most(f"{name}, static cache: compiles after the second token", sum(static[2:]), 0)
        rows += [(f"{name} dynamic", " ".join(map(str, first))), (f"{name} static", " ".join(map(str, static)))]
    table(["compiles of each token", ""], rows)
    bars.finish()


if __name__ == "__main__":
    main()
