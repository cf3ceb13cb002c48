"""The examples run, on "tpu" as on "cpu"."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from train_gpt import Config, train

EXAMPLES = Path(__file__).parent.parent / "examples"

SMALL = Config(context=16, width=32, heads=2, layers=1, batch=4, steps=6, warmup=2)


def run(*arguments: str) -> str:
    """The output of an example; fails with it if the example does."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_training_gives_the_same_losses() -> None:
    losses = {device: train(SMALL, device) for device in ("tpu", "cpu")}
    # Six steps of float32 sums in another order.
    torch.testing.assert_close(torch.tensor(losses["tpu"]), torch.tensor(losses["cpu"]), rtol=1e-5, atol=1e-5)
    assert losses["tpu"][-1] < losses["tpu"][0]


def test_training_compiles_nothing_after_the_second_step() -> None:
    compiles = []
    train(SMALL, "tpu", lambda step, loss: compiles.append(torch.tpu.cache_stats()["compiles"]))
    assert compiles[-1] == compiles[1]


def test_decoding_compiles_nothing_after_the_second_token() -> None:
    transformers = pytest.importorskip("transformers")
    from generate import answer

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=100, num_hidden_layers=2, **sizes)
    config.eos_token_id = None
    torch.manual_seed(0)
    model, compiles = transformers.LlamaForCausalLM(config).eval(), []

    def note(count: int) -> None:
        compiles.append(torch.tpu.cache_stats()["compiles"] + torch.tpu.cache_stats()["disk_hits"])

    prompt = torch.arange(7)[None]
    tokens = answer(model, prompt, "tpu", 12, note)
    assert len(compiles) == 12 and compiles[-1] == compiles[1]
    assert tokens == answer(model, prompt, "cpu", 12)


def test_train_gpt_as_a_script() -> None:
    assert "loss" in run("train_gpt.py", "--device", "tpu", "--steps", "2")


@pytest.mark.slow
def test_generate_as_a_script() -> None:
    pytest.importorskip("gguf")
    assert "Gravity" in run("generate.py", "--device", "tpu", "--tokens", "5")


@pytest.mark.slow
def test_demo() -> None:
    pytest.importorskip("gguf")
    assert "FAILED" not in run("demo.py", "--tokens", "8", "--steps", "40")
