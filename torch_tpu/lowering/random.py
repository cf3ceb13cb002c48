"""Random numbers: Philox4x32-10 counted per element, and the distributions made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import dtypes
from ._jax import jax, jnp, lax
from .context import context, out
from .reductions import extremum
from .registry import lowers, pointwise

# --- the generator


@dataclass(frozen=True)
class Draw:
    """The random words of one op of `count` elements.

    Word i of stream s is lane (o + i) % 4 of Philox4x32-10(seed, counter (o + i) // 4 with s in its third word), o the
    generator's offset. It depends on the element only, not on how a program or the devices split the elements.
    """

    seed: Any
    offset: Any
    count: int

    def words(self, stream: Any = 0) -> Any:
        """uint32[count]."""
        a, b, c, d = self.blocks(stream)
        return jnp.where(self.lane() < 2, self.alternate(a, b), self.alternate(c, d))

    def wide(self, stream: int = 0) -> Any:
        """uint64[count], of two streams."""
        return _u64(self.words(2 * stream + 1), self.words(2 * stream))

    def lane(self) -> Any:
        return self._place() & np.uint32(3)

    def alternate(self, even: Any, odd: Any) -> Any:
        """One value in lanes 0 and 2, another in lanes 1 and 3."""
        return jnp.where(self.lane() & np.uint32(1) == 0, even, odd)

    def blocks(self, stream: Any) -> list[Any]:
        """The four words uint32[count] of each element's block.

        Four elements compute the same block: then all of it is one fusion, while words of one block laid side by side
        cost a TPU a padded copy and its compiler half a minute.
        """
        first = self.offset >> np.uint64(2)
        low, high = first.astype(jnp.uint32), (first >> np.uint64(32)).astype(jnp.uint32)
        block = low + (self._place() >> np.uint32(2))
        high = high + (block < low).astype(jnp.uint32)
        return philox(self.seed, [block, high, jnp.full_like(block, stream), jnp.zeros_like(block)])

    def _place(self) -> Any:
        return lax.iota(jnp.uint32, self.count) + (self.offset & np.uint64(3)).astype(jnp.uint32)


def draw(count: int) -> Draw:
    """The words of the op being lowered; the generator moves on by `count` rounded up to 4."""
    ctx = context()
    offset = _u64(ctx.rng[3], ctx.rng[2]) + np.uint64(ctx.rng_used)
    ctx.rng_used += -(-count // 4) * 4
    return Draw(ctx.rng[:2], offset, count)


def philox(key: Any, counter: list[Any]) -> list[Any]:
    """Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3)."""
    k0, k1 = key[0], key[1]
    c0, c1, c2, c3 = counter
    for _ in range(10):
        (high0, low0), (high1, low1) = _multiply(0xD2511F53, c0), _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return [c0, c1, c2, c3]


def _multiply(m: int, x: Any) -> tuple[Any, Any]:
    """High and low word of a product of 32-bit words."""
    product = x.astype(jnp.uint64) * np.uint64(m)
    return (product >> np.uint64(32)).astype(jnp.uint32), product.astype(jnp.uint32)


def _u64(high: Any, low: Any) -> Any:
    return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)


# --- uniform, normal and integer elements


def _unit(d: Draw, dtype: torch.dtype, stream: int = 0) -> Any:
    """[count] values of [0, 1), multiples of the dtype's epsilon / 2, so that none rounds to 1."""
    bits = _mantissa(dtype)
    if dtype == torch.float64:
        return (d.wide(stream) >> np.uint64(11)).astype(jnp.float64) * 2.0**-53
    return (d.words(stream) >> np.uint32(32 - bits)).astype(jnp.float32) * np.float32(2.0**-bits)


def _open(d: Draw, dtype: torch.dtype, stream: int = 0) -> Any:
    """[count] values of (0, 1), in the type to compute in."""
    if dtype == torch.float64:
        return _open64(d.wide(stream))
    return _open32(d.words(stream))


