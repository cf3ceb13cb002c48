"""How long a first forward and training step take: `python benchmarks/cold_start.py`.

A Qwen3 of 4 layers, 256 wide, batch 2x64, in a process of its own: with an empty cache of programs, then with the one
that left. Imports (late ones too) and the start of the device do not count. Processor time tells a busy machine apart.
"""

from __future__ import annotations

import json
import tempfile

from bars import ROOT, Bars, python, table

COLD, WARM = 8.0, 1.5
CODE = f"""
import json, sys, time
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import jax, torch
from models import qwen3, tokens

torch.manual_seed(0)
model, inputs = qwen3(), tokens()
model(input_ids=inputs[:, :2], labels=inputs[:, :2]).loss.backward()  # transformers' and autograd's late imports
model.zero_grad()
torch.tpu.init()
import torch._dynamo, torch_tpu.eager
began, busy = time.perf_counter(), time.process_time()
model, inputs = model.to("tpu"), inputs.to("tpu")
with torch.no_grad():
    model(input_ids=inputs).logits.sum().item()
forward = time.perf_counter() - began
optimizer = torch.optim.AdamW(model.parameters())
model(input_ids=inputs, labels=inputs).loss.backward()
optimizer.step()
torch.tpu.synchronize()
seconds, busy = time.perf_counter() - began, time.process_time() - busy
stats = torch.tpu.cache_stats()
print(json.dumps([forward, seconds - forward, seconds, busy, stats["compiles"], stats["disk_hits"]]))
"""


def main() -> None:
    """Measure, print, compare with the bars."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [json.loads(python(CODE, TORCH_TPU_CACHE_DIR=folder).splitlines()[-1]) for _ in range(2)]
    head = ["cache", "forward, s", "training step, s", "both, s", "processor, s", "compiles", "disk hits"]
    table(head, [(name, *run) for name, run in zip(("empty", "warm"), runs, strict=True)])
    bars = Bars()
    bars.at_most("first forward and step in an empty cache", runs[0][2], COLD, " s")
    bars.at_most("first forward and step with a warm cache", runs[1][2], WARM, " s")
    bars.finish()


if __name__ == "__main__":
    main()
