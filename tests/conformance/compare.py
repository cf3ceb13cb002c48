"""When a result on the device is right: PyTorch's tolerances, and what an op's result doesn't determine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo


class Wrong(AssertionError):
    """A result that is not the CPU's."""


def tolerances(op: OpInfo, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol) of an op's results: PyTorch's default for the dtype, or what the database overrides for the op."""
    rtol, atol = default_tolerances(dtype)
    for info in op.decorators:
        if not isinstance(info, DecorateInfo) or info.device_type not in (None, "cpu", "cuda"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                rtol, atol = max(rtol, decorator.d[dtype].rtol), max(atol, decorator.d[dtype].atol)
            if isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    return rtol, atol


def check(
    got: Any,
    expected: Any,
    op: OpInfo,
    reference: Callable[[], Any],
    on: str = "tpu",
    values: bool = True,
) -> None:
    """Raise Wrong unless the device's tree of results is the CPU's.

    reference: the results in double precision. A value outside the tolerances is right if it is as near to them as the
    CPU's is, the way torch._dynamo.utils.same judges it.
    """
    have, want = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    if len(have[0]) != len(want[0]):
        raise Wrong(f"{len(have[0])} results, the CPU gives {len(want[0])}")
    for i, (g, e) in enumerate(zip(have[0], want[0], strict=True)):
        if not isinstance(e, torch.Tensor):
            if values and g != e and not (g != g and e != e) and not _close(g, e):
                raise Wrong(f"result {i} is {g!r}, the CPU gives {e!r}")
            continue
        if not isinstance(g, torch.Tensor):
            raise Wrong(f"result {i} is {g!r}, the CPU gives a tensor")
        for what in ("shape", "dtype", "layout", "requires_grad"):
            if getattr(g, what) != getattr(e, what):
                raise Wrong(f"result {i} has {what} {getattr(g, what)}, the CPU gives {getattr(e, what)}")
        if g.device.type != on:
            raise Wrong(f"result {i} is on {g.device}")
        if values:
            _check_values(g, e, i, op, reference)


def _check_values(g: torch.Tensor, e: torch.Tensor, i: int, op: OpInfo, reference: Callable[[], Any]) -> None:
    rtol, atol = tolerances(op, e.dtype)
    g, e = g.detach().cpu(), e.detach()
    try:
        torch.testing.assert_close(g, e, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        if e.layout == torch.strided and (e.dtype.is_floating_point or e.dtype.is_complex):
            true = dict(enumerate(pytree.tree_leaves(reference()))).get(i)  # None if the CPU can't run it
            if isinstance(true, torch.Tensor) and true.shape == e.shape and _as_near(g, e, true, rtol, atol):
                return
        raise Wrong(f"result {i}: " + " ".join(str(error).split())) from None


def _as_near(g: torch.Tensor, e: torch.Tensor, true: torch.Tensor, rtol: float, atol: float) -> bool:
    g, e, true = (x.detach().to(torch.complex128 if x.dtype.is_complex else torch.float64) for x in (g, e, true))
    finite = true.isfinite()
    same = (g == e) | (g.isnan() & e.isnan())
    if not bool((finite | same).all()):
        return False
    # Where the CPU alone overflows (its float16 kernels compute some steps in it), the tolerances hold.
    true_here, error = torch.where(finite, true, 0), torch.where(finite & e.isfinite(), e - true, 0).abs()
    allowed = 2 * error.max() + rtol * true_here.abs() + atol if error.numel() else error
    return bool(((torch.where(finite, g - true, 0).abs() <= allowed) | same | ~finite).all())


def _close(g: Any, e: Any) -> bool:
    return isinstance(g, float) and isinstance(e, float) and abs(g - e) <= 1e-5 + 1.3e-6 * abs(e)
