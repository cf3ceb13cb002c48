"""Elementwise functions against torch on CPU: promotion, NaN and infinities, signs of division, wraparound, complex."""

import math

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
EDGES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.75, 88.0, -104.0, 1e-30]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def edges(dtype=torch.float32):
    return torch.tensor(EDGES, dtype=torch.float64).to(dtype)


def ints(dtype, *, zero=True):
    info = torch.iinfo(dtype)
    values = [info.max, info.min, info.max // 2, 7, 3, 1, *([0] if zero else []), *([-1, -7] if info.min else [])]
    return torch.tensor(values, dtype=dtype)


FUNCTIONS = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc erfinv exp exp2 expm1 floor frac "
    "isinf isnan isneginf isposinf log log10 log1p log2 logical_not neg rad2deg reciprocal round rsqrt "
    "sgn sigmoid sign signbit sin sinh sqrt tan tanh trunc angle nan_to_num"
)


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_functions_of_edges(name):
    op = getattr(aten, name).default
    check(op, edges()[edges().abs() != 88] if name in ("cosh", "sinh") else edges())
    if name not in ("isneginf", "isposinf", "frac"):
        check(op, torch.tensor(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["exp", "tanh", "round", "frac", "log1p"])
def test_functions_of_other_floats(name, dtype):
    check(getattr(aten, name).default, edges(dtype))


COMPLEX_FUNCTIONS = "exp log sqrt sin cos tanh sigmoid reciprocal abs angle sgn conj_physical"


@pytest.mark.parametrize("name", COMPLEX_FUNCTIONS.split())
def test_functions_of_complex(name):
    x = torch.complex(torch.tensor([0.5, -2.0, 0.0, 3.0]), torch.tensor([1.0, -0.5, 0.0, 0.0]))
    check(getattr(aten, name).default, x)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum", "bitwise_xor", "gcd"])
@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap(name, dtype):
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    x = ints(dtype)
    if name != "gcd":
        check(op, x[:, None], x)
    else:
        check(op, x[3:, None], x[3:])


@pytest.mark.parametrize("dtype", [*INTS, torch.float32])
@pytest.mark.parametrize("mode", ["trunc", "floor", None])
def test_division(dtype, mode):
    x = ints(dtype) if dtype in INTS else edges()
    y = ints(dtype, zero=False)[1 if dtype != torch.uint8 else 0 :] if dtype in INTS else edges()
    y = y[y != -1] if dtype in INTS else y  # the least integer divided by -1 has no quotient
    y = y[y != 0]
    check(aten.div.Tensor_mode, x[:, None], y, rounding_mode=mode)
    check(aten.remainder.Tensor, x[:, None], y)
    check(aten.fmod.Tensor, x[:, None], y)


def test_long_division():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, (20000,), generator=g)
    y = torch.randint(-(2**63), 2**63 - 1, (20000,), generator=g) >> torch.randint(0, 63, (20000,), generator=g)
    near = torch.arange(-3, 4)
    # Multiples of the divisor and their neighbours are where a digit is off by one.
    x = torch.cat([x, (y[:2000, None] * (x[:2000, None] >> 40)).add(near).view(-1)])
    y = torch.cat([y, y[:2000, None].expand(-1, 7).reshape(-1)])
    x, y = x[(y != 0) & (y != -1)], y[(y != 0) & (y != -1)]
    for mode in ("trunc", "floor"):
        check(aten.div.Tensor_mode, x, y, rounding_mode=mode)
    check(aten.remainder.Tensor, x, y)
    check(aten.fmod.Tensor, x, y)
    check(aten.gcd.default, x[:500] >> 20, y[:500] >> 20)
    check(aten.lcm.default, torch.tensor([4, -6, 0, 0]), torch.tensor([6, 4, 5, 0]))


def test_division_by_zero_and_scalars():
    x = edges()
    for mode in ("trunc", "floor", None):
        check(aten.div.Tensor_mode, x, torch.zeros(()), rounding_mode=mode)
        check(aten.div.Scalar_mode, torch.tensor([-7, 7]), 2, rounding_mode=mode)
        check(aten.div.Scalar_mode, torch.tensor([-7, 7]), 2.5, rounding_mode=mode)
    check(aten.div.Tensor, torch.tensor([1, 2]), torch.tensor([4, 0]))
    check(aten.remainder.Scalar_Tensor, -7, torch.tensor([3, -3, 5]))
    check(aten.floor_divide.default, torch.tensor([-7.5, 7.5]), torch.tensor([2, -2]))


