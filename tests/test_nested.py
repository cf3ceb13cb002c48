"""Jagged nested tensors (torch.nested with layout=torch.jagged) give on the device what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

PARTS = [torch.arange(12.0).reshape(3, 4) / 7, torch.arange(8.0).reshape(2, 4) - 3, torch.ones(5, 4).cumsum(0)]


def jagged(device: str) -> Tensor:
    return torch.nested.nested_tensor([x.to(device) for x in PARTS], layout=torch.jagged, requires_grad=True)


OPS: dict[str, Callable[[Tensor], Any]] = {
    "made": lambda x: (x.values(), x.offsets()),
    "pointwise": lambda x: torch.relu(x + x).values(),
    "linear": lambda x: F.linear(x, torch.ones(2, 4, device=x.device)).values(),
    "layer_norm": lambda x: F.layer_norm(x, (4,)).values(),
    "softmax of rows": lambda x: torch.softmax(x, -1).values(),
    "softmax along the jagged dimension": lambda x: torch.softmax(x, 1).values(),
    "sum": lambda x: x.sum(-1).values(),
    "sum along the jagged dimension": lambda x: x.sum(1),
    "mean along the jagged dimension": lambda x: x.mean(1),
    "cat": lambda x: torch.cat([x, x], -1).values(),
    "unbind": lambda x: list(x.unbind()),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 7.0),
    "to the CPU": lambda x: x.to("cpu").values(),
    "masked_select": lambda x: torch.nested.masked_select(x.sum(1), x.sum(1) > 0).values(),
}


@pytest.mark.parametrize("name", OPS)
def test_values(name: str) -> None:
    got, expected = (_leaves(OPS[name](jagged(device))) for device in ("tpu", "cpu"))
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g.detach().cpu(), e.detach())


# PyTorch has no gradients of sums of jagged tensors on any device.
@pytest.mark.parametrize("name", ["pointwise", "linear", "softmax of rows", "cat", "unbind", "padded"])
def test_gradients(name: str) -> None:
    gradients = []
    for device in ("tpu", "cpu"):
        x = jagged(device)
        total = sum(y.square().sum() for y in _leaves(OPS[name](x)))
        gradients.append(torch.autograd.grad(total, x)[0].values().cpu())
    torch.testing.assert_close(*gradients)


def _leaves(out: Any) -> list[Tensor]:
    return list(out) if isinstance(out, (list, tuple)) else [out]


def test_padded_and_back() -> None:
    for device in ("cpu", "tpu"):
        x = jagged(device).detach()
        dense = torch.ops.aten._jagged_to_padded_dense_forward(x.values(), [x.offsets()], [5], 0.0)
        back = torch.ops.aten._padded_dense_to_jagged_forward(dense, [x.offsets()], 10)
        assert torch.equal(back.cpu(), torch.cat(PARTS)), device
