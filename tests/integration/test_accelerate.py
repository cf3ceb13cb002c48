"""accelerate's own training loop: prepare, accumulate, clip, save and load state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

On = Callable[[str], AbstractContextManager[None]]


class Run:
    """A small model and all that trains it, prepared."""

    def __init__(self, **options: object) -> None:
        self.accelerator = Accelerator(gradient_accumulation_steps=2, **options)
        set_seed(3)
        x = torch.randn(24, 6)
        data = torch.utils.data.TensorDataset(x, x.pow(2).sum(1, keepdim=True))
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8)
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=False)
        self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            model, optimizer, loader, schedule
        )

    def epoch(self) -> list[float]:
        """The losses of an epoch."""
        losses = []
        for x, y in self.loader:
            with self.accelerator.accumulate(self.model):
                with self.accelerator.autocast():
                    loss = F.mse_loss(self.model(x).float(), y)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(self.accelerator.gather_for_metrics(loss).item())
        return losses

    def weights(self) -> list[Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_losses_are_those_of_the_cpu(precision: str, accelerate_on: On) -> None:
    with accelerate_on("cpu"):
        expected = Run(mixed_precision=precision, cpu=True).epoch()
    with accelerate_on("tpu"):
        run = Run(mixed_precision=precision)
        assert run.accelerator.device.type == "tpu"
        got = run.epoch()
    close = {"rtol": 1e-5, "atol": 1e-5} if precision == "no" else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), **close)


def test_saved_state_continues(tmp_path: Path, accelerate_on: On) -> None:
    with accelerate_on("tpu"):
        run = Run()
        run.epoch()
        run.accelerator.save_state(str(tmp_path))
        losses, weights = run.epoch(), run.weights()
    with accelerate_on("tpu"):
        again = Run()
        again.accelerator.load_state(str(tmp_path))
        assert again.epoch() == losses
        torch.testing.assert_close(again.weights(), weights, rtol=0, atol=0)


def test_unwrapped_models_are_saved_from_the_device(tmp_path: Path, accelerate_on: On) -> None:
    with accelerate_on("tpu"):
        run = Run()
        run.accelerator.save_model(run.model, str(tmp_path))
        from safetensors.torch import load_file

        loaded = load_file(tmp_path / "model.safetensors")
    state = run.accelerator.unwrap_model(run.model).state_dict()
    assert loaded.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(loaded[name], value.cpu()), name
