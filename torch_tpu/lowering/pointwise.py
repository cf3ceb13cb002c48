"""Elementwise arithmetic, comparison, bit and mathematical functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from . import dtypes
from ._jax import jnp, lax
from .context import out
from .registry import RULES, lowers, pointwise, pointwise_dtypes

# Functions of one float; integers become the default float first.
_FLOAT = {
    "acos": lambda x: lax.acos(x),
    "acosh": lambda x: lax.acosh(x),
    "asin": lambda x: lax.asin(x),
    "asinh": lambda x: lax.asinh(x),
    "atan": lambda x: lax.atan(x),
    "atanh": lambda x: lax.atanh(x),
    "cos": lambda x: lax.cos(x),
    "cosh": lambda x: lax.cosh(x),
    "deg2rad": lambda x: x * np.asarray(math.pi / 180, x.dtype),
    "erf": lambda x: lax.erf(x),
    "erfc": lambda x: lax.erfc(x),
    "erfinv": lambda x: erfinv(x),
    "exp": lambda x: lax.exp(x),
    "exp2": lambda x: lax.exp2(x),
    "expm1": lambda x: lax.expm1(x),
    "log": lambda x: lax.log(x),
    "log10": lambda x: jnp.log10(x),
    "log1p": lambda x: lax.log1p(x),
    "log2": lambda x: jnp.log2(x),
    "rad2deg": lambda x: x * np.asarray(180 / math.pi, x.dtype),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: lax.rsqrt(x),
    "sigmoid": lambda x: lax.logistic(x),
    "sin": lambda x: lax.sin(x),
    "sinh": lambda x: lax.sinh(x),
    "sqrt": lambda x: lax.sqrt(x),
    "tan": lambda x: lax.tan(x),
    "tanh": lambda x: lax.tanh(x),
}
for _name, _fn in _FLOAT.items():
    pointwise(f"aten::{_name}", to="float")(_fn)

# Integers are integral already.
_INTEGRAL = {
    "ceil": lambda x: lax.ceil(x),
    "floor": lambda x: lax.floor(x),
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "trunc": lambda x: trunc(x),
    "frac": lambda x: x - trunc(x),
}
for _name, _fn in _INTEGRAL.items():
    pointwise(f"aten::{_name}")(lambda x, _fn=_fn: _fn(x) if _is_float(x) else x)

_COMPARE = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
for _name, _fn in _COMPARE.items():
    pointwise(f"aten::{_name}.Tensor", f"aten::{_name}.Scalar", runtime=("other",), to="bool")(_fn)

_LOGICAL = {
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) ^ (y != 0),
    "logical_not": lambda x: x == 0,
    "isnan": lambda x: x != x,
    "isinf": lambda x: jnp.isinf(x),
    "isposinf": lambda x: jnp.isposinf(x),
    "isneginf": lambda x: jnp.isneginf(x),
    "signbit": lambda x: jnp.signbit(x) if _is_float(x) else x < 0,
}
for _name, _fn in _LOGICAL.items():
    pointwise(f"aten::{_name}", to="bool")(_fn)

_BITS = {"bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y, "bitwise_xor": lambda x, y: x ^ y}
for _name, _fn in _BITS.items():
    _forms = [f"aten::{_name}.{form}" for form in ("Tensor", "Scalar", "Scalar_Tensor")]
    pointwise(*_forms, runtime=("other", "self"))(_fn)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def erfinv(x: Any) -> Any:
    """XLA's, which is good to some units in the last place, and a Newton step on erf, or erfc near the ends."""
    value = lax.erf_inv(x)
    goal, size = jnp.abs(x), jnp.abs(value)
    short = jnp.where(goal < 0.5, goal - lax.erf(size), lax.erfc(size) - (1 - goal))
    step = short * lax.exp(size * size) * np.asarray(math.sqrt(math.pi) / 2, x.dtype)
    return jnp.where(goal < 1, value + jnp.sign(x) * step, value)


def trunc(x: Any) -> Any:
    return jnp.where(x < 0, lax.ceil(x), lax.floor(x))


@pointwise("aten::add.Tensor", "aten::add.Scalar", runtime=("other", "alpha"), static=("alpha",))
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    y = _times(alpha, y)
    return x | y if x.dtype == bool else x + y


@pointwise("aten::sub.Tensor", "aten::sub.Scalar", runtime=("other", "alpha"), static=("alpha",))
def sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - _times(alpha, y)


@pointwise("aten::rsub.Tensor", "aten::rsub.Scalar", runtime=("other", "alpha"), static=("alpha",))
def rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return y - _times(alpha, x)


def _times(alpha: Any, y: Any) -> Any:
    if isinstance(alpha, (bool, int, float)) and alpha == 1:
        return y
    return y * jnp.asarray(alpha, y.dtype)


