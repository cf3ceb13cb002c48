"""A script with two ops that the device does not have. It would stop at the first."""

import torch


@torch.library.custom_op("unheard_of::blur", mutates_args=(), device_types="cpu")
def blur(x: torch.Tensor) -> torch.Tensor:
    """Some kernel of the user's, for the CPU only."""
    return (x + x.roll(1, -1)) / 2


@blur.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


x = torch.rand(4, 4, device="tpu")
y = blur(x @ x)
z = torch.nn.functional.relu(y).to_sparse()
print(z)