def _open64(word: Any) -> Any:
    return ((word >> np.uint64(12)).astype(jnp.float64) + 0.5) * 2.0**-52


def _open32(word: Any) -> Any:
    return jnp.minimum(word.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33), np.float32(1 - 2.0**-24))


def _mantissa(dtype: torch.dtype) -> int:
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def _standard_normal(d: Draw, dtype: torch.dtype, stream: Any = 0) -> Any:
    """[count] values, by the Box-Muller transform of lanes (0, 1) and (2, 3)."""
    first, second = _pair(d, stream)
    if dtype == torch.float64:
        more = _pair(d, stream + 1)
        u, v = _open64(_u64(more[0], first)), _open64(_u64(more[1], second))
    else:
        u, v = _open32(first), _open32(second)
    quarter = d.alternate(np.asarray(0, u.dtype), np.asarray(math.pi / 2, u.dtype))
    return lax.sqrt(-2 * lax.log(u)) * lax.cos(v * (2 * math.pi) - quarter)


def _pair(d: Draw, stream: Any) -> tuple[Any, Any]:
    """The words of lanes 0 and 1, or 2 and 3, whichever the element is in."""
    a, b, c, e = d.blocks(stream)
    left = d.lane() < 2
    return jnp.where(left, a, c), jnp.where(left, b, e)


def _integers(first: Any, last: Any) -> Any:
    """The promised output filled from first to last, both included; bias at most 2^-32 of a value's probability."""
    promised = out()
    d = draw(promised.numel())
    first, last = jnp.asarray(first, jnp.int64), jnp.asarray(last, jnp.int64)
    size = (last - first).astype(jnp.uint64) + np.uint64(1)
    if promised.dtype.itemsize == 8 or promised.dtype.is_floating_point:
        word = d.wide()
        part = jnp.where(size == 0, word, _multiply_high(word, size))
    else:
        part = (d.words().astype(jnp.uint64) * size) >> np.uint64(32)
    return dtypes.cast(first + part.astype(jnp.int64), promised.dtype).reshape(tuple(promised.shape))


def _multiply_high(x: Any, y: Any) -> Any:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_high, x_low, y_high, y_low = x >> half, x & mask, y >> half, y & mask
    middle = x_high * y_low + (x_low * y_low >> half)
    rest = x_low * y_high + (middle & mask)
    return x_high * y_high + (middle >> half) + (rest >> half)


def _reals(sample: Any, finish: Any = lambda x: x) -> Any:
    """The promised output filled with finish(sample(draw, dtype)); complex elements are two reals."""
    promised = out()
    real = dtypes.real(promised.dtype)
    parts = 2 if promised.dtype.is_complex else 1
    compute = real if real.is_floating_point else torch.float32
    value = sample(draw(promised.numel() * parts), compute).reshape(*promised.shape, *([2] if parts == 2 else []))
    value = dtypes.cast(finish(value), real)
    return lax.complex(value[..., 0], value[..., 1]) if parts == 2 else value


# --- ops


@lowers("aten::rand", "aten::rand.generator", "aten::rand_like", "aten::rand_like.generator", random=True)
def rand(*_: Any, **__: Any) -> Any:
    return _reals(_unit)


@lowers("aten::uniform", random=True, runtime=("from", "to"))
def uniform(x: Any, low: Any, high: Any) -> Any:
    def stretch(unit: Any) -> Any:
        # Rounding to the output's type may reach the upper bound, which is not in the range.
        dtype = dtypes.to_jax(dtypes.real(out().dtype))
        value = (unit * jnp.asarray(high - low, unit.dtype) + jnp.asarray(low, unit.dtype)).astype(dtype)
        return jnp.where(value >= jnp.asarray(high, dtype), jnp.asarray(low, dtype), value)

    return _reals(_unit, stretch)


