"""Where PyTorch's shape functions are not right for this backend, or missing: memory formats, and what they refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from .lowering.ctc import label_count

_CONVOLUTIONS = frozenset(
    {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable", "aten::_convolution.deprecated"}
)

# Their shape functions refuse what other devices take (torch._grouped_mm's asks for bfloat16 and CUDA's alignment, that
# of an LSTM's cell for a bias).
SHAPED_BY_THE_LOWERING = frozenset({"aten::_grouped_mm", "aten::_thnn_fused_lstm_cell"})

# Ops without a shape function, whose first result has the layout that LAPACK leaves.
_COLUMN_MAJOR = frozenset({"aten::geqrf", "aten::linalg_lstsq"})


def as_promised(op: OpOverload, args: list[Any], out: Any) -> Any:
    """The fake result of an op with the strides it has on CPU.

    Convolutions give channels_last if the input or the weight is; PyTorch's shape function asks for cuda.
    """
    if op.name() in _CONVOLUTIONS and out.ndim in (4, 5):
        wanted = torch.channels_last if out.ndim == 4 else torch.channels_last_3d
        follows = any(_suggests(t, wanted) for t in args[:2])
        return torch.empty_like(out, memory_format=wanted if follows else torch.contiguous_format)
    if op.name() == "aten::pow.Tensor_Scalar":
        return _power(args[0], args[1], out)
    if op.name() in ("aten::_foreach_pow.Scalar", "aten::_foreach_pow.ScalarList"):
        exponents = args[1] if isinstance(args[1], list) else [args[1]] * len(out)
        return [_power(x, e, y) for x, e, y in zip(args[0], exponents, out, strict=True)]
    if op.name() in _COLUMN_MAJOR:
        first, *others = out
        return first.mT.contiguous().mT if first.ndim > 1 else first, *others
    if op.name() == "aten::multilabel_margin_loss_forward" and out[0].shape == (1,):
        # The shape function makes the mean, the sum and the loss of a single row one-dimensional.
        return (out[0].new_empty(()), out[1]) if args[2] or args[0].ndim < 2 else out
    if op.name() == "aten::_ctc_loss":
        # The lengths of the targets are values of the program: they must not be in the shape of log alpha.
        steps, batch, _ = args[0].shape
        return out[0], out[1].new_empty(batch, steps, 2 * label_count(steps, args[1].shape) + 1)
    return out


def _power(x: torch.Tensor, exponent: Any, out: torch.Tensor) -> torch.Tensor:
    """The shape function takes an exponent of True for an int64."""
    return out.bool() if x.dtype == torch.bool and isinstance(exponent, bool) else out


# The CPU's kernels copy a transform or a factor to an `out=` tensor that they made contiguous.
_CONTIGUOUS_OUTS = frozenset({"aten::_fft_c2c.out", "aten::_fft_r2c.out", "aten::_fft_c2r.out", "aten::cholesky.out"})


def resized(op: OpOverload, fake: torch.Tensor, promised: torch.Tensor) -> torch.Tensor:
    """An `out=` tensor, which running `op` without data left as `fake`, as it is once resized to what is promised.

    C++ gives it the strides of a new result. Shape functions in Python make it contiguous; some ops have none.
    """
    right = torch._C.DispatchKey.Meta not in op.py_kernels or op.name() in _CONTIGUOUS_OUTS
    if right and fake.shape == promised.shape:
        return fake
    return torch.empty_strided(promised.shape, promised.stride(), dtype=fake.dtype, device="meta")


def _suggests(tensor: torch.Tensor, wanted: torch.memory_format) -> bool:
    return tensor.ndim in (4, 5) and tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous()