PROMOTION = [
    (torch.tensor([1, 2], dtype=torch.uint8), 300),
    (torch.tensor([1, 2], dtype=torch.int8), torch.tensor(1000)),
    (torch.tensor([1, 2], dtype=torch.int8), torch.tensor([1000])),
    (torch.tensor([1, 2]), 1.5),
    (torch.tensor([1, 2]), torch.tensor(1.5, dtype=torch.float64)),
    (torch.tensor([1.0]), torch.tensor([2.0], dtype=torch.float64)),
    (torch.tensor([1.0]).bfloat16(), torch.tensor([2.0]).half()),
    (torch.tensor([1.0]).bfloat16(), torch.tensor(2.0, dtype=torch.float64)),
    (torch.tensor([True, False]), 2),
    (torch.tensor([True, False]), torch.tensor([True, True])),
    (torch.tensor([1.0]), 2j),
    (torch.tensor([1.0], dtype=torch.float64), 2j),
    (torch.empty(0, 3), torch.tensor([1, 2, 3])),
]


@pytest.mark.parametrize(("x", "y"), PROMOTION)
def test_promotion(x, y):
    check(aten.add.Tensor, x, y)
    check(aten.mul.Tensor, x, y)
    if isinstance(y, torch.Tensor):
        check(aten.eq.Tensor, x, y)


