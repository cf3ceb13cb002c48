"""timm's image models train on the device as on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("timm")

import timm
import timm.optim
import timm.utils

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("resnet10t", {}),
    "vit": ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48}),
}


@pytest.mark.parametrize("name", [pytest.param("resnet", marks=pytest.mark.slow), "vit"])
def test_training_is_that_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    architecture, options = MODELS[name]
    host = timm.create_model(architecture, pretrained=False, num_classes=5, **options)
    model = copy.deepcopy(host).to("tpu")
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 3, 1, 4])
    results = []
    for m, device in ((model, "tpu"), (host, "cpu")):
        optimizer = timm.optim.create_optimizer_v2(m, opt="sgd", lr=1e-2, momentum=0.9, weight_decay=1e-4)
        average = timm.utils.ModelEmaV3(m, decay=0.5)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(m.train()(images.to(device)), labels.to(device))
            loss.backward()
            timm.utils.dispatch_clip_grad(m.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            average.update(m)
            losses.append(loss.item())
        with torch.no_grad():
            logits = average.module.eval()(images.to(device))
        results.append((torch.tensor(losses), logits.cpu(), {n: b.cpu() for n, b in m.named_buffers()}))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
