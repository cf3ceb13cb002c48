"""Special functions: gamma, Bessel, normal distribution, zeta, orthogonal polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._jax import jnp, jsp, lax
from .pointwise import trunc
from .registry import pointwise

_ONE = {
    "lgamma": lambda x: lax.lgamma(x),
    "digamma": lambda x: _digamma(x),
    "sinc": lambda x: jnp.sinc(x),
    "i0": lambda x: jsp.special.i0(x),
    "special_modified_bessel_i0": lambda x: jsp.special.i0(x),
    "special_i0e": lambda x: lax.bessel_i0e(x),
    "special_i1": lambda x: jsp.special.i1(x),
    "special_modified_bessel_i1": lambda x: jsp.special.i1(x),
    "special_i1e": lambda x: lax.bessel_i1e(x),
    "special_ndtri": lambda x: jsp.special.ndtri(x),
    "special_log_ndtr": lambda x: _log_ndtr(x * math.sqrt(0.5)),
    "special_entr": lambda x: jnp.where(x > 0, -x * lax.log(x), jnp.where(x < 0, -jnp.inf, x * 0)),
    "special_erfcx": lambda x: jsp.special.erfcx(x),
    "special_spherical_bessel_j0": lambda x: jnp.where(jnp.isinf(x), 0, jnp.sinc(x / math.pi)),
}
for _name, _fn in _ONE.items():
    pointwise(f"aten::{_name}", to="float")(_fn)


def _log_ndtr(t: Any) -> Any:
    left = lax.log(jsp.special.erfcx(jnp.maximum(-t, 0)) / 2) - t * t
    return jnp.where(t < -math.sqrt(0.5), left, lax.log1p(-lax.erfc(t) / 2))


def _digamma(x: Any) -> Any:
    # A pole has two sides at zero and none at the other negative integers.
    value = jnp.where(x == -jnp.inf, jnp.nan, lax.digamma(x))
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), value)


@pointwise("aten::polygamma", to="float", static=("n",))
def polygamma(n: int, x: Any) -> Any:
    if n == 0:
        return _digamma(x)
    order = n + 1
    zeta = _zeta(jnp.full_like(x, order), x, lambda base: 1 / lax.integer_pow(base, order))
    return (-1) ** order * math.gamma(order) * zeta


@pointwise("aten::igamma", to="float")
def igamma(a: Any, x: Any) -> Any:
    return lax.igamma(*jnp.broadcast_arrays(a, x))


@pointwise("aten::igammac", to="float")
def igammac(a: Any, x: Any) -> Any:
    return lax.igammac(*jnp.broadcast_arrays(a, x))


@pointwise(
    "aten::special_zeta", "aten::special_zeta.self_scalar", "aten::special_zeta.other_scalar",
    runtime=("self", "other"), to="float",
)  # fmt: skip
def zeta(x: Any, q: Any) -> Any:
    x, q = jnp.broadcast_arrays(x, q)
    return _zeta(x, q, lambda base: lax.pow(base, -x))


def _zeta(x: Any, q: Any, term: Callable[[Any], Any]) -> Any:
    """Hurwitz's zeta, term(base) = base^-x.

    Terms of a base below 1 are summed one by one: of a negative one, which needs an integral x, no power series is
    known, and the one next to 0 decides the value.
    """
    pole = (q <= 0) & (q == lax.floor(q))

    def step(state: Any) -> Any:
        base, total = state
        below = base < 1
        return jnp.where(below, base + 1, base), jnp.where(below, total + term(base), total)

    base, total = lax.while_loop(lambda s: jnp.any(s[0] < 1), step, (jnp.where(pole, 1, q), jnp.zeros_like(q)))
    value = jnp.where((q < 0) & (x != lax.floor(x)), jnp.nan, total + lax.zeta(x, base))
    return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, jnp.where(pole, jnp.inf, value)))


@pointwise(
    "aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", runtime=("self", "other"), to="float"
)
def xlogy(x: Any, y: Any) -> Any:
    return jnp.where(y != y, y, jnp.where(x == 0, 0, x * lax.log(y)))


@pointwise(
    "aten::special_xlog1py", "aten::special_xlog1py.self_scalar", "aten::special_xlog1py.other_scalar",
    runtime=("self", "other"), to="float",
)  # fmt: skip
def xlog1py(x: Any, y: Any) -> Any:
    return jnp.where(y != y, y, jnp.where(x == 0, 0, x * lax.log1p(y)))


# --- Bessel and Airy functions: integrals by the trapezoidal rule, which converges geometrically for these

_EULER = 0.57721566490153286


@pointwise("aten::special_bessel_j0", to="float")
def bessel_j0(x: Any) -> Any:
    size = jnp.abs(x)
    return jnp.where(size > 25, _hankel(size, 0)[0], _neumann(size, 0)[0])


@pointwise("aten::special_bessel_j1", to="float")
def bessel_j1(x: Any) -> Any:
    size = jnp.abs(x)
    return jnp.sign(x) * jnp.where(size > 25, _hankel(size, 1)[0], _neumann(size, 1)[0])


@pointwise("aten::special_bessel_y0", to="float")
def bessel_y0(x: Any) -> Any:
    j0, series = _neumann(x, 0)
    near = (2 / math.pi) * ((lax.log(x / 2) + _EULER) * j0 - series)
    return _right_half(x, jnp.where(x > 25, _hankel(x, 0)[1], near), -jnp.inf)


@pointwise("aten::special_bessel_y1", to="float")
def bessel_y1(x: Any) -> Any:
    j1, series = _neumann(x, 1)
    j0, _ = _neumann(x, 0)
    near = (2 / math.pi) * ((lax.log(x / 2) + (_EULER - 1)) * j1 - series - j0 / x)
    return _right_half(x, jnp.where(x > 25, _hankel(x, 1)[1], near), -jnp.inf)


def _right_half(x: Any, value: Any, at_zero: float) -> Any:
    return jnp.where(x == 0, at_zero, jnp.where(x < 0, jnp.nan, value))


def _neumann(x: Any, order: int) -> tuple[Any, Any]:
    """For 0 <= x <= 25: J and sum (-1)^k (order + 2k) / (k (order + k)) J_(order + 2k), the other part of Y.

    J_n(x) is the mean over t in [0, pi) of cos(n t) cos(x sin t) for even n, of sin(n t) sin(x sin t) for odd n.
    """
    t = (np.arange(64) + 0.5) * (math.pi / 64)
    angular = np.sin if order else np.cos
    terms = [(-1) ** k * (order + 2 * k) / (k * (order + k)) * angular((order + 2 * k) * t) for k in range(1, 31)]
    inner = jnp.minimum(x, 25)[..., None] * np.sin(t).astype(x.dtype)
    wave = lax.sin(inner) if order else lax.cos(inner)
    return tuple(jnp.mean(wave * np.asarray(w, x.dtype), -1) for w in (angular(order * t), sum(terms)))


def _hankel(x: Any, order: int) -> tuple[Any, Any]:
    """J and Y for x > 25, by Hankel's expansion."""
    x = jnp.maximum(x, 25)
    p, q = _hankel_series(x, order)
    phase = x - (order / 2 + 0.25) * math.pi
    c, s, size = lax.cos(phase), lax.sin(phase), lax.sqrt(2 / (math.pi * x))
    return jnp.where(jnp.isinf(x), 0, size * (p * c - q * s)), jnp.where(jnp.isinf(x), 0, size * (p * s + q * c))