@lowers("aten::randn", "aten::randn.generator", "aten::randn_like", "aten::randn_like.generator", random=True)
def randn(*_: Any, **__: Any) -> Any:
    return _normal(0.0, math.sqrt(0.5) if out().dtype.is_complex else 1.0)


@lowers("aten::normal_functional", random=True, runtime=("mean", "std"))
def normal(x: Any, mean: Any, std: Any) -> Any:
    return _normal(mean, std * math.sqrt(0.5) if out().dtype.is_complex else std)


@lowers(
    "aten::normal.Tensor_Tensor", "aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.float_float",
    random=True, runtime=("mean", "std"),
)  # fmt: skip
def normal_of(mean: Any, std: Any, *_: Any, **__: Any) -> Any:
    return _normal(mean, std)


def _normal(mean: Any, std: Any) -> Any:
    return _reals(_standard_normal, lambda z: z * jnp.asarray(std).astype(z.dtype) + jnp.asarray(mean).astype(z.dtype))


@lowers("aten::log_normal", random=True, runtime=("mean", "std"))
def log_normal(x: Any, mean: Any, std: Any) -> Any:
    return _reals(_standard_normal, lambda z: lax.exp(z * jnp.asarray(std, z.dtype) + jnp.asarray(mean, z.dtype)))


@lowers("aten::exponential", random=True, runtime=("lambd",))
def exponential(x: Any, rate: Any) -> Any:
    return _reals(_open, lambda u: -lax.log(u) / jnp.asarray(rate, u.dtype))


@lowers("aten::cauchy", random=True, runtime=("median", "sigma"))
def cauchy(x: Any, median: Any, sigma: Any) -> Any:
    return _reals(
        _open, lambda u: jnp.asarray(median, u.dtype) + jnp.asarray(sigma, u.dtype) * lax.tan(math.pi * (u - 0.5))
    )


@lowers("aten::geometric", random=True, runtime=("p",))
def geometric(x: Any, p: Any) -> Any:
    return _reals(_open, lambda u: jnp.maximum(lax.ceil(lax.log(u) / lax.log1p(-jnp.asarray(p, u.dtype))), 1))


@lowers("aten::random.from", random=True, runtime=("from", "to"))
def random_from(x: Any, first: Any, end: Any) -> Any:
    return _integers(first, 2**63 - 1 if end is None else end - 1)


@lowers("aten::random.to", random=True, runtime=("to",))
def random_to(x: Any, end: Any) -> Any:
    return _integers(0, end - 1)


@lowers("aten::random", random=True)
def random(x: Any) -> Any:
    dtype = out().dtype
    if dtype.is_floating_point:
        last = 2 ** _mantissa(dtype)
    else:
        last = 1 if dtype == torch.bool else min(torch.iinfo(dtype).max, 2**63 - 1)
    return _integers(0, last)


@lowers("aten::randint", "aten::randint.generator", random=True, runtime=("high",))
def randint(high: Any, size: Any, **_: Any) -> Any:
    return _integers(0, high - 1)


@lowers("aten::randint.low", "aten::randint.low_generator", random=True, runtime=("low", "high"))
def randint_low(low: Any, high: Any, size: Any, **_: Any) -> Any:
    return _integers(low, high - 1)


@lowers(
    "aten::randint_like", "aten::randint_like.generator", "aten::randint_like.Tensor",
    "aten::randint_like.Tensor_generator", random=True, runtime=("high",),
)  # fmt: skip
def randint_like(x: Any, high: Any, **_: Any) -> Any:
    return _integers(0, high - 1)


@lowers(
    "aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype", random=True, runtime=("low", "high")
)  # fmt: skip
def randint_like_low(x: Any, low: Any, high: Any, **_: Any) -> Any:
    return _integers(low, high - 1)


