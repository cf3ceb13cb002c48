"""What the disk cache saves a second process: `python benchmarks/second_process.py`.

Two processes, one after the other, with a cache folder that is empty at first, run the same forward and training step
of the small GPT. Imports (JAX's and the optimizers' late ones too) and the start of the device do not count.
"""

from __future__ import annotations

import json
import tempfile

from bars import Bars, python, table

LIMIT = 0.25
CODE = """
import json, time
import jax, torch
import torch.nn.functional as F
from train_gpt import GPT, Config

config = Config()
torch.manual_seed(0)
model = GPT(config)
tokens = torch.randint(config.vocabulary, (config.batch, config.context))
torch.tpu.init()
import torch._dynamo, torch_tpu.eager
began = time.perf_counter()
model, tokens = model.to("tpu"), tokens.to("tpu")
with torch.no_grad():
    model(tokens).sum().item()
forward = time.perf_counter() - began
optimizer = torch.optim.AdamW(model.parameters())
F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
optimizer.step()
torch.tpu.synchronize()
stats = torch.tpu.cache_stats()
seconds = time.perf_counter() - began
print(json.dumps([forward, seconds - forward, seconds, stats["compiles"], stats["disk_hits"]]))
"""


def main() -> None:
    """Measure, print, compare with the bar."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            json.loads(python(CODE, TORCH_TPU_CACHE_DIR=folder, TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1])
            for _ in range(2)
        ]
    table(
        ["process", "forward, s", "training step, s", "both, s", "compiles", "disk hits"],
        [(name, *run) for name, run in zip(("first", "second"), runs, strict=True)],
    )
    bars = Bars()
    bars.at_most("second process", runs[1][2] / runs[0][2], LIMIT, " of the first one's time")
    bars.at_most("compiles of the second process", runs[1][3], 0)
    bars.finish()


if __name__ == "__main__":
    main()
