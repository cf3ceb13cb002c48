"""The Trainer of transformers, unmodified: it finds the device by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tiny import llama
from transformers import Trainer, TrainingArguments

On = Callable[[str], AbstractContextManager[None]]
DATA = [
    {"input_ids": row, "labels": row} for row in torch.randint(4, 20, (16, 10), generator=torch.Generator()).tolist()
]


def trainer(folder: Path, device: str = "tpu", **options: Any) -> Trainer:
    options = {"max_steps": 4, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, logging_steps=1, report_to=[], disable_tqdm=True,
        learning_rate=1e-2, use_cpu=device == "cpu", **options,
    )  # fmt: skip
    return Trainer(model=llama(), args=arguments, train_dataset=DATA)


def losses(of: Trainer) -> torch.Tensor:
    of.train()
    return torch.tensor([entry["loss"] for entry in of.state.log_history if "loss" in entry])


OPTIONS = {
    "float32": {},
    "fused": {"optim": "adamw_torch_fused"},
    "bf16": {"bf16": True},
    "checkpointing": {"activation_checkpointing": True, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in ("fused", "bf16") else []) for n in OPTIONS]
)
def test_losses_are_those_of_the_cpu(name: str, tmp_path: Path, accelerate_on: On) -> None:
    options = OPTIONS[name]
    with accelerate_on("cpu"):
        expected = losses(trainer(tmp_path, "cpu", **options))
    with accelerate_on("tpu"):
        mine = trainer(tmp_path, **options)
        assert mine.args.device.type == mine.accelerator.device.type == mine.model.device.type == "tpu"
        got = losses(mine)
    # The autocast of the CPU keeps other ops in float32 than that of accelerators.
    close = {"rtol": 1e-2, "atol": 1e-2} if name == "bf16" else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(got, expected, **close)
    assert len(got) == len(got.unique()) == 4


@pytest.mark.slow
def test_evaluation_and_prediction(tmp_path: Path, accelerate_on: On) -> None:
    with accelerate_on("cpu"):
        expected = trainer(tmp_path, "cpu").predict(DATA[:6])
    with accelerate_on("tpu"):
        got = trainer(tmp_path).predict(DATA[:6])
    torch.testing.assert_close(torch.tensor(got.predictions), torch.tensor(expected.predictions), rtol=1e-4, atol=1e-5)
    assert abs(got.metrics["test_loss"] - expected.metrics["test_loss"]) < 1e-4


def test_a_resumed_run_ends_where_a_whole_one_does(tmp_path: Path, accelerate_on: On) -> None:
    with accelerate_on("tpu"):
        whole = trainer(tmp_path, save_strategy="steps", save_steps=2)
        whole.train()
        resumed = trainer(tmp_path)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 4
    for (name, a), b in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