@lowers("aten::randperm", "aten::randperm.generator", random=True)
def randperm(n: int, **_: Any) -> Any:
    """The order of n random 64-bit keys."""
    d = draw(n)
    _, _, order = lax.sort((d.words(0), d.words(1), lax.iota(jnp.int32, n)), num_keys=2)
    return dtypes.cast(order, out().dtype)


@lowers("aten::bernoulli", random=True)
def bernoulli(p: Any) -> Any:
    return _coins(p)


@lowers("aten::bernoulli.p", "aten::bernoulli.Tensor", random=True, runtime=("p",))
def bernoulli_p(x: Any, p: Any) -> Any:
    return _coins(p)


def _coins(p: Any) -> Any:
    """1 with probability p, else 0, in the promised output."""
    promised = out()
    dtype = torch.float64 if not dtypes.is_number(p) and p.dtype == jnp.float64 else torch.float32
    unit = _unit(draw(promised.numel()), dtype).reshape(tuple(promised.shape))
    return dtypes.cast(unit < jnp.asarray(p).astype(unit.dtype), promised.dtype)


@lowers("aten::native_dropout", random=True)
def native_dropout(x: Any, p: float, train: bool | None) -> Any:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={1 - p}")
    if train is False or x.size == 0:
        return x, jnp.ones(x.shape, bool)
    kept = _unit(draw(x.size), torch.float32).reshape(x.shape) < np.float32(1 - p)
    return jnp.where(kept, x * np.asarray(1 / (1 - p) if p < 1 else 0, x.dtype), 0), kept


@pointwise("aten::native_dropout_backward", static=("mask", "scale"), to="float")
def native_dropout_backward(grad: Any, mask: Any, scale: float) -> Any:
    return jnp.where(mask, grad * scale, 0)


@lowers("aten::rrelu_with_noise_functional", random=True)
def rrelu_with_noise(x: Any, noise: Any, lower: float, upper: float, training: bool) -> Any:
    if not training:
        return jnp.where(x > 0, x, x * np.asarray((lower + upper) / 2, x.dtype)), noise
    unit = _unit(draw(x.size), out().dtype).reshape(x.shape)
    slope = jnp.where(x <= 0, (unit * (upper - lower) + lower).astype(x.dtype), jnp.ones((), x.dtype))
    return x * slope, slope


@lowers("aten::multinomial", random=True)
def multinomial(weights: Any, num_samples: int, replacement: bool) -> Any:
    """weights: (categories,) or (rows, categories), not normalised."""
    w = weights.astype(dtypes.to_jax(dtypes.opmath(dtypes.to_torch(weights.dtype)))).reshape(-1, weights.shape[-1])
    if replacement and num_samples > 1:
        index = _inverse_cdf(w, num_samples)
    else:
        # The largest of w / Exp(1) is category k with probability w[k] / sum(w); the next ones are without replacement.
        race = w / -lax.log(_open(draw(w.size), dtypes.to_torch(w.dtype)).reshape(w.shape))
        if num_samples == 1:
            _, index = extremum(race, 1, True, True)
        else:
            _, index = lax.top_k(race, num_samples)
    return index.astype(jnp.int64).reshape(tuple(out().shape))


def _inverse_cdf(w: Any, num_samples: int) -> Any:
    rows, categories = w.shape
    cdf = lax.cumsum(w, axis=1)
    unit = _unit(draw(rows * num_samples), dtypes.to_torch(w.dtype)).reshape(rows, num_samples)
    index = jax.vmap(lambda c, p: jnp.searchsorted(c, p, side="right"))(cdf, unit * cdf[:, -1:])
    last = jnp.max(jnp.where(w > 0, lax.iota(jnp.int32, categories), 0), 1, keepdims=True)
    return jnp.minimum(index.astype(jnp.int32), last)


# --- distributions by rejection: turn t of the loop draws from streams of its own


