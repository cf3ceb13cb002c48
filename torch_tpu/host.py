"""Ops that run on the host: PyTorch's own CPU kernels on copied operands.

XLA has no algorithm for them on any device, and their results are not worth one written by hand: eigenvalues of general
matrices, and the factors of Bunch and Kaufman, which pivot by the values they meet. docs/device.md names them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from .lowering.variants import find

OPS = (
    *("linalg_eig", "linalg_eig.out", "_linalg_eigvals", "linalg_eigvals.out"),
    *("linalg_ldl_factor_ex", "linalg_ldl_factor_ex.out", "linalg_ldl_solve", "linalg_ldl_solve.out"),
)


# Called with the name of each op that runs here.
observers: list[Callable[[str], None]] = []


@functools.cache
def register() -> torch.library.Library:
    """Make the kernels of `OPS`; they last as long as what is returned."""
    library = torch.library.Library("aten", "IMPL")
    for name in OPS:
        library.impl(name, functools.partial(_run, find(f"aten::{name}")), "PrivateUse1")
    return library


def _run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    for observe in observers:
        observe(op.name())
    device = next(x.device for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
    host_args, host_kwargs = pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    result = op(*host_args, **host_kwargs)
    outs = [kwargs[a.name] for a in op._schema.arguments if a.is_out]
    if not outs:
        return pytree.tree_map(lambda x: x.to(device), result)
    for out, host in zip(outs, pytree.tree_leaves(result), strict=True):
        if out.shape != host.shape:
            out.resize_(host.shape).as_strided_(host.shape, host.stride())
        out.copy_(host)
    return outs[0] if len(outs) == 1 else tuple(outs)
