"""Random numbers: the words against a reference Philox4x32-10, and the distributions by their moments and ranges."""

import math

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_tpu.lowering import interpret
from torch_tpu.lowering._jax import jax, jnp
from torch_tpu.lowering.context import Context, using

aten = torch.ops.aten
N = 1 << 15
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def compiled(op, *args, used=0, **kwargs):
    """The op as a function of the generator's state (its outputs as numpy arrays), and the context after lowering."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
    with mode:
        out = op(*fakes[0], **fakes[1])
    context = Context(rng=None, rng_used=used)

    def program(rng, *arrays):
        context.rng = rng
        leaves, spec = pytree.tree_flatten((args, kwargs))
        queue = iter(arrays)
        a, k = pytree.tree_unflatten([next(queue) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
        with using(context):
            return interpret.lower(op, a, k, fakes, out)

    with jax.enable_x64(True):
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        arrays = [
            jnp.asarray(t.float().numpy()).astype(jnp.bfloat16) if t.dtype == torch.bfloat16 else jnp.asarray(t.numpy())
            for t in tensors
        ]
        executable = jax.jit(program).lower(np.zeros(4, np.uint32), *arrays).compile()

    def run(rng):
        with jax.enable_x64(True):
            return [np.asarray(v) for v in executable(np.array(rng, np.uint32), *arrays)]

    return run, context


def draw(op, *args, rng=(7, 0, 0, 0), used=0, **kwargs):
    """The outputs of an op as numpy arrays, and the elements drawn when it is done."""
    run, context = compiled(op, *args, used=used, **kwargs)
    return run(rng), context.rng_used


def sample(op, *args, **kwargs):
    return draw(op, *args, **kwargs)[0][0]


def philox(seed, counter, stream=0):
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    c = [counter & 0xFFFFFFFF, counter >> 32, stream, 0]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def test_reference_is_philox():
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's known answer


@pytest.mark.parametrize("offset", [0, 4, 6, (5 << 32) + 3, (1 << 34) - 4])
@pytest.mark.parametrize("count", [1, 4, 11])
def test_words(offset, count):
    seed = 0x123456789ABCDEF0
    rng = (seed & 0xFFFFFFFF, seed >> 32, offset & 0xFFFFFFFF, offset >> 32)
    got, used = draw(aten.rand.default, [count], rng=rng, used=8)
    words = [philox(seed, (offset + 8 + i) // 4)[(offset + 8 + i) % 4] for i in range(count)]
    assert got[0].tolist() == [(w >> 8) * 2.0**-24 for w in words]
    assert used == 8 + -(-count // 4) * 4


def test_wide_words():
    first, second = philox(7, 0), philox(7, 0, stream=1)
    got = sample(aten.rand.default, [4], dtype=torch.float64)
    assert got.tolist() == [((b << 32 | a) >> 11) * 2.0**-53 for a, b in zip(first, second, strict=True)]


def test_parts_of_a_tensor_are_what_the_whole_has():
    whole = sample(aten.randn.default, [40])
    part = sample(aten.randn.default, [13], rng=(7, 0, 17, 0))
    np.testing.assert_array_equal(whole[17:30], part)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    u = sample(aten.rand.default, [N], dtype=dtype).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    v = sample(aten.uniform.default, torch.empty(N, dtype=dtype), -2.0, 5.0).astype(np.float64)
    assert v.min() >= -2 and v.max() < 5 and abs(v.mean() - 1.5) < 0.05
    assert sample(aten.uniform.default, torch.empty(3, dtype=dtype), 2.0, 2.0).tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    z = sample(aten.randn.default, [N], dtype=dtype).astype(np.float64)
    assert np.isfinite(z).all() and abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02
    assert abs((z**4).mean() - 3) < 0.2 and abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.02
    y = sample(aten.normal_functional.default, torch.empty(N, dtype=dtype), 3.0, 0.5).astype(np.float64)
    assert abs(y.mean() - 3) < 0.02 and abs(y.std() - 0.5) < 0.02


def test_normal_of_tensors_and_complex():
    mean, std = torch.tensor([[0.0], [100.0]]), torch.tensor([1.0, 10.0] * (N // 2))
    y = sample(aten.normal.Tensor_Tensor, mean, std)
    assert y.shape == (2, N) and abs(y[1].mean() - 100) < 0.2 and abs(y[0, 1::2].std() - 10) < 0.3
    z = sample(aten.randn.default, [N], dtype=torch.complex64)
    assert abs((np.abs(z) ** 2).mean() - 1) < 0.03 and abs(np.corrcoef(z.real, z.imag)[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_random_covers_the_dtype(dtype):
    r = sample(aten.random.default, torch.empty(N, dtype=dtype))
    top = 1 if dtype == torch.bool else torch.iinfo(dtype).max
    assert r.min() >= 0 and r.max() > 0.99 * top and abs(r.astype(np.float64).mean() / top - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_floats_are_exact_integers(dtype):
    r = sample(aten.random.default, torch.empty(N, dtype=dtype)).astype(np.float64)
    assert (r == np.floor(r)).all() and r.min() >= 0
    assert 0.99 < r.max() / 2 ** (1 - math.log2(torch.finfo(dtype).eps)) <= 1


def test_integer_ranges():
    r = sample(aten.randint.low, -3, 4, [4096])
    assert r.dtype == np.int64 and sorted(set(r.tolist())) == list(range(-3, 4))
    r = sample(aten.randint.default, 10, [4096], dtype=torch.int32)
    assert r.dtype == np.int32 and np.bincount(r).min() > 300
    r = sample(aten.randint.low, 2**40, 2**40 + 5, [512])
    assert sorted(set(r.tolist())) == [2**40 + i for i in range(5)]
    r = sample(getattr(aten.random, "from"), torch.empty(N, dtype=torch.int64), -(2**63), None)
    assert r.min() < -(2**62) and r.max() > 2**62
    r = sample(aten.random.to, torch.empty(4096, dtype=torch.int64), 3)
    assert sorted(set(r.tolist())) == [0, 1, 2]


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_randperm(n):
    p = sample(aten.randperm.default, n)
    assert p.dtype == np.int64 and sorted(p.tolist()) == list(range(n))


def test_randperm_is_unbiased():
    run, _ = compiled(aten.randperm.default, 3)
    _, counts = np.unique([run((seed, 0, 0, 0))[0] for seed in range(1200)], axis=0, return_counts=True)
    assert len(counts) == 6 and counts.min() > 150 and counts.max() < 250


def test_bernoulli_and_dropout():
    p = torch.tensor([0.0, 0.25, 1.0]).expand(N, 3).contiguous()
    b = sample(aten.bernoulli.default, p)
    assert set(np.unique(b)) == {0, 1} and b[:, 0].sum() == 0 and b[:, 2].sum() == N
    assert abs(b[:, 1].mean() - 0.25) < 0.02
    b = sample(aten.bernoulli.p, torch.empty(N, dtype=torch.int64), 0.7)
    assert b.dtype == np.int64 and abs(b.mean() - 0.7) < 0.02
    (y, mask), _ = draw(aten.native_dropout.default, torch.ones(N), 0.2, True)
    assert mask.dtype == bool and abs(mask.mean() - 0.8) < 0.02
    np.testing.assert_allclose(y, mask / 0.8, rtol=1e-6)
    assert sample(aten.native_dropout.default, torch.ones(4), 1.0, True).tolist() == [0, 0, 0, 0]
    (y, mask), used = draw(aten.native_dropout.default, torch.ones(4), 0.5, False)
    assert y.tolist() == [1, 1, 1, 1] and mask.all() and used == 0


def test_continuous_distributions():
    x = torch.empty(N)
    e = sample(aten.exponential.default, x, 2.0)
    assert e.min() > 0 and np.isfinite(e).all() and abs(e.mean() - 0.5) < 0.02 and abs(e.std() - 0.5) < 0.02
    c = sample(aten.cauchy.default, x, 1.0, 2.0)
    assert abs(np.median(c) - 1) < 0.1 and abs(np.quantile(c, 0.75) - 3) < 0.15
    w = sample(aten.log_normal.default, x, 1.0, 0.5)
    assert abs(np.log(w).mean() - 1) < 0.02 and abs(np.log(w).std() - 0.5) < 0.02
    g = sample(aten.geometric.default, torch.empty(N, dtype=torch.int32), 0.25)
    assert g.min() == 1 and abs(g.mean() - 4) < 0.1
    assert sample(aten.geometric.default, x, 0.9999999).max() == 1


@pytest.mark.parametrize("mean", [0.0, 0.3, 4.0, 12.0, 300.0])
def test_poisson(mean):
    k = sample(aten.poisson.default, torch.full((N,), mean))
    assert (k == np.floor(k)).all() and k.min() >= 0
    spread = 5 * math.sqrt(mean / N)
    assert abs(k.mean() - mean) <= spread and abs(k.var() - mean) <= 0.05 * mean


@pytest.mark.parametrize(("n", "p"), [(10, 0.0), (10, 0.3), (10, 1.0), (5, 0.9), (200, 0.2), (1000, 0.7)])
def test_binomial(n, p):
    k = sample(aten.binomial.default, torch.full((N,), float(n)), torch.full((N,), p))
    variance = n * p * (1 - p)
    assert k.min() >= 0 and k.max() <= n
    assert abs(k.mean() - n * p) <= 5 * math.sqrt(variance / N) and abs(k.var() - variance) <= 0.06 * variance


@pytest.mark.parametrize("alpha", [0.3, 1.0, 7.5])
def test_gamma(alpha):
    x = sample(aten._standard_gamma.default, torch.full((N,), alpha)).astype(np.float64)
    assert x.min() > 0 and abs(x.mean() - alpha) < 0.03 * max(1, alpha) and abs(x.var() - alpha) < 0.08 * alpha
    d = sample(aten._sample_dirichlet.default, torch.full((100, 3), alpha))
    np.testing.assert_allclose(d.sum(-1), 1, rtol=1e-5)


def test_multinomial():
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]])
    r = sample(aten.multinomial.default, weights, 2, False)
    assert np.sort(r, 1).tolist() == [[1, 2], [0, 3]]
    for replacement in (True, False):
        many = weights.repeat(2000, 1)
        r = sample(aten.multinomial.default, many, 1, replacement)[:, 0].reshape(2000, 2)
        assert abs((r[:, 0] == 2).mean() - 0.75) < 0.04 and set(r[:, 1]) == {0, 3}
    r = sample(aten.multinomial.default, weights, 4000, True)
    assert r.shape == (2, 4000) and set(r[0]) == {1, 2} and set(r[1]) == {0, 3}
    assert abs((r[0] == 2).mean() - 0.75) < 0.04
    assert sample(aten.multinomial.default, torch.tensor([0.0, 0.0, 5.0]).half(), 3, True).tolist() == [2, 2, 2]


def test_rrelu():
    x = torch.linspace(-1, 1, 1001)
    (y, noise), _ = draw(aten.rrelu_with_noise_functional.default, x, torch.empty(1001), 0.1, 0.3, True)
    negative = x.numpy() <= 0
    assert (noise[~negative] == 1).all() and noise[negative].min() >= 0.1 and noise[negative].max() <= 0.3
    np.testing.assert_allclose(y, x.numpy() * noise, rtol=1e-6)