@lowers("aten::poisson", random=True)
def poisson(rate: Any) -> Any:
    """Small rates by inversion, large ones by Hormann's transformed rejection (PTRS)."""
    mean = rate.reshape(-1).astype(_sampling(rate.dtype))
    d = draw(mean.size)
    small = mean < 10
    few = _search_up(_open(d, torch.float32).astype(mean.dtype), jnp.where(small, mean, 0))
    m = jnp.where(small, 10, mean)
    b = 0.931 + 2.53 * lax.sqrt(m)
    log_m = lax.log(m)
    many = _reject(
        d, b, 0.02483 * b - 0.059, m + 0.43, jnp.full_like(m, jnp.inf),
        0.9277 - 3.6224 / (b - 2), 1.1239 + 1.1328 / (b - 3.4), lambda k: k * log_m - m - lax.lgamma(k + 1),
    )  # fmt: skip
    value = jnp.where(small, few, many)
    return jnp.where(mean == 0, 0, value).reshape(rate.shape).astype(rate.dtype)


@lowers("aten::binomial", random=True)
def binomial(count: Any, prob: Any) -> Any:
    """Small means by inversion, large ones by Hormann's transformed rejection (BTRS), for p <= 1/2 by symmetry."""
    shape = jnp.broadcast_shapes(count.shape, prob.shape)
    dtype = _sampling(count.dtype)
    n, p = (jnp.broadcast_to(v, shape).reshape(-1).astype(dtype) for v in (count, prob))
    q = jnp.minimum(p, 1 - p)
    d = draw(n.size)
    small = n * q < 10
    few = _search_up(_open(d, torch.float32).astype(dtype), jnp.where(small, n * q, 0), n, jnp.where(small, q, 0))
    n10, q10 = jnp.where(small, 40, n), jnp.where(small, 0.5, q)
    spread = lax.sqrt(n10 * q10 * (1 - q10))
    b = 1.15 + 2.53 * spread
    log_odds, mode = lax.log(q10 / (1 - q10)), lax.floor((n10 + 1) * q10)
    log_weight = lambda k: k * log_odds - lax.lgamma(k + 1) - lax.lgamma(n10 - k + 1)  # noqa: E731
    many = _reject(
        d, b, 0.01 * q10 + 0.0248 * b - 0.0873, n10 * q10 + 0.5, n10, 0.92 - 4.2 / b,
        (2.83 + 5.1 / b) * spread, lambda k: log_weight(k) - log_weight(mode),
    )  # fmt: skip
    value = jnp.where(small, few, many)
    value = jnp.where(p > 0.5, n - value, value)
    return jnp.where((n != n) | (p != p), jnp.nan, value).reshape(shape).astype(count.dtype)


def _sampling(dtype: Any) -> Any:
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _search_up(unit: Any, mean: Any, n: Any = None, q: Any = None) -> Any:
    """The smallest k whose cumulative probability reaches `unit`: Poisson(mean), or Binomial(n, q) of that mean."""
    first = lax.exp(-mean) if n is None else lax.exp(n * lax.log1p(-q))

    def step(state: Any) -> Any:
        k, density, below = state
        going = unit > below
        k = jnp.where(going, k + 1, k)
        ratio = mean / k if n is None else (n - k + 1) / k * (q / (1 - q))
        density = jnp.where(going, density * ratio, density)
        # Past the last representable probability the sum no longer moves: stop there.
        return k, density, jnp.where(going, jnp.where(density > 1e-12, below + density, jnp.inf), below)

    k, _, _ = lax.while_loop(lambda s: jnp.any(unit > s[2]), step, (jnp.zeros_like(unit), first, first))
    return k if n is None else jnp.minimum(k, n)


