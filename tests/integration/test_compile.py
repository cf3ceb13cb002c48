"""Other projects' models compile on "tpu" without a graph break, and train as they do eagerly."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from architectures import ARCHITECTURES, QUICK
from test_transformers import train
from torch import Tensor, nn

# What neither traces on the CPU: a lock that transformers takes, and a branch on the largest label.
NOT_TRACEABLE = {"segformer", "wav2vec2"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test compiles anew, from the same seed, without what transformers logs once."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(ignore_logging_functions={logging.Logger.warning_once}):
        yield


def _cases(names: Any) -> list[Any]:
    return [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in names]


@pytest.mark.parametrize("name", _cases(n for n in ARCHITECTURES if n not in NOT_TRACEABLE))
def test_transformers_train_as_eagerly(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.build().to("tpu")
    inputs = {key: value.to("tpu") for key, value in architecture.inputs().items()}
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True)
    got, expected = train(model, inputs, architecture.call), train(eager, inputs, architecture.call)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    assert expected["losses"][-1] < expected["losses"][0]


def trained(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Any]:
    """Losses of three steps, and the state after. AdamW would make much of the rounding of the smallest gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for _ in range(3):
        value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return {"losses": losses, "state": {n: x.cpu() for n, x in model.state_dict().items()}}


def assert_trains_as_eagerly(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
    """The compiled model and the model itself, on the device."""
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True)
    got, expected = trained(model, loss), trained(eager, loss)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert expected["losses"][-1] < expected["losses"][0]


def _timm(name: str, **options: Any) -> nn.Module:
    return pytest.importorskip("timm").create_model(name, pretrained=False, num_classes=5, **options)


def _torchvision(name: str, **options: Any) -> nn.Module:
    pytest.importorskip("torchvision")
    from torchvision import models

    return getattr(models, name)(num_classes=5, **options)


VISION: dict[str, Callable[[], nn.Module]] = {
    "timm vit": lambda: _timm("vit_tiny_patch16_224", img_size=64, patch_size=16, depth=2, embed_dim=48),
    "timm resnet": lambda: _timm("resnet10t"),
    "timm convnext": lambda: _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "torchvision resnet": lambda: _torchvision("resnet18"),
    "torchvision mobilenet": lambda: _torchvision("mobilenet_v3_small", dropout=0.0),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "timm vit" else [pytest.mark.slow]) for n in VISION])
def test_vision_models_train_as_eagerly(name: str) -> None:
    model = VISION[name]().to("tpu").train()
    images, labels = torch.randn(4, 3, 64, 64, device="tpu"), torch.tensor([0, 3, 1, 4], device="tpu")
    assert_trains_as_eagerly(model, lambda m: nn.functional.cross_entropy(m(images), labels))


def _unet() -> tuple[nn.Module, dict[str, Tensor]]:
    from test_diffusers import unet, unet_inputs

    return unet(), unet_inputs()


def _sd3() -> tuple[nn.Module, dict[str, Tensor]]:
    from test_diffusers import sd3, sd3_inputs

    return sd3(), sd3_inputs()


def _dit() -> tuple[nn.Module, dict[str, Tensor]]:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10, dropout=0.0,
    )  # fmt: skip
    inputs = {"hidden_states": torch.randn(2, 4, 8, 8), "timestep": torch.tensor([3, 7])}
    return model.eval(), {**inputs, "class_labels": torch.tensor([1, 4])}


DIFFUSION = {"unet": _unet, "sd3": _sd3, "dit": _dit}


@pytest.mark.parametrize("name", ["dit", *(pytest.param(n, marks=pytest.mark.slow) for n in ("unet", "sd3"))])
def test_diffusion_models_train_as_eagerly(name: str) -> None:
    pytest.importorskip("diffusers")
    model, inputs = DIFFUSION[name]()
    there = {key: value.to("tpu") for key, value in inputs.items()}
    assert_trains_as_eagerly(model.to("tpu"), lambda m: m(**there).sample.square().mean())
