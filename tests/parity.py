"""Run the same code on the CPU and on the device and compare; run code in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def to_device(tree: Any, device: str) -> Any:
    """The tensors of a tree as fresh leaves on a device, with the strides and the need of a gradient they have."""

    def move(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x.detach())
        return made.requires_grad_(x.requires_grad)

    return pytree.tree_map_only(torch.Tensor, move, tree)


def to_cpu(tree: Any) -> Any:
    """The tensors of a tree, detached, on the CPU."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), tree)


def assert_same(got: Any, expected: Any, **tolerances: float) -> None:
    """Assert that trees from the device and the CPU agree in values, shapes, dtypes and strides."""
    have, want = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    assert len(have) == len(want)
    for g, e in zip(have, want, strict=True):
        if not isinstance(e, torch.Tensor):
            assert g == e
            continue
        assert g.device.type == "tpu", f"a result on {g.device}"
        torch.testing.assert_close(g.detach().cpu(), e.detach(), equal_nan=True, **tolerances)


def on_both(fn: Callable[..., Any], *inputs: Any, **tolerances: float) -> Any:
    """Assert that `fn` gives the same on the device as on the CPU and leaves its inputs the same; the device's result.

    A function that raises on the CPU must raise the same type on the device.
    """
    host, there = to_device(inputs, "cpu"), to_device(inputs, "tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, error = _attempt(fn, host)
        got, other = _attempt(fn, there)
    assert type(other) is type(error), f"cpu: {error!r}, tpu: {other!r}"
    if error is None:
        assert_same(got, expected, **tolerances)
    assert_same(there, host, **tolerances)
    return got


def gradients(fn: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function that gives the result of `fn` and the gradients of its inputs that want one."""

    def run(*inputs: Any) -> Any:
        out = fn(*inputs)
        leaves = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        total = sum((o.float() * weights(o)).sum() for o in pytree.tree_leaves(out) if o.requires_grad)
        return out, torch.autograd.grad(total, leaves, allow_unused=True)

    return run


def weights(like: torch.Tensor) -> torch.Tensor:
    """Distinct factors, so that a gradient that reaches the wrong element shows."""
    return torch.linspace(0.5, 1.5, like.numel()).reshape(like.shape).to(like.device)


def compiles() -> int:
    """How many programs this process has built, from the disk cache or anew."""
    stats = torch.tpu.cache_stats()
    return stats["compiles"] + stats["disk_hits"]


def run_python(code: str, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process with environment variables set."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def expect(code: str, **variables: str) -> str:
    """What code in a fresh process prints; fails with its errors if it fails."""
    done = run_python(code, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def _attempt(fn: Callable[..., Any], inputs: Any) -> tuple[Any, Exception | None]:
    try:
        return fn(*inputs), None
    except Exception as error:  # noqa: BLE001 - whatever the CPU raises is the oracle
        return None, error
