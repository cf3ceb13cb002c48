"""TRL: supervised fine-tuning and group relative policy optimisation, unmodified."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")
pytest.importorskip("datasets")

from datasets import Dataset
from tiny import llama, sentences, tokenizer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

On = Callable[[str], AbstractContextManager[None]]
COMMON: dict[str, Any] = {
    "max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": [], "save_strategy": "no",
    "disable_tqdm": True, "learning_rate": 1e-2, "bf16": False, "activation_checkpointing": False,
}  # fmt: skip


def sft(folder: Path, device: str) -> list[float]:
    arguments = SFTConfig(output_dir=str(folder), max_length=16, use_cpu=device == "cpu", **COMMON)
    data = Dataset.from_dict({"text": sentences(8)})
    trainer = SFTTrainer(model=llama(), args=arguments, train_dataset=data, processing_class=tokenizer())
    trainer.train()
    assert trainer.model.device.type == device
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_sft_losses_are_those_of_the_cpu(tmp_path: Path, accelerate_on: On) -> None:
    losses = {}
    for device in ("cpu", "tpu"):
        with accelerate_on(device):
            losses[device] = sft(tmp_path, device)
    assert len(losses["tpu"]) == 2
    torch.testing.assert_close(losses["tpu"], losses["cpu"], rtol=1e-4, atol=1e-4)


def rewards(completions: list[str], **_: Any) -> list[float]:
    """More for more different words."""
    return [float(len(set(c.split()))) for c in completions]


def test_grpo_trains(tmp_path: Path, accelerate_on: On) -> None:
    with accelerate_on("tpu"):
        llama().save_pretrained(tmp_path / "model")
        options = {"num_generations": 4, "max_completion_length": 6, "beta": 0.1}
        options |= {"model_init_kwargs": {"dtype": "float32"}}
        arguments = GRPOConfig(output_dir=str(tmp_path), **options, **COMMON)
        data = Dataset.from_dict({"prompt": sentences(8, length=4)})
        torch.manual_seed(0)
        trainer = GRPOTrainer(
            model=str(tmp_path / "model"),
            args=arguments,
            reward_funcs=rewards,
            train_dataset=data,
            processing_class=tokenizer(),
        )
        before = [p.detach().clone() for p in trainer.model.parameters()]
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert trainer.model.device.type == "tpu" and len(logs) == 2
        assert all(1 <= entry["reward"] <= 6 for entry in logs)
        assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
        assert all(p.isfinite().all() for p in trainer.model.parameters())
