"""Random ops on the device: their distributions, and that a seed gives the same numbers in any mode and thread.

Samples are drawn from a fixed seed, so a test either always passes or always fails; the limit on p is that of one bad
seed in ten thousand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

N, LEAST_P = 20_000, 1e-4


def drawn(fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float64) -> np.ndarray:
    torch.manual_seed(2024)
    return fn(torch.empty(N, dtype=dtype, device="tpu")).double().cpu().numpy()


def like(x: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(x, value)


CONTINUOUS = {
    "rand": (lambda x: torch.rand_like(x), stats.uniform()),
    "uniform": (lambda x: x.uniform_(-2, 3), stats.uniform(-2, 5)),
    "randn": (lambda x: torch.randn_like(x), stats.norm()),
    "normal": (lambda x: x.normal_(1, 3), stats.norm(1, 3)),
    "normal of tensors": (lambda x: torch.normal(like(x, 1), like(x, 3)), stats.norm(1, 3)),
    "log_normal": (lambda x: x.log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "exponential": (lambda x: x.exponential_(2.5), stats.expon(scale=1 / 2.5)),
    "cauchy": (lambda x: x.cauchy_(1, 2), stats.cauchy(1, 2)),
    "gamma below 1": (lambda x: torch._standard_gamma(like(x, 0.4)), stats.gamma(0.4)),
    "gamma": (lambda x: torch._standard_gamma(like(x, 7.0)), stats.gamma(7)),
    "dirichlet": (lambda x: torch._sample_dirichlet(like(x, 2.0)[:, None].repeat(1, 3))[:, 0], stats.beta(2, 4)),
    "rrelu": (lambda x: -torch.rrelu(like(x, -1), 0.1, 0.4, True), stats.uniform(0.1, 0.3)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_distributions(name: str, dtype: torch.dtype) -> None:
    fn, distribution = CONTINUOUS[name]
    assert stats.kstest(drawn(fn, dtype), distribution.cdf).pvalue > LEAST_P


DISCRETE = {
    "randint": (lambda x: torch.randint_like(x, 3, 10), stats.randint(3, 10)),
    "random": (lambda x: x.random_(0, 6), stats.randint(0, 6)),
    "bernoulli": (lambda x: x.bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli of a tensor": (lambda x: torch.bernoulli(like(x, 0.7)), stats.bernoulli(0.7)),
    "geometric": (lambda x: x.geometric_(0.3), stats.geom(0.3)),
    "poisson": (lambda x: torch.poisson(like(x, 3.5)), stats.poisson(3.5)),
    "poisson of a large rate": (lambda x: torch.poisson(like(x, 40.0)), stats.poisson(40)),
    "binomial": (lambda x: torch.binomial(like(x, 12), like(x, 0.3)), stats.binom(12, 0.3)),
    "binomial of a large count": (lambda x: torch.binomial(like(x, 100), like(x, 0.4)), stats.binom(100, 0.4)),
    "multinomial": (
        lambda x: torch.multinomial(torch.tensor([1.0, 2.0, 5.0], device="tpu"), N, True),
        stats.rv_discrete(values=([0, 1, 2], [0.125, 0.25, 0.625])),
    ),
    "dropout": (lambda x: torch.dropout(like(x, 0.75), 0.25, True), stats.bernoulli(0.75)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str) -> None:
    fn, distribution = DISCRETE[name]
    values, counts = np.unique(drawn(fn), return_counts=True)
    # Values that are rarer than five among N are counted together, as the test wants it.
    expected = N * distribution.pmf(values)
    common = expected >= 5
    counts = [*counts[common], counts[~common].sum()]
    expected = [*expected[common], N - expected[common].sum()]
    if expected[-1] < 5:
        counts, expected = counts[:-1], np.array(expected[:-1]) * sum(counts[:-1]) / sum(expected[:-1])
    assert stats.chisquare(counts, expected).pvalue > LEAST_P


def test_randperm_has_no_favourite() -> None:
    torch.manual_seed(3)
    firsts = [torch.randperm(5, device="tpu")[0].item() for _ in range(400)]
    assert stats.chisquare(np.bincount(firsts, minlength=5)).pvalue > LEAST_P


def numbers() -> list[torch.Tensor]:
    torch.manual_seed(11)
    x = torch.zeros(33, device="tpu")
    made = [
        torch.rand(7, device="tpu"),
        x.normal_().clone(),
        torch.randint(9, (5,), device="tpu"),
        torch.bernoulli(x.abs() / 9),
    ]
    return [*made, torch.dropout(torch.ones(8, device="tpu"), 0.5, True)]


def test_seeds_give_the_same_numbers_in_every_mode_and_thread() -> None:
    strict = [x.cpu() for x in numbers()]
    with torch.tpu.mode("debug"):
        debug = numbers()
    elsewhere: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: elsewhere.extend(numbers()))
    thread.start()
    thread.join()
    for a, b, c in zip(strict, debug, elsewhere, strict=True):
        assert torch.equal(a, b.cpu()) and torch.equal(a, c.cpu())


def test_generators_of_threads_do_not_meet() -> None:
    def draw(seed: int) -> list[float]:
        generator = torch.Generator("tpu").manual_seed(seed)
        return [torch.rand(4, device="tpu", generator=generator).sum().item() for _ in range(20)]

    alone = [draw(seed) for seed in range(4)]
    together: dict[int, list[float]] = {}
    threads = [threading.Thread(target=lambda s=s: together.update({s: draw(s)})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[s] for s in range(4)] == alone


def test_gradients_of_dirichlet_samples() -> None:
    torch.manual_seed(0)
    alpha = torch.rand(200, 3, dtype=torch.float64) * torch.tensor([0.5, 3.0, 30.0]) + 0.05
    x = torch._sample_dirichlet(alpha).clamp(1e-4, 1 - 1e-4)
    total = alpha.sum(-1, keepdim=True).expand_as(alpha)
    got = torch._dirichlet_grad(x.to("tpu"), alpha.to("tpu"), total.to("tpu")).cpu()
    # The CPU's is fitted to one part in a thousand.
    torch.testing.assert_close(got, torch._dirichlet_grad(x, alpha, total), rtol=2e-3, atol=1e-6)
    leaf = alpha.to("tpu").requires_grad_()
    torch.distributions.Dirichlet(leaf).rsample().square().sum().backward()
    assert leaf.grad.isfinite().all()


def test_the_generator_of_the_cpu_stays_where_it_is() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    # Sizes of their own, so that programs are made.
    torch.empty(7, 11, device="tpu").uniform_(0.25, 1).exponential_(0.75)
    assert torch.equal(torch.rand(3), expected)
