"""What the number of layers costs: `python benchmarks/repeated_layers.py`.

Lowering and XLA's compilation of forward and backward of a Llama of 2 and of 32 layers, 256 wide, in an empty cache,
and the step of that of 32 layers against one whose forward and backward are a single program each. A process for each.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import compiled_models as models
import torch
from bars import Bars, python, table

from torch_tpu import eager
from torch_tpu.compile import repeats

FEW, MANY = 2, 32
COMPILE_LIMIT, STEP_LIMIT = 2.0, 1.1


def measure(layers: int, whole: bool) -> None:
    """Print seconds of compilation, programs and the median seconds of a step, as JSON."""
    models.LAYERS = layers
    torch._functorch.config.enable_autograd_cache = False  # it would give back the graph as another process divided it
    if whole:
        repeats.LEAST_TIMES = sys.maxsize
    torch.manual_seed(0)
    tokens = torch.randint(models.VOCABULARY, (models.BATCH, models.LENGTH), device="tpu")
    model = models.InTorch(models.Llama().to("tpu"), tokens)
    (tokens + 1).tanh()  # imports JAX
    spent, build = [], eager.build

    def timed(name: str, *args: object) -> object:
        began = time.perf_counter()
        try:
            return build(name, *args)
        finally:
            spent.append(time.perf_counter() - began)

    eager.build = timed
    model._loss(tokens).backward()
    programs, seconds = len(spent), sum(spent)
    steps = []
    for i in range(8):
        began = time.perf_counter()
        model.step()
        torch.tpu.synchronize()
        if i > 1:
            steps.append(time.perf_counter() - began)
    print(json.dumps([seconds, programs, statistics.median(steps)]))


def run(layers: int, whole: bool) -> tuple[float, int, float]:
    """`measure` in a process of its own."""
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import repeated_layers as r; r.measure({layers}, {whole})"
    return tuple(json.loads(python(code, TORCH_TPU_CACHE_DIR="").strip().splitlines()[-1]))


def main() -> None:
    """Measure, print, compare with the bars."""
    bars = Bars()
    few, many, whole = run(FEW, False), run(MANY, False), run(MANY, True)
    bars.at_most(f"lowering and compiling {MANY} layers / {FEW} layers", many[0] / few[0], COMPILE_LIMIT)
    bars.at_most(f"a step of {MANY} layers / as whole programs", many[2] / whole[2], STEP_LIMIT)
    rows = [(f"{FEW} layers", *few), (f"{MANY} layers", *many), (f"{MANY} layers, whole", *whole)]
    table(["Llama", "compiling, s", "programs", "step, s"], rows)
    bars.finish()


if __name__ == "__main__":
    main()