@pointwise("aten::mul.Tensor", "aten::mul.Scalar", runtime=("other",))
def mul(x: Any, y: Any) -> Any:
    return x & y if x.dtype == bool else x * y


@pointwise("aten::div.Tensor", "aten::div.Scalar", runtime=("other",), to="float")
def div(x: Any, y: Any) -> Any:
    return x / y


def div_trunc(x: Any, y: Any) -> Any:
    return trunc(x / y) if _is_float(x) else _divide(x, y)[0]


def _divide(x: Any, y: Any) -> tuple[Any, Any]:
    """Quotient towards zero and remainder, of numbers of one type."""
    x, y = jnp.broadcast_arrays(x, y)
    if _is_float(x) or x.dtype.itemsize < 8:
        return lax.div(x, y), lax.rem(x, y)
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return _divide_unsigned(x, y)
    quotient, rest = _divide_unsigned(jnp.abs(x).astype(jnp.uint64), jnp.abs(y).astype(jnp.uint64))
    quotient, rest = quotient.astype(x.dtype), rest.astype(x.dtype)
    return jnp.where((x < 0) != (y < 0), -quotient, quotient), jnp.where(x < 0, -rest, rest)


def _divide_unsigned(x: Any, y: Any) -> tuple[Any, Any]:
    """Long division with digits from float32: XLA's own takes the TPU compiler 20 s, and a CPU longer to run.

    A digit is short of the quotient left by 2^-17 of it at most and never above it, as 2^-18 exceeds all rounding, so
    what is left is below 2^47, 2^30, 2^13 and 2.
    """
    inverse = np.float32(1 - 2.0**-18) / y.astype(jnp.float32)
    quotient, rest = jnp.zeros_like(x), x
    for _ in range(4):
        digit = (rest.astype(jnp.float32) * inverse).astype(jnp.uint64)
        quotient, rest = quotient + digit, rest - digit * y
    one_more = rest >= y
    return quotient + one_more.astype(x.dtype), jnp.where(one_more, rest - y, rest)


@pointwise("aten::floor_divide", "aten::floor_divide.Scalar", runtime=("other",))
def div_floor(x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    quotient, rest = _divide(x, y)
    off = ((rest != 0) & ((rest < 0) != (y < 0))).astype(x.dtype)
    if not _is_float(x):
        return quotient - off
    quotient = (x - rest) / y - off
    floor = lax.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(x), x / y), floor)
    return jnp.where(y == 0, x / y, floor)


@lowers("aten::div.Tensor_mode", "aten::div.Scalar_mode", runtime=("other",), rows="pointwise")
def div_mode(x: Any, y: Any, *, rounding_mode: str | None) -> Any:
    compute, result = pointwise_dtypes("same" if rounding_mode else "float", x, y)
    x, y = (dtypes.as_array(v, compute) for v in (x, y))
    quotient = {None: div, "trunc": div_trunc, "floor": div_floor}[rounding_mode](x, y)
    return quotient.astype(dtypes.to_jax(result))


@pointwise("aten::fmod.Tensor", "aten::fmod.Scalar", runtime=("other",))
def fmod(x: Any, y: Any) -> Any:
    return _divide(x, y)[1]


@pointwise(
    "aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", runtime=("self", "other")
)
def remainder(x: Any, y: Any) -> Any:
    rest = _divide(x, y)[1]
    return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@pointwise("aten::neg")
def neg(x: Any) -> Any:
    return lax.neg(x)


@pointwise("aten::abs", to="real")
def abs_(x: Any) -> Any:
    return jnp.abs(x)


@pointwise("aten::sign")
def sign(x: Any) -> Any:
    if x.dtype == bool:
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


@pointwise("aten::sgn")
def sgn(x: Any) -> Any:
    if not _is_complex(x):
        return sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


@pointwise("aten::positive")
def positive(x: Any) -> Any:
    return x


@pointwise("aten::bitwise_not")
def bitwise_not(x: Any) -> Any:
    return lax.bitwise_not(x)


@pointwise(
    "aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift.Tensor_Scalar",
    "aten::bitwise_left_shift.Scalar_Tensor", "aten::__lshift__.Tensor", "aten::__lshift__.Scalar",
    runtime=("self", "other"),
)  # fmt: skip
def left_shift(x: Any, y: Any) -> Any:
    return x * lax.exp2(y) if _is_float(x) else lax.shift_left(*jnp.broadcast_arrays(x, y))


