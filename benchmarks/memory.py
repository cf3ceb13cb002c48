"""Memory that does not grow: `python benchmarks/memory.py`.

200 training steps of the small GPT must end with as much device memory in use as after step 10, and with little more
host memory; a million small ops from four threads must leave nothing behind.
"""

from __future__ import annotations

import sys
import threading
import time

import torch
from bars import ROOT, Bars, host_bytes

sys.path.insert(0, str(ROOT / "examples"))
from train_gpt import Config, train

MEGABYTES = 20
OPS = 1_000_000
THREADS = 4


def training(bars: Bars) -> None:
    """200 steps of training."""
    device, host = {}, {}

    def note(step: int, loss: float) -> None:
        if step in (9, 199):
            device[step], host[step] = torch.tpu.memory_allocated(), host_bytes()

    train(Config(steps=200, layers=2, width=64, batch=4), "tpu", note)
    print(f"device memory after step 10: {device[9]:,} bytes, after step 200: {device[199]:,} bytes")
    bars.at_most("device memory, step 10 to 200", abs(device[199] - device[9]), 0, " bytes")
    bars.at_most("host memory, step 10 to 200", (host[199] - host[9]) / 2**20, MEGABYTES, " MB")


def threads(bars: Bars) -> None:
    """A million small ops from four threads."""
    shared, errors = torch.ones(16, device="tpu"), []

    def work(ops: int) -> None:
        try:
            mine = torch.zeros(16, device="tpu")
            for _ in range(ops // 4):
                mine.add_(shared)
                mine = mine * 0.5
                mine = torch.relu(mine)
                mine = mine[:8].repeat(2)
            if not torch.allclose(mine.cpu(), torch.ones(16)):
                errors.append(f"wrong result: {mine}")
        except Exception as error:  # noqa: BLE001 - whatever went wrong in the thread is reported below
            errors.append(repr(error))

    def run(ops: int) -> None:
        crew = [threading.Thread(target=work, args=(ops // THREADS,)) for _ in range(THREADS)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        torch.tpu.synchronize()

    run(OPS // 20)
    device, host, began = torch.tpu.memory_allocated(), host_bytes(), time.perf_counter()
    run(OPS)
    print(f"{OPS:,} ops from {THREADS} threads: {time.perf_counter() - began:.1f} s")
    bars.at_most("errors in threads", len(errors), 0)
    print("\n".join(errors[:3]))
    bars.at_most("device memory left behind", torch.tpu.memory_allocated() - device, 0, " bytes")
    bars.at_most("host memory left behind", (host_bytes() - host) / 2**20, MEGABYTES, " MB")


def main() -> None:
    """Both, and compare with the bars."""
    bars = Bars()
    training(bars)
    threads(bars)
    bars.finish()


if __name__ == "__main__":
    main()