def _reject(d: Draw, b: Any, a: Any, centre: Any, highest: Any, squeeze: Any, scale: Any, log_density: Any) -> Any:
    """Hormann, The transformed rejection method for generating Poisson and binomial random variables, 1993."""

    def step(state: Any) -> Any:
        turn, done, value = state
        u, v = _open32(d.words(turn)).astype(b.dtype) - 0.5, _open32(d.words(turn + 1)).astype(b.dtype)
        near = 0.5 - jnp.abs(u)
        k = lax.floor((2 * a / near + b) * u + centre)
        inside = (k >= 0) & (k <= highest)
        sure = (near >= 0.07) & (v <= squeeze)
        fits = lax.log(v * scale / (a / (near * near) + b)) <= log_density(jnp.where(inside, k, 0))
        accepted = ~done & inside & (sure | fits)
        return turn + np.uint32(2), done | accepted, jnp.where(accepted, k, value)

    # A NaN is never accepted; it is the result as it stands.
    start = (np.uint32(2), centre != centre, jnp.where(centre != centre, centre, 0))
    return lax.while_loop(lambda s: ~jnp.all(s[1]), step, start)[2]


@lowers("aten::_standard_gamma", random=True)
def standard_gamma(alpha: Any) -> Any:
    return _gamma(alpha).astype(alpha.dtype)


@lowers("aten::_sample_dirichlet", random=True)
def sample_dirichlet(alpha: Any) -> Any:
    gamma = _gamma(alpha)
    share = (gamma / jnp.sum(gamma, -1, keepdims=True)).astype(alpha.dtype)
    return jnp.clip(share, jnp.finfo(alpha.dtype).tiny, 1)


def _gamma(alpha: Any) -> Any:
    """Marsaglia and Tsang, A simple method for generating gamma variables, 2000."""
    dtype = _sampling(alpha.dtype)
    shape = alpha.reshape(-1).astype(dtype)
    d = draw(shape.size)
    third = jnp.where(shape < 1, shape + 1, shape) - 1 / 3
    width = 1 / lax.sqrt(9 * third)

    def step(state: Any) -> Any:
        turn, done, value = state
        x = _standard_normal(d, torch.float32, turn).astype(dtype)
        cube = lax.integer_pow(1 + width * x, 3)
        log_u = lax.log(_open32(d.words(turn + 1)).astype(dtype))
        fits = log_u < 0.5 * x * x + third * (1 - cube + lax.log(jnp.maximum(cube, jnp.finfo(dtype).tiny)))
        accepted = ~done & (cube > 0) & fits
        return turn + np.uint32(2), done | accepted, jnp.where(accepted, third * cube, value)

    start = (np.uint32(2), shape != shape, jnp.where(shape != shape, shape, 0))
    _, _, value = lax.while_loop(lambda s: ~jnp.all(s[1]), step, start)
    boost = lax.exp(lax.log(_open32(d.words(0)).astype(dtype)) / jnp.where(shape < 1, shape, 1))
    value = jnp.where(shape < 1, value * boost, value)
    return jnp.maximum(value, jnp.finfo(dtype).tiny).reshape(alpha.shape)


@lowers("aten::_standard_gamma_grad")
def standard_gamma_grad(alpha: Any, sample: Any) -> Any:
    return lax.random_gamma_grad(alpha, sample)


@lowers("aten::_dirichlet_grad")
def dirichlet_grad(sample: Any, alpha: Any, total: Any) -> Any:
    """dx/da / (1 - x) of x ~ Beta(a, b), implicitly: -(dI_x(a, b) / da) / pdf(x), the slope by central differences.

    PyTorch's kernel has series and fitted polynomials for it, which are right to one part in a thousand.
    """
    x, a, sum_ = (v.astype(jnp.float64) for v in jnp.broadcast_arrays(sample, alpha, total))
    b = sum_ - a
    h = 1e-4 * a
    slope = (lax.betainc(a + h, b, x) - lax.betainc(a - h, b, x)) / (2 * h)
    log_beta = lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(sum_)
    pdf = lax.exp((a - 1) * lax.log(x) + (b - 1) * lax.log1p(-x) - log_beta)
    return (-slope / pdf / (1 - x)).astype(sample.dtype)
