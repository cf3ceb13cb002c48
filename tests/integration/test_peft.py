"""PEFT: adapters train, merge and load on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("peft")

from peft import LoraConfig, PeftModel, get_peft_model
from tiny import llama, sentences, tokenizer

CONFIG = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def adapted(device: str) -> PeftModel:
    model = llama()
    torch.manual_seed(1)
    return get_peft_model(model, CONFIG).to(device)


def train(model: PeftModel, inputs: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-4)
    losses = []
    for _ in range(3):
        loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_lora_trains_merges_and_loads_as_on_the_cpu(tmp_path: Path) -> None:
    inputs = tokenizer()(sentences(4), return_tensors="pt")["input_ids"]
    host, model = adapted("cpu"), adapted("tpu")
    torch.testing.assert_close(train(model, inputs.to("tpu")), train(host, inputs), rtol=1e-4, atol=1e-5)
    close = {"rtol": 1e-4, "atol": 1e-4}
    host_state, state = ({n: p.detach().cpu() for n, p in m.named_parameters() if "lora" in n} for m in (host, model))
    torch.testing.assert_close(state, host_state, **close)

    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(llama().to("tpu"), tmp_path)
    with torch.no_grad():
        expected = model(input_ids=inputs.to("tpu")).logits
        torch.testing.assert_close(loaded(input_ids=inputs.to("tpu")).logits, expected)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=inputs.to("tpu")).logits, expected, **close)
    assert {p.device.type for p in merged.parameters()} == {"tpu"}