@pointwise(
    "aten::bitwise_right_shift.Tensor", "aten::bitwise_right_shift.Tensor_Scalar",
    "aten::bitwise_right_shift.Scalar_Tensor", "aten::__rshift__.Tensor", "aten::__rshift__.Scalar",
    runtime=("self", "other"),
)  # fmt: skip
def right_shift(x: Any, y: Any) -> Any:
    if _is_float(x):
        return x / lax.exp2(y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(*jnp.broadcast_arrays(x, y))


@pointwise("aten::maximum")
def maximum(x: Any, y: Any) -> Any:
    return jnp.maximum(x, y)


@pointwise("aten::minimum")
def minimum(x: Any, y: Any) -> Any:
    return jnp.minimum(x, y)


@pointwise("aten::fmax")
def fmax(x: Any, y: Any) -> Any:
    return jnp.where(x != x, y, jnp.where(y != y, x, jnp.maximum(x, y)))


@pointwise("aten::fmin")
def fmin(x: Any, y: Any) -> Any:
    return jnp.where(x != x, y, jnp.where(y != y, x, jnp.minimum(x, y)))


@pointwise("aten::clamp", "aten::clamp.Tensor", runtime=("min", "max"))
def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


@pointwise("aten::clamp_min", "aten::clamp_min.Tensor", runtime=("min",))
def clamp_min(x: Any, low: Any) -> Any:
    return jnp.maximum(x, low)


@pointwise("aten::clamp_max", "aten::clamp_max.Tensor", runtime=("max",))
def clamp_max(x: Any, high: Any) -> Any:
    return jnp.minimum(x, high)


@pointwise("aten::where.self", runtime=("self", "other"), static=("condition",))
def where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition != 0, x, y)


@lowers("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", runtime=("value",), rows="pointwise")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value).astype(x.dtype), x)