def test_alpha():
    check(aten.add.Tensor, torch.tensor([1, 2]), torch.tensor([3, 4]), alpha=-3)
    check(aten.sub.Tensor, torch.tensor([1.0]), torch.tensor([3, 4]), alpha=0.5)
    check(aten.rsub.Scalar, torch.tensor([1, 2], dtype=torch.uint8), 1, 2)
    check(aten.add.Tensor, torch.tensor([True, False]), torch.tensor([False, False]), alpha=True)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparison(name):
    packet = getattr(aten, name)
    check(packet.Tensor, edges()[:, None], edges())
    check(packet.Scalar, torch.tensor([0.1, 0.2]).bfloat16(), 0.1)
    check(packet.Scalar, torch.tensor([1, 255], dtype=torch.uint8), -1)
    check(packet.Tensor, torch.tensor([2**40, 2**53 + 1]), torch.tensor([2**40 + 1, 2**53]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_propagates_through_extrema_except_fmax(dtype):
    x = edges(dtype)
    for op in (aten.maximum, aten.minimum, aten.fmax, aten.fmin):
        check(op.default, x[:, None], x)
    check(aten.clamp.default, x, -1, 2)
    check(aten.clamp.default, x, None, 0.5)
    check(aten.clamp.default, x, 3, 1)
    check(aten.clamp.Tensor, x, x.flip(0), None)
    check(aten.clamp_min.default, x, NAN)


def test_clamp_of_integers_promotes():
    check(aten.clamp.default, torch.tensor([1, 5]), 2, None)
    check(aten.clamp.default, torch.tensor([1, 5]), 2.5, None)
    check(aten.clamp.Tensor, torch.tensor([1, 5]), torch.tensor(2.5), torch.tensor([4]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_shifts(dtype):
    x, by = ints(dtype), torch.tensor([0, 1, 5, 7, 8, 63, 64, 100], dtype=torch.int64).to(dtype)
    check(aten.bitwise_left_shift.Tensor, x[:, None], by)
    check(aten.bitwise_right_shift.Tensor, x[:, None], by)


def test_bits_of_bool():
    a, b = torch.tensor([True, False])[:, None], torch.tensor([True, False])
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        check(getattr(aten, name).Tensor, a, b)
    check(aten.bitwise_not.default, b)
    check(aten.bitwise_not.default, torch.tensor([1], dtype=torch.uint8))
    check(aten.logical_and.default, torch.tensor([0.0, 2.0, NAN]), torch.tensor([1, 0, 1]))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 7, -3.0])
def test_power_of_a_number(exponent):
    check(aten.pow.Tensor_Scalar, edges(), exponent)
    check(aten.pow.Tensor_Scalar, torch.tensor([3, -2]), exponent if exponent >= 0 or exponent % 1 else abs(exponent))


@pytest.mark.parametrize("exponent", [True, False, 2])
def test_powers_of_bools(exponent):
    x = torch.tensor([True, False])
    assert torch.equal((x.to("tpu") ** exponent).cpu(), x**exponent)


def test_powers():
    x = edges()
    check(aten.pow.Tensor_Tensor, x[:, None], x)
    check(aten.pow.Scalar, 2, torch.tensor([0, 1, 62, 63, 64]))
    check(aten.pow.Scalar, 2, torch.tensor([0.5, -1.0]))
    base = torch.tensor([0, 1, -1, 2, -3, 7])
    check(aten.pow.Tensor_Tensor, base[:, None], torch.tensor([0, 1, 2, 5, 63, 2**40 + 1]))
    check(aten.pow.Tensor_Tensor, base[1:, None], torch.tensor([-1, -2]))
    check(aten.pow.Tensor_Tensor, ints(torch.int8)[:, None], torch.tensor([0, 1, 2, 3], dtype=torch.int8))
    z = torch.tensor([0j, 1 + 2j, -3.0])
    check(aten.pow.Tensor_Tensor, z[:, None], torch.tensor([2, 1 + 1j, 0.5]))
    check(aten.pow.Tensor_Scalar, z, 2)


def test_where_and_masked_fill():
    c = torch.tensor([[True], [False]])
    check(aten.where.self, c, torch.tensor([1, 2]), torch.tensor(0.5))
    check(aten.where.self, c, torch.tensor([NAN, 2.0]), torch.zeros(2))
    check(aten.masked_fill.Scalar, torch.tensor([1, 2, 3], dtype=torch.uint8), c, -1)
    check(aten.masked_fill.Tensor, torch.tensor([1.0, 2.0]).half(), c, torch.tensor(-INF))


def test_fused_arithmetic():
    a, b, c = torch.rand(3, 1), torch.rand(4), torch.rand(())
    check(aten.addcmul.default, a, b, c, value=0.5)
    check(aten.addcdiv.default, a, b, c, value=-2)
    check(aten.addcmul.default, torch.tensor([1]), torch.tensor([2]), torch.tensor([3]), value=2)
    check(aten.lerp.Scalar, a, b, 1.0)
    check(aten.lerp.Tensor, a.half(), b.half(), torch.rand(4).half())
    assert lowered(aten.lerp.Scalar, torch.tensor([1e8]), torch.tensor([1.0]), 1.0).item() == 1


def test_rounding():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 1234.5678, NAN, INF])
    check(aten.round.default, x)
    for decimals in (0, 2, -2):
        check(aten.round.decimals, x, decimals=decimals)
    check(aten.round.default, torch.tensor([3]))


def test_pairs():
    x = edges()
    for op in (aten.atan2.default, aten.copysign.Tensor, aten.hypot.default, aten.nextafter.default):
        check(op, x[:, None], x)
    for op in (aten.logaddexp.default, aten.logaddexp2.default, aten.xlogy.Tensor, aten.special_xlog1py.default):
        check(op, x[:, None], x)
    check(aten.heaviside.default, x[:, None], x)
    check(aten.atan2.default, torch.tensor([1, -1]), torch.tensor([0, -1]))
    check(aten.ldexp.Tensor, torch.tensor([1.5, -2.0]), torch.tensor([3, -1]))
    check(aten.frexp.Tensor, torch.tensor([0.0, 1.0, -6.5, 1e-30]))
    check(aten.nan_to_num.default, x, -INF, INF, -INF)
    check(aten.nan_to_num.default, x.bfloat16())
    check(aten.nan_to_num.default, torch.tensor([complex(NAN, INF)]))


def test_complex_parts():
    check(aten.complex.default, torch.rand(3, 1), torch.rand(2))
    check(aten.polar.default, torch.rand(3), torch.rand(3))
    z = torch.randn(3, dtype=torch.complex64)
    check(aten._conj.default, z)
    check(aten.angle.default, torch.tensor([-1.0, 0.0, -0.0, NAN]))
    check(aten.abs.default, torch.tensor([-3 + 4j]))


