"""What a second process saves with torch.compile: `python benchmarks/compiled_second_process.py`.

The first step of the GPT of compiled.py, with compiled forward, backward and AdamW, in a process with empty caches and
then in another one; and both again with Dynamo's `caching_precompile`. The backend's part is what this package does:
making graphs' ops, lowering, compiling or loading programs. The rest is Dynamo's tracing, AOTAutograd's, and the run.
Imports (JAX's in the first process too) and the start of the device do not count. The optimizer's step is compiled
without `caching_precompile`: PyTorch 2.13 fails there on any device, as guards on optimizers can't be serialized.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

from bars import ROOT, Bars, python, table

PART_LIMIT, WHOLE_LIMIT = 0.10, 0.30
CODE = """
import json, sys, time
sys.path.insert(0, {benchmarks!r})
first, precompile = {first}, {precompile}
if first:
    import jax
import torch, torch._dynamo, torch._inductor.compile_fx
from compiled_models import BATCH, GPT, LENGTH, VOCABULARY, InTorch
from torch_tpu import eager
from torch_tpu.compile import saved
torch.tpu.init()
parts, inside = {{}}, []

def timed(owner, name):
    function = getattr(owner, name)
    def run(*args, **kwargs):
        began = time.perf_counter()
        inside.append(0.0)
        try:
            return function(*args, **kwargs)
        finally:
            whole = time.perf_counter() - began
            parts[name] = parts.get(name, 0.0) + whole - inside.pop()
            if inside:
                inside[-1] += whole
    setattr(owner, name, run)

for name in ("__init__", "prepare_for_serialization", "post_compile"):
    timed(saved.CompiledGraph, name)
timed(eager, "build")

torch.manual_seed(0)
precompiling = lambda: torch._dynamo.config.patch(caching_precompile=precompile)
gpt = InTorch(GPT().to("tpu"), torch.randint(VOCABULARY, (BATCH, LENGTH)).to("tpu"))
update = torch.compile(gpt.optimizer.step)
before = torch.tpu.cache_stats()
parts.clear()
began = time.perf_counter()
with precompiling():
    loss = torch.compile(gpt.loss_of)(gpt.tokens)
loss.backward()
torch.tpu.synchronize()
gradients = time.perf_counter() - began
update()
torch.tpu.synchronize()
whole = time.perf_counter() - began
stats = torch.tpu.cache_stats()
with precompiling():
    torch.compiler.save_cache_artifacts()
print(json.dumps(dict(
    whole=whole, gradients=gradients, part=sum(parts.values()), parts=parts, loss=loss.item(), jax="jax" in sys.modules,
    compiles=stats["compiles"] - before["compiles"], loads=stats["disk_hits"] - before["disk_hits"],
)))
"""


def run(first: bool, precompile: bool, folder: str) -> dict[str, Any]:
    """A process's first step."""
    code = CODE.format(first=first, precompile=precompile, benchmarks=str(ROOT / "benchmarks"))
    variables = {"TORCH_TPU_CACHE_DIR": f"{folder}/tpu", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
    return json.loads(python(code, TF_CPP_MIN_LOG_LEVEL="3", TORCH_LOGS="-dynamo", **variables).splitlines()[-1])


def main() -> None:
    """Measure, print, compare with the bars."""
    runs = {}
    for precompile in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            for first in (True, False):
                runs[precompile, first] = run(first, precompile, folder)
    names = {(p, f): f"{'first' if f else 'second'}{', caching_precompile' if p else ''}" for p, f in runs}
    table(
        ["process", "step, s", "forward and backward, s", "backend's part, s", "compiles", "loads", "JAX imported"],
        [
            (names[k], *(r[n] for n in ("whole", "gradients", "part", "compiles", "loads", "jax")))
            for k, r in runs.items()
        ],
    )
    bars = Bars()
    for precompile in (False, True):
        first, second = runs[precompile, True], runs[precompile, False]
        assert abs(first["loss"] - second["loss"]) < 1e-4, "the second process computes something else"
        name = names[precompile, False]
        bars.at_most(f"{name}: backend's part", second["part"] / first["part"], PART_LIMIT, " of the first one's")
        bars.at_most(f"{name}: compiles and lowerings", second["compiles"] + second["jax"], 0)
    for what, words in (("gradients", "forward and backward"), ("whole", "whole step")):
        ratio = runs[True, False][what] / runs[True, True][what]
        bars.at_most(f"{names[True, False]}: {words}", ratio, WHOLE_LIMIT, " of the first one's")
    bars.finish()


if __name__ == "__main__":
    main()