@pointwise("aten::lerp.Scalar", "aten::lerp.Tensor", runtime=("weight",))
def lerp(x: Any, y: Any, weight: Any) -> Any:
    # Two forms, so that both ends are met exactly.
    return jnp.where(jnp.abs(weight) < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


@pointwise("aten::addcmul", runtime=("value",), static=("value",))
def addcmul(x: Any, a: Any, b: Any, *, value: Any) -> Any:
    return x + _times(value, a * b)


@pointwise("aten::addcdiv", runtime=("value",), static=("value",))
def addcdiv(x: Any, a: Any, b: Any, *, value: Any) -> Any:
    return x + _times(value, a) / b


@lowers("aten::pow.Tensor_Scalar", rows="pointwise")
def pow_scalar(x: Any, exponent: Any) -> Any:
    if not isinstance(exponent, (bool, int, float)) or _is_complex(x):
        return RULES["aten::pow.Tensor_Tensor"].fn(x, exponent)
    compute, result = pointwise_dtypes("same", x, exponent)
    x = x.astype(dtypes.to_jax(compute))
    if compute == torch.bool:
        return x | (not exponent)
    if not compute.is_floating_point or exponent in (0, 1, 2, 3, -1, -2):
        power = lax.integer_pow(x, int(exponent))
    elif abs(exponent) == 0.5:
        power = lax.sqrt(x) if exponent > 0 else lax.rsqrt(x)
    else:
        power = lax.pow(x, np.asarray(exponent, x.dtype))
    return power.astype(dtypes.to_jax(result))


@pointwise("aten::pow.Tensor_Tensor", "aten::pow.Scalar", runtime=("self",))
def pow_(x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    if _is_float(x):
        return lax.pow(x, y)
    return _complex_pow(x, y) if _is_complex(x) else _integer_pow(x, y)


def _complex_pow(x: Any, y: Any) -> Any:
    zero = x == 0
    size, angle = jnp.where(zero, 1, jnp.abs(x)), lax.atan2(x.imag, x.real)
    radius = lax.pow(size, y.real) * lax.exp(-y.imag * angle)
    phase = y.imag * lax.log(size) + y.real * angle
    power = lax.complex(radius * lax.cos(phase), radius * lax.sin(phase))
    return jnp.where(zero, jnp.where(y == 0, 1, jnp.where(y.real > 0, 0, jnp.nan)).astype(x.dtype), power)


def _integer_pow(x: Any, y: Any) -> Any:
    """Square and multiply, wrapping as integers do; of negative powers only those of 1 and -1 are not 0."""

    def step(state: Any) -> Any:
        power, square, rest = state
        return jnp.where(rest & 1 == 1, power * square, power), square * square, rest >> 1

    power, _, _ = lax.while_loop(lambda s: jnp.any(s[2] > 0), step, (jnp.ones_like(x), x, jnp.maximum(y, 0)))
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return power
    unit = jnp.where((x == -1) & (y & 1 == 1), -1, jnp.abs(x))
    return jnp.where(y < 0, jnp.where(jnp.abs(x) == 1, unit, 0), power)


@pointwise("aten::round.decimals", static=("decimals",))
def round_decimals(x: Any, *, decimals: int) -> Any:
    if not _is_float(x):
        return x
    scale = np.asarray(10.0 ** abs(decimals), x.dtype)
    half_even = lax.RoundingMethod.TO_NEAREST_EVEN
    return lax.round(x * scale, half_even) / scale if decimals >= 0 else lax.round(x / scale, half_even) * scale


@pointwise("aten::nan_to_num", static=("nan", "posinf", "neginf"))
def nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    if _is_complex(x):
        parts = (nan_to_num(p, nan, posinf, neginf) for p in (x.real, x.imag))
        return lax.complex(*parts)
    if not _is_float(x):
        return x
    limits = torch.finfo(dtypes.real(out().dtype))
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    x = jnp.where(x == jnp.inf, np.asarray(high, x.dtype), jnp.where(x == -jnp.inf, np.asarray(low, x.dtype), x))
    return jnp.where(x != x, np.asarray(nan or 0.0, x.dtype), x)


@pointwise("aten::atan2", to="float")
def atan2(x: Any, y: Any) -> Any:
    return lax.atan2(*jnp.broadcast_arrays(x, y))


@pointwise("aten::hypot")
def hypot(x: Any, y: Any) -> Any:
    return jnp.hypot(x, y)


@pointwise("aten::copysign.Tensor", "aten::copysign.Scalar", runtime=("other",), to="float")
def copysign(x: Any, y: Any) -> Any:
    return jnp.copysign(x, y)


@lowers("aten::nextafter", rows="pointwise")
def nextafter(x: Any, y: Any) -> Any:
    dtype = dtypes.result_type(x, y)  # the neighbour is one in this type, not in a wider one
    return lax.nextafter(*jnp.broadcast_arrays(dtypes.as_array(x, dtype), dtypes.as_array(y, dtype)))


@pointwise("aten::heaviside")
def heaviside(x: Any, at_zero: Any) -> Any:
    return jnp.where(x == 0, at_zero, (x > 0).astype(at_zero.dtype))


@pointwise("aten::gcd")
def gcd(x: Any, y: Any) -> Any:
    """Euclid's algorithm."""

    def step(state: Any) -> Any:
        a, b = state
        return jnp.where(b == 0, a, b), jnp.where(b == 0, 0, _divide(a, jnp.where(b == 0, 1, b))[1])

    return lax.while_loop(lambda s: jnp.any(s[1] != 0), step, tuple(jnp.broadcast_arrays(jnp.abs(x), jnp.abs(y))))[0]


@pointwise("aten::lcm")
def lcm(x: Any, y: Any) -> Any:
    common = gcd(x, y)
    return jnp.abs(_divide(x, jnp.where(common == 0, 1, common))[0] * y)


@pointwise("aten::logaddexp", to="float")
def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)); of complex operands on the sheet of the one with the larger real part."""
    first = x.real >= y.real
    high, low = jnp.where(first, x, y), jnp.where(first, y, x)
    both_infinite = (x == y) & jnp.isinf(x.real)
    return jnp.where(both_infinite, x, high + lax.log1p(lax.exp(low - high)))


@pointwise("aten::logaddexp2", to="float")
def logaddexp2(x: Any, y: Any) -> Any:
    scale = np.asarray(math.log(2), x.dtype)
    return logaddexp(x * scale, y * scale) / scale


@lowers("aten::frexp.Tensor", rows="pointwise")
def frexp(x: Any) -> Any:
    mantissa, exponent = jnp.frexp(x.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(x.dtype)))))
    return mantissa.astype(x.dtype), exponent.astype(jnp.int32)


@pointwise("aten::ldexp.Tensor", to="float")
def ldexp(x: Any, exponent: Any) -> Any:
    return x * lax.exp2(exponent)


@lowers("aten::complex", rows="pointwise")
def complex_(real: Any, imag: Any) -> Any:
    part = dtypes.to_jax(dtypes.real(out().dtype))
    return lax.complex(*jnp.broadcast_arrays(real.astype(part), imag.astype(part)))


@lowers("aten::polar", rows="pointwise")
def polar(size: Any, angle: Any) -> Any:
    return complex_(size * lax.cos(angle), size * lax.sin(angle))


@lowers("aten::angle", rows="pointwise")
def angle(x: Any) -> Any:
    dtype = dtypes.to_jax(out().dtype)
    if _is_complex(x):
        return lax.atan2(x.imag, x.real)
    value = jnp.where(x < 0, np.asarray(math.pi, dtype), np.asarray(0, dtype))
    return jnp.where(x != x, x.astype(dtype), value)


@lowers("aten::_conj", "aten::_conj_physical", "aten::conj_physical", rows="pointwise")
def conj(x: Any) -> Any:
    return lax.conj(x) if _is_complex(x) else x


@lowers("aten::_neg_view", rows="pointwise")
def neg_view(x: Any) -> Any:
    return lax.neg(x)
