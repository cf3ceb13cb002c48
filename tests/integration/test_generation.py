"""`generate` of transformers in its modes, pipelines, and loading onto the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tiny import llama, sentences, tokenizer
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    ContinuousBatchingConfig,
    GenerationConfig,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
    set_seed,
)

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "static cache, compiled": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


def prompts() -> dict[str, torch.Tensor]:
    """Two prompts, the shorter one padded on its left."""
    tokens = tokenizer()
    tokens.padding_side = "left"
    return dict(tokens([sentences()[0], "the cat sat"], padding=True, return_tensors="pt"))


def generated(device: str, **options: Any) -> torch.Tensor:
    inputs = {name: value.to(device) for name, value in prompts().items()}
    return llama().eval().to(device).generate(**inputs, max_new_tokens=8, **{"do_sample": False, **options}).cpu()


def modes() -> list[Any]:
    """Their names; some are not among the fast tests."""
    return [pytest.param(m, marks=[pytest.mark.slow] if m in {"penalties", "no cache"} else []) for m in MODES]


@pytest.mark.parametrize("mode", modes())
def test_tokens_are_those_of_the_cpu(mode: str) -> None:
    assert torch.equal(generated("tpu", **MODES[mode]), generated("cpu", **MODES[mode]))


@pytest.mark.slow
def test_continuous_batches_give_the_same_tokens() -> None:
    options = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=2, pad_token_id=0)
    # Unasked, it takes a share of the host's memory for its blocks.
    batching = ContinuousBatchingConfig(num_blocks=8, page_size=32, max_batch_tokens=32)
    results = []
    for device in ("tpu", "cpu"):
        model = llama().eval().to(device)
        done = model.generate_batch([[4, 5, 6], [7, 8, 9, 10]], options, continuous_batching_config=batching)
        results.append({name: output.generated_tokens for name, output in done.items()})
    assert results[0] == results[1] and len(results[0]) == 2


def test_sampling_follows_the_seed() -> None:
    options = {"do_sample": True, "top_p": 0.95, "temperature": 1.5}
    runs = []
    for seed in (1, 1, 2):
        model = llama().eval().to("tpu")
        inputs = {name: value.to("tpu") for name, value in prompts().items()}
        set_seed(seed)
        runs.append(model.generate(**inputs, max_new_tokens=12, **options).cpu())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert torch.equal(generated("tpu", do_sample=True, top_k=1), generated("cpu"))


def test_sampled_tokens_are_distributed_as_the_model_says() -> None:
    model = llama().eval()
    inputs = prompts()["input_ids"][:1]
    with torch.no_grad():
        expected = (model(inputs).logits[0, -1] / 0.5).softmax(-1)
    many = inputs.expand(4000, -1).to("tpu")
    set_seed(0)
    options = {"do_sample": True, "top_k": 0, "temperature": 0.5, "max_new_tokens": 1}
    tokens = model.to("tpu").generate(many, **options)[:, -1].cpu()
    counts = torch.bincount(tokens, minlength=len(expected)) / len(tokens)
    assert (counts - expected).abs().max() < 0.03


def test_text_pipelines() -> None:
    write = pipeline("text-generation", model=llama(), tokenizer=tokenizer(), device="tpu")
    assert write.model.device.type == "tpu"
    here = pipeline("text-generation", model=llama(), tokenizer=tokenizer(), device="cpu")
    options = {"max_new_tokens": 6, "do_sample": False}
    assert write("the cat sat", **options) == here("the cat sat", **options)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer()), **sizes)).eval()
    texts = sentences(5)
    expected = pipeline("text-classification", model=model, tokenizer=tokenizer(), device="cpu")(texts)
    got = pipeline("text-classification", model=model, tokenizer=tokenizer(), device="tpu", batch_size=2)(texts)
    assert [g["label"] for g in got] == [e["label"] for e in expected]
    torch.testing.assert_close([g["score"] for g in got], [e["score"] for e in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_image_pipeline() -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(torch.randint(255, (40, 40, 3), dtype=torch.uint8).numpy())
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=3, **sizes)).eval()
    results = []
    for device in ("cpu", "tpu"):
        processor = ViTImageProcessor(size={"height": 32, "width": 32})
        results.append(pipeline("image-classification", model=model, image_processor=processor, device=device)(picture))
    torch.testing.assert_close(*([r["score"] for r in result] for result in results), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device_map", ["tpu", {"": "tpu:0"}])
def test_models_load_onto_the_device(device_map: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    host = llama()
    host.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map, dtype=torch.float32)
    assert {p.device for p in loaded.parameters()} == {torch.device("tpu", 0)}
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    for (name, a), b in zip(loaded.named_parameters(), host.parameters(), strict=True):
        assert torch.equal(a.cpu(), b), name
    tokens = prompts()["input_ids"]
    assert torch.equal(loaded(tokens.to("tpu")).logits.argmax(-1).cpu(), host(tokens).logits.argmax(-1))
