"""sentence-transformers encodes and trains on the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

pytest.importorskip("sentence_transformers")

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tiny import sentences, tokenizer
from transformers import BertConfig, BertModel

On = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT without dropout and its tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(vocab_size=len(tokenizer()), **sizes, **dropouts)).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def model(folder: Path, device: str | None) -> SentenceTransformer:
    transformer = Transformer(str(folder), max_seq_length=16)
    return SentenceTransformer(modules=[transformer, Pooling(32)], device=device)


def test_embeddings_are_those_of_the_cpu(folder: Path) -> None:
    texts = [*sentences(5), "cat", "the dog ran up a hill"]
    there = model(folder, "tpu")
    assert there.device.type == "tpu"
    got = there.encode(texts, batch_size=3, convert_to_tensor=True, normalize_embeddings=True)
    expected = model(folder, "cpu").encode(texts, batch_size=3, convert_to_tensor=True, normalize_embeddings=True)
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(there.similarity(got, got).cpu(), expected @ expected.T, rtol=1e-4, atol=1e-5)
    array = there.encode(texts[:2])
    assert array.shape == (2, 32)


@pytest.mark.slow
def test_training_losses_are_those_of_the_cpu(folder: Path, tmp_path: Path, accelerate_on: On) -> None:
    data = Dataset.from_dict({"anchor": sentences(8, seed=1), "positive": sentences(8, seed=2)})
    results = []
    for device in ("cpu", "tpu"):
        with accelerate_on(device):
            arguments = SentenceTransformerTrainingArguments(
                output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, logging_steps=1, report_to=[],
                save_strategy="no", disable_tqdm=True, use_cpu=device == "cpu", learning_rate=1e-3,
            )  # fmt: skip
            of = model(folder, device)
            loss = losses.MultipleNegativesRankingLoss(of)
            trainer = SentenceTransformerTrainer(model=of, args=arguments, train_dataset=data, loss=loss)
            trainer.train()
            results.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(results[1]) == 3
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