def _hankel_series(x: Any, order: float) -> tuple[Any, Any]:
    p, q, a = 0.0, 0.0, 1.0
    for k in range(16):
        sign = (-1) ** (k // 2)
        term = sign * a / x**k
        p, q = (p + term, q) if k % 2 == 0 else (p, q + term)
        a *= (4 * order**2 - (2 * k + 1) ** 2) / (8 * (k + 1))
    return p, q


@pointwise("aten::special_modified_bessel_k0", to="float")
def modified_bessel_k0(x: Any) -> Any:
    return _right_half(x, jnp.where(x > 2, lax.exp(-x) * _scaled_k(x, 0), _k0_near(x)), jnp.inf)


@pointwise("aten::special_scaled_modified_bessel_k0", to="float")
def scaled_modified_bessel_k0(x: Any) -> Any:
    return _right_half(x, jnp.where(x > 2, _scaled_k(x, 0), lax.exp(x) * _k0_near(x)), jnp.inf)


@pointwise("aten::special_modified_bessel_k1", to="float")
def modified_bessel_k1(x: Any) -> Any:
    return _right_half(x, jnp.where(x > 2, lax.exp(-x) * _scaled_k(x, 1), _k1_near(x)), jnp.inf)


@pointwise("aten::special_scaled_modified_bessel_k1", to="float")
def scaled_modified_bessel_k1(x: Any) -> Any:
    return _right_half(x, jnp.where(x > 2, _scaled_k(x, 1), lax.exp(x) * _k1_near(x)), jnp.inf)


def _scaled_k(x: Any, order: float, lowest: float = 2.0) -> Any:
    """exp(x) K(x) for x >= lowest: the integral over t > 0 of exp(-x (cosh t - 1)) cosh(order t)."""
    x = jnp.maximum(x, lowest)
    # Beyond the last node the integrand is below exp(-40); nodes are spread as the integrand narrows. With the root
    # of x, as cosh t - 1 = 2 sinh(t / 2)^2 vanishes for large ones.
    root = lax.sqrt(x)[..., None]
    last = 2 * jnp.arcsinh(math.sqrt(20) / root)
    t = last * (np.arange(48) / 47).astype(x.dtype)
    weight = np.where(np.arange(48) == 0, 0.5, 1.0).astype(x.dtype)
    value = lax.exp(-2 * (root * lax.sinh(t / 2)) ** 2) * lax.cosh(order * t)
    return jnp.where(jnp.isinf(x), 0, jnp.sum(value * weight, -1) * last[..., 0] / 47)


def _k0_near(x: Any) -> Any:
    q, harmonic, i0, rest = jnp.minimum(x * x / 4, 1), 0.0, 1.0, 0.0
    for k in range(1, 15):
        harmonic += 1 / k
        power = q**k * (1 / math.factorial(k) ** 2)
        i0, rest = i0 + power, rest + harmonic * power
    return rest - (lax.log(x / 2) + _EULER) * i0


def _k1_near(x: Any) -> Any:
    q, psi, i1, rest = jnp.minimum(x * x / 4, 1), -_EULER, 0.0, 0.0
    for k in range(15):
        power = q**k * (1 / (math.factorial(k) * math.factorial(k + 1)))
        i1, rest = i1 + power, rest + (2 * psi + 1 / (k + 1)) * power
        psi += 1 / (k + 1)
    return 1 / x + lax.log(x / 2) * (x / 2) * i1 - (x / 4) * rest


@pointwise("aten::special_airy_ai", to="float")
def airy_ai(x: Any) -> Any:
    size = jnp.abs(x)
    zeta = (2 / 3) * size * lax.sqrt(size)
    right = lax.sqrt(size / 3) / math.pi * lax.exp(-zeta) * _scaled_k(zeta, 1 / 3, 1.0)
    p, q = _hankel_series(jnp.maximum(zeta, 40), 1 / 3)
    phase = zeta - math.pi / 4
    left = (p * lax.cos(phase) - q * lax.sin(phase)) / lax.sqrt(math.pi * lax.sqrt(size))
    value = jnp.where(x > 1.5, right, jnp.where(x < -16, left, _airy_integral(jnp.clip(x, -16, 1.5))))
    return jnp.where(jnp.isinf(x), 0, value)


def _airy_integral(x: Any) -> Any:
    """(1 / 2 pi) times the integral of exp(i (s^3 / 3 + x s)) over a path near steepest descent through its saddles."""
    square = jnp.maximum(-x, 0)[..., None]
    u = np.linspace(0, 9.6, 129).astype(x.dtype)
    root = lax.sqrt(u * u + 3 * square + 4)
    height = (u * u - square) / root
    slope = u * (2 - height / root) / root
    # i (s^3 / 3 + x s) at s = u + i height
    x = x[..., None]
    real = height * (height * height / 3 - u * u - x)
    imag = u * (u * u / 3 - height * height + x)
    value = lax.exp(real) * (lax.cos(imag) - slope * lax.sin(imag))
    weight = np.where(np.arange(129) == 0, 0.5, 1.0).astype(value.dtype)
    return jnp.sum(value * weight, -1) * (9.6 / 128 / math.pi)


# --- orthogonal polynomials, by their recurrences

# name -> (p1(x), p[k+1](x, k, p[k], p[k-1]))
_CHEBYSHEV = lambda x, k, p, q: 2 * x * p - q  # noqa: E731
_POLYNOMIALS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "chebyshev_polynomial_t": (lambda x: x, _CHEBYSHEV),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _CHEBYSHEV),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _CHEBYSHEV),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _CHEBYSHEV),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}
for _name in "tuvw":
    _first, _next = _POLYNOMIALS[f"chebyshev_polynomial_{_name}"]
    _POLYNOMIALS[f"shifted_chebyshev_polynomial_{_name}"] = (
        lambda x, _first=_first: _first(2 * x - 1),
        lambda x, k, p, q: _CHEBYSHEV(2 * x - 1, k, p, q),
    )


def _polynomial(first: Callable[..., Any], following: Callable[..., Any]) -> Callable[..., Any]:
    def value(x: Any, n: Any) -> Any:
        x, n = jnp.broadcast_arrays(x, trunc(n))
        one = jnp.ones_like(x)

        def step(state: Any) -> Any:
            k, p, q, result = state
            p, q = following(x, k, p, q), p
            return k + 1, p, q, jnp.where(n == k + 1, p, result)

        start = (jnp.ones((), x.dtype), first(x), one, jnp.where(n == 0, one, jnp.where(n == 1, first(x), 0)))
        return lax.while_loop(lambda s: s[0] < jnp.max(n, initial=0), step, start)[3]

    return value


for _name, (_first, _next) in _POLYNOMIALS.items():
    _forms = [f"aten::special_{_name}{form}" for form in ("", ".n_scalar", ".x_scalar")]
    pointwise(*_forms, runtime=("x", "n"), to="float")(_polynomial(_first, _next))
