"""diffusers: an SD3 transformer, a DDPM pipeline, and modules that move to the device when they are needed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("diffusers")

from diffusers import DDPMPipeline, DDPMScheduler, SD3Transformer2DModel, UNet2DModel
from diffusers.hooks import apply_group_offloading
from torch import Tensor, nn


def sd3() -> SD3Transformer2DModel:
    torch.manual_seed(0)
    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=8, qk_norm="rms_norm",
    )  # fmt: skip


def unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def sd3_inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(2, 4, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(2, 5, 16, generator=generator),
        "pooled_projections": torch.randn(2, 16, generator=generator),
        "timestep": torch.tensor([3, 700]),
    }


def step(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The sample and the gradients of its square."""
    sample = model(**inputs).sample
    sample.square().mean().backward()
    return sample.detach().cpu(), {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


def unet_inputs() -> dict[str, Tensor]:
    return {
        "sample": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
        "timestep": torch.tensor(7),
    }


@pytest.mark.parametrize(
    ("make", "inputs", "channels_last"),
    [
        (sd3, sd3_inputs, False),
        pytest.param(unet, unet_inputs, False, marks=pytest.mark.slow),
        pytest.param(unet, unet_inputs, True, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_the_cpu(
    make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Tensor]], channels_last: bool
) -> None:
    host = make()
    there = copy.deepcopy(host).to("tpu")
    if channels_last:
        host, there = (m.to(memory_format=torch.channels_last) for m in (host, there))
    got = step(there, {name: value.to("tpu") for name, value in inputs().items()})
    torch.testing.assert_close(got, step(host, inputs()), rtol=1e-3, atol=1e-4)


def test_ddpm_denoises_as_on_the_cpu() -> None:
    """The noise comes from a generator of the CPU, so both see the same."""
    images = []
    for device in ("tpu", "cpu"):
        pipe = DDPMPipeline(unet(), DDPMScheduler(num_train_timesteps=20)).to(device)
        pipe.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(4)
        images.append(pipe(batch_size=1, generator=generator, num_inference_steps=3, output_type="np").images)
    torch.testing.assert_close(*map(torch.from_numpy, images), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_ddpm_takes_a_generator_of_the_device() -> None:
    pipe = DDPMPipeline(unet(), DDPMScheduler(num_train_timesteps=20)).to("tpu")
    pipe.set_progress_bar_config(disable=True)
    images = [
        pipe(generator=torch.Generator("tpu").manual_seed(s), num_inference_steps=2, output_type="np").images
        for s in (1, 1, 2)
    ]
    assert (images[0] == images[1]).all() and (images[0] != images[2]).any()


@pytest.mark.parametrize("how", ["block_level", "leaf_level"])
@pytest.mark.parametrize("stream", [False, True])
def test_groups_of_modules_move_when_they_are_needed(how: str, stream: bool) -> None:
    host = sd3().eval()
    with torch.no_grad():
        expected = host(**sd3_inputs()).sample
    model = copy.deepcopy(host)
    options = {"num_blocks_per_group": 1} if how == "block_level" else {}
    apply_group_offloading(
        model,
        onload_device=torch.device("tpu"),
        offload_device=torch.device("cpu"),
        offload_type=how,
        use_stream=stream,
        **options,
    )
    with torch.no_grad():
        for _ in range(2):
            got = model(**{name: value.to("tpu") for name, value in sd3_inputs().items()}).sample
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert {p.device.type for p in model.transformer_blocks.parameters()} == {"cpu"}
