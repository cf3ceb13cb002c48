"""Small models, a tokenizer and data, made on the spot: nothing is fetched."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCE = "the cat sat on a mat and saw dog run up hill one two three four five six seven red green blue"
WORDS = SENTENCE.split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} </s>{% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """Of whole words."""
    words = {w: i for i, w in enumerate([*SPECIAL, "user", "assistant", *WORDS])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=CHAT, **names)


def llama(seed: int = 0) -> LlamaForCausalLM:
    """A Llama of 2 layers for `tokenizer()`, on the CPU; embeddings and head are tied."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True}
    # Weights of the usual size would make it repeat its last token for ever.
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer()), initializer_range=0.2, **sizes, **ids, **more))


def sentences(count: int = 8, length: int = 9, seed: int = 0) -> list[str]:
    """Random words."""
    choice = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(WORDS), (count, length), generator=choice).tolist()
    return [" ".join(WORDS[i] for i in row) for row in rows]
