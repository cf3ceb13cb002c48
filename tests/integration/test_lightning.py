"""Lightning trains on the device through its SingleDeviceStrategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("lightning")

import lightning
from lightning.pytorch.accelerators import Accelerator, CPUAccelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn


class TpuAccelerator(Accelerator):
    """What Lightning asks to be told of a device that it doesn't know (its own "tpu" is another package's)."""

    def setup_device(self, device: torch.device) -> None:
        torch.tpu.set_device(device)

    def teardown(self) -> None:
        torch.tpu.empty_cache()

    @staticmethod
    def parse_devices(devices: int) -> int:
        return devices

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("tpu", i) for i in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        return torch.tpu.device_count()

    @staticmethod
    def is_available() -> bool:
        return torch.tpu.is_available()

    @staticmethod
    def name() -> str:
        return "torch_tpu"


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        assert x.device.type == self.device.type
        loss = F.mse_loss(self.layers(x), y)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(device: str, folder: Path, precision: str = "32", checkpoint: str | None = None) -> Regression:
    lightning.seed_everything(1, verbose=False)
    x = torch.randn(32, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    accelerator = TpuAccelerator if device == "tpu" else CPUAccelerator
    plugins = [] if precision == "32" else [MixedPrecision("bf16-mixed", device)]
    model = Regression()
    trainer = lightning.Trainer(
        strategy=SingleDeviceStrategy(torch.device(device), accelerator=accelerator()),
        max_epochs=2 if checkpoint is None else 3,
        default_root_dir=folder,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=plugins,
    )
    trainer.fit(model, loader, ckpt_path=checkpoint)
    assert trainer.strategy.root_device.type == device
    trainer.save_checkpoint(folder / f"{device}.ckpt")
    return model


@pytest.mark.parametrize("precision", ["32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_losses_are_those_of_the_cpu(precision: str, tmp_path: Path) -> None:
    got, expected = (torch.tensor(fit(d, tmp_path, precision).losses) for d in ("tpu", "cpu"))
    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "32" else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(got, expected, **close)
    assert len(got) == 8 and got[-1] < got[0]


@pytest.mark.slow
def test_a_checkpoint_of_the_device_continues(tmp_path: Path) -> None:
    first = fit("tpu", tmp_path)
    resumed = fit("tpu", tmp_path, checkpoint=str(tmp_path / "tpu.ckpt"))
    assert len(resumed.losses) == 4 and resumed.losses[0] < first.losses[0]
