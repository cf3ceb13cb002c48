"""What compiled functions are held to: what they give eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Of a seeded call on copies of `args`: results, the arguments after it, gradients of the results' weighted sum."""
    own = pytree.tree_map(_copy, args)
    torch.manual_seed(0)
    results = fn(*own)
    leaves = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    wanted = [x for x in pytree.tree_leaves(own) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]
    gradients = []
    if leaves and wanted:
        weights = [torch.linspace(0.5, 1.5, x.numel(), device=x.device).reshape(x.shape).to(x.dtype) for x in leaves]
        gradients = list(torch.autograd.grad(leaves, wanted, weights, allow_unused=True))
    return {"results": results, "arguments": own, "gradients": gradients}


def assert_as_eager(fn: Callable[..., Any], *args: Any, fullgraph: bool = True, **tolerance: float) -> Any:
    """The compiled function gives what the function gives on the same device, writes and gradients included; returns
    the compiled one's results."""
    expected = outcome(fn, args)
    got = outcome(torch.compile(fn, fullgraph=fullgraph), args)
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    return got["results"]


def module(artifact: bytes) -> str:
    """The text of a program that was compiled."""
    from jax._src.lib.mlir.dialects import hlo
    from jaxlib.mlir import ir

    with ir.Context() as context:
        return str(hlo.deserialize_portable_artifact(context, artifact))


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
