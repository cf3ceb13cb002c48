"""What `make demo` runs: a language model and a training run, on "tpu" and on "cpu", compared.

Prints what both answered and a table of times and counters, and saves the two loss curves as out/loss.png. Exits with 0
only if the tokens are equal, the loss curves agree, and no op fell back to the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from generate import QUESTION, answer, load, prompt
from tqdm import tqdm
from train_gpt import Config, train

Result = TypeVar("Result")
DEVICES = ("tpu", "cpu")
OUT = Path(__file__).parent.parent / "out"
COUNTERS = ("launches", "compiles", "memory_hits", "disk_hits")

# Each device adds float32 sums up in an order of its own, which changes their last bits (a relative 1e-7), and training
# feeds the difference back at every step: about 1e-4 after 100 steps. A wrong gradient is soon far beyond it.
LOSS_TOLERANCE = 1e-2


@dataclass
class Run:
    """One task on one device: its result, its seconds and counters, and the counters at each iteration."""

    task: str
    device: str
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    compiles: list[int] = field(default_factory=list)
    steady_ms: float = 0.0

    def row(self) -> list[str]:
        """Cells of the table."""
        counters = [f"{self.counters[c]:,}" if self.device == "tpu" else "" for c in COUNTERS]
        late = str(self.compiles[-1] - self.compiles[1]) if self.device == "tpu" else ""
        return [self.task, self.device, f"{self.seconds:.1f}", f"{self.steady_ms:.1f}", *counters, late]


def stats() -> dict[str, int]:
    """The counters of the device."""
    return {c: torch.tpu.cache_stats()[c] for c in COUNTERS}


def measure(
    task: str, device: str, iterations: int, work: Callable[[Callable[..., None]], Result]
) -> tuple[Result, Run]:
    """Run `work` with a progress bar; it calls its argument after each iteration."""
    run, before, times = Run(task, device), stats(), []
    with tqdm(total=iterations, desc=f"{task} on {device}", unit="it", file=sys.stdout) as bar:

        def on_iteration(*_: object) -> None:
            bar.update()
            times.append(time.perf_counter())
            run.compiles.append(stats()["compiles"])

        began = time.perf_counter()
        result = work(on_iteration)
    run.seconds = times[-1] - began
    run.steady_ms = (times[-1] - times[1]) / (len(times) - 2) * 1e3
    run.counters = {name: count - before[name] for name, count in stats().items()}
    return result, run


def print_table(runs: list[Run]) -> None:
    """The times and counters of all runs."""
    head = ["task", "device", "seconds", "ms/it", *(c.replace("_", " ") for c in COUNTERS), "compiles after 2nd it"]
    rows = [head, *(run.row() for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))


def save_picture(losses: dict[str, list[float]], path: Path) -> None:
    """Both loss curves, and their difference below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, difference) = pyplot.subplots(
        2, sharex=True, height_ratios=(3, 1), figsize=(8, 6), layout="constrained"
    )
    curves.plot(losses["cpu"], label="cpu", linewidth=4, color="tab:orange", alpha=0.5)
    curves.plot(losses["tpu"], label="tpu", linewidth=1.5, color="tab:blue")
    curves.set(ylabel="loss (nats per byte)", title="A small GPT on Python's help topics")
    curves.legend()
    difference.semilogy([max(abs(a - b), 1e-9) for a, b in zip(*losses.values(), strict=True)], color="tab:gray")
    difference.set(xlabel="step", ylabel="|tpu - cpu|")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run everything; 0 if both devices agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    runs, tokens, losses = [], {}, {}
    print(f"device tpu: {torch.tpu.get_device_name()}, PyTorch {torch.__version__}")

    model, tokenizer = load()
    question = prompt(tokenizer, QUESTION)
    for device in DEVICES:
        tokens[device], run = measure(
            "answer",
            device,
            arguments.tokens,
            lambda tick, d=device: answer(model, question, d, arguments.tokens, tick),
        )
        runs.append(run)
        print(f"  {tokenizer.decode(tokens[device], skip_special_tokens=True)!r}")
    config = Config(steps=arguments.steps)
    for device in DEVICES:
        losses[device], run = measure("train", device, config.steps, lambda tick, d=device: train(config, d, tick))
        runs.append(run)
        print(f"  loss {losses[device][0]:.4f} at first, {losses[device][-1]:.4f} at last")

    print()
    print_table(runs)
    save_picture(losses, OUT / "loss.png")
    apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    checks = {
        f"all {len(tokens['cpu'])} tokens equal": tokens["tpu"] == tokens["cpu"],
        f"loss curves at most {apart:.1e} apart (tolerance {LOSS_TOLERANCE:.0e})": apart <= LOSS_TOLERANCE,
        f"the loss went down to {losses['tpu'][-1]:.2f}": losses["tpu"][-1] < losses["tpu"][0] - 1,
        f"ops that fell back to the CPU: {torch.tpu.cpu_fallbacks() or 'none'}": not torch.tpu.cpu_fallbacks(),
        "nothing was compiled after the second iteration": all(r.compiles[-1] == r.compiles[1] for r in runs),
    }
    print()
    for check, passed in checks.items():
        print(f"{'ok    ' if passed else 'FAILED'} {check}")
    print(f"loss curves: {OUT / 'loss.png'}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
