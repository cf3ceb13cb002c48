"""The small language models that benchmarks of transformers share."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 8192
LAYERS, WIDTH, HEADS = 4, 256, 8


def qwen3() -> PreTrainedModel:
    """A Qwen3 of 4 layers, 256 wide, on the CPU, with random weights."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            head_dim=WIDTH // HEADS,
            max_position_embeddings=512,
            eos_token_id=None,
        )
    )


def gpt2() -> PreTrainedModel:
    """A GPT-2 of 4 layers, 256 wide, on the CPU, with random weights."""
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 512}
    # One random stream a device: without dropout both compute the same.
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes, **dropouts)
    )


MODELS = {"Qwen3": qwen3, "GPT-2": gpt2}


def tokens(batch: int = 2, length: int = 64) -> torch.Tensor:
    """Random token numbers."""
    return torch.randint(1, VOCABULARY, (batch, length))