def test_special_functions():
    x = torch.linspace(-4.3, 30, 60, dtype=torch.float64)
    names = (
        "lgamma digamma sinc i0 special_i0e special_i1 special_i1e special_log_ndtr special_entr "
        "special_erfcx special_spherical_bessel_j0 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
    )
    for name in names.split():
        check(getattr(aten, name).default, x)
        check(getattr(aten, name).default, edges()[3:])
    for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"):  # torch has these to seven digits
        check(getattr(aten, f"special_{name}").default, x.float())
    for n in (0, 1, 3):
        check(aten.polygamma.default, n, x)
    p = torch.tensor([0.0, 1e-6, 0.3, 1.0, 2.0], dtype=torch.float64)
    check(aten.special_ndtri.default, p)
    check(aten.logit.default, p)
    check(aten.logit.default, p, 0.1)
    a, b = torch.tensor([[0.5], [2.0], [30.0]]), torch.tensor([0.0, 0.1, 3.0, 40.0])
    check(aten.igamma.default, a, b)
    check(aten.igammac.default, a, b)
    s, q = torch.tensor([[1.0], [0.5], [2.0], [3.5]]), torch.tensor([1.0, 0.0, -2.0, 7.5])
    check(aten.special_zeta.default, s, q)


POLYNOMIALS = (
    "chebyshev_polynomial_t shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p"
)


@pytest.mark.parametrize("name", POLYNOMIALS.split())
def test_polynomials(name):
    op = getattr(aten, f"special_{name}")
    check(op.default, torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None], torch.tensor([-1, 0, 1, 2, 5]))
    check(op.n_scalar, torch.linspace(-1, 1, 5), 3)


def test_erfinv_near_its_ends() -> None:
    x = torch.cat([torch.linspace(-0.999999, 0.999999, 501), torch.tensor([1e-20, -0.0, 1, -1, 2, NAN])])
    got, exact = lowered(aten.erfinv.default, x), torch.erfinv(x.double())
    torch.testing.assert_close(got.double(), exact, rtol=5e-7, atol=0, equal_nan=True)


def test_nextafter_promotes_first() -> None:
    check(aten.nextafter.default, torch.tensor([1.0, -2.0]), torch.tensor([3.0, -5.0], dtype=torch.float64))
    check(aten.nextafter.default, torch.tensor([1.0, -2.0]).bfloat16(), torch.tensor(3.0).bfloat16())


def test_polygamma_next_to_its_poles() -> None:
    x = torch.tensor([-0.127, -3.9, 0.03, 0.3, -2.02])
    for n in (1, 2, 3):
        got, exact = lowered(aten.polygamma.default, n, x), torch.polygamma(n, x.double())
        torch.testing.assert_close(got.double(), exact, rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_a_bool_times_infinity_is_a_product(dtype: torch.dtype) -> None:
    mask, x = torch.tensor([True, False, False]), torch.tensor([float("inf"), float("inf"), float("nan")], dtype=dtype)
    for fn in (lambda m, x: m * x, lambda m, x: x * m, lambda m, x: m.to(x.dtype) * x, lambda m, x: m / (x * 0)):
        expected = fn(mask, x)
        for run in (fn, torch.compile(fn, backend="tpu")):
            torch.testing.assert_close(run(mask.to("tpu"), x.to("tpu")).cpu(), expected, equal_nan=True)
    torch.testing.assert_close((mask.to("tpu") / 0).cpu(), mask / 0, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("modified_bessel_k0", [1e3, 1e20, 3.4e38]),
        ("modified_bessel_k1", [1e3, 1e20, 3.4e38]),
        ("scaled_modified_bessel_k0", [1e3, 1e10, 1e20, 1e37, 3.4e38]),
        ("scaled_modified_bessel_k1", [1e3, 1e10, 1e20, 1e37, 3.4e38]),
        ("log_ndtr", [-1e3, -1.0, 1, 5, 8, 9, INF]),
    ],
)
def test_small_values_are_as_exact_as_large_ones(name: str, x: list[float]) -> None:
    op = getattr(aten, f"special_{name}").default
    got, exact = lowered(op, torch.tensor(x)), op(torch.tensor(x, dtype=torch.float64))
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-40)
