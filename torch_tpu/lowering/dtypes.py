"""Torch dtypes as JAX sees them, and PyTorch's type promotion."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ._jax import jnp

_NUMPY = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
_ML_DTYPES = {
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {torch.float16: torch.complex64, torch.bfloat16: torch.complex64} | {r: c for c, r in _REAL.items()}


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype (JAX's kind) of a torch dtype; NotImplementedError for one XLA has no type for."""
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    if dtype in _ML_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    raise NotImplementedError(f"dtype {dtype} is not supported on device 'tpu'; convert the tensor before moving it")


_TORCH = {name: dtype for dtype, name in (_NUMPY | _ML_DTYPES).items()}


def to_torch(dtype: Any) -> torch.dtype:
    """The torch dtype of a numpy or JAX dtype."""
    return _TORCH[np.dtype(dtype).name]


def real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex dtype's parts; other dtypes unchanged."""
    return _REAL.get(dtype, dtype)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose parts hold `dtype`; complex dtypes unchanged."""
    return _COMPLEX.get(dtype, dtype)


def limits(dtype: torch.dtype) -> tuple[Any, Any]:
    """The least and the greatest value: infinities for floats."""
    if dtype.is_floating_point:
        return -math.inf, math.inf
    return (False, True) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype PyTorch computes in for inputs of `dtype`: float32 for the 8 and 16-bit floats."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def as_array(x: Any, dtype: torch.dtype) -> Any:
    """An array or a Python number as an array of `dtype`, converted as PyTorch converts."""
    if isinstance(x, (bool, int, float, complex)):
        with np.errstate(over="ignore", invalid="ignore"):
            return jnp.asarray(np.asarray(x).astype(to_jax(dtype)))
    return cast(x, dtype)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """An array converted as PyTorch converts: floats wrap into small integers, complex numbers keep their real part."""
    target = to_jax(dtype)
    if x.dtype == target:
        return x.astype(target)
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not dtype.is_complex and dtype != torch.bool:
        x = x.real
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(target, jnp.integer) and target.itemsize < 4:
        x = x.astype(jnp.int32)
    if x.dtype == jnp.bool_ and jnp.issubdtype(target, jnp.inexact):
        # XLA takes the product of a converted bool for a choice, so that False * inf would be 0.
        return jnp.where(x, jnp.ones((), target), jnp.zeros((), target))
    return x.astype(target)


def is_number(x: Any) -> bool:
    """True for what promotes as a Python number: one itself, or a runtime scalar (a weakly typed 0-d array)."""
    if isinstance(x, (bool, int, float, complex)):
        return True
    return bool(getattr(x, "weak_type", False))


def dtype_of(x: Any) -> torch.dtype:
    """The torch dtype of an array or a Python number (a number's is the one PyTorch infers)."""
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    if isinstance(x, (float, complex)):
        default = torch.get_default_dtype()
        return default if isinstance(x, float) else complex_of(default)
    dtype = to_torch(x.dtype)
    if not is_number(x) or dtype in (torch.bool, torch.int64):
        return dtype
    if dtype in (torch.int32,):
        return torch.int64
    return dtype_of(1j if dtype.is_complex else 1.0)


def result_type(*xs: Any) -> torch.dtype:
    """PyTorch's promotion: tensors with dimensions, then 0-d tensors, then numbers; None entries are skipped."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in xs:
        if x is None:
            continue
        rank = 2 if is_number(x) else (1 if x.ndim == 0 else 0)
        dtype, seen = dtype_of(x), ranks[rank]
        ranks[rank] = dtype if seen is None else torch.promote_types(seen, dtype)
    result = ranks[0]
    for lower in ranks[1:]:
        result = _combine(result, lower)
    if result is None:
        raise TypeError("result_type needs at least one operand")
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return complex_of(higher) if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher
