"""Normalisations and their gradients against torch on CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
ALL, NONE = [True, True, True], [False, False, False]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype) * 2 + 1


def near(got: Any, expected: Any) -> None:
    for g, e in zip(got, expected, strict=True):
        if e is None:
            assert g is None
        else:
            tolerance = {"rtol": 2e-2, "atol": 5e-2} if e.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
            torch.testing.assert_close(g, e, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine: bool, dtype: torch.dtype) -> None:
    x, w, b = tensor(3, 4, 5, dtype=dtype), *(tensor(4, 5, dtype=dtype) if affine else None for _ in range(2))
    results = aten.native_layer_norm(x, [4, 5], w, b, 1e-5)
    near(lowered(aten.native_layer_norm.default, x, [4, 5], w, b, 1e-5), results)
    args = torch.randn_like(x), x, [4, 5], *results[1:], w, b, [True, affine, affine]
    near(lowered(aten.native_layer_norm_backward.default, *args), aten.native_layer_norm_backward(*args))


@pytest.mark.parametrize("count", [7, 49, 768, 1000])
@pytest.mark.parametrize("value", [0.1, 1e5, 12345.678])
def test_equal_elements_are_their_mean(count: int, value: float) -> None:
    x = torch.full((2, count), value)
    normal, mean, _ = lowered(aten.native_layer_norm.default, x, [count], None, None, 1e-5)
    assert normal.abs().max() < 1e-4 and torch.equal(mean, x[:, :1])
    assert lowered(aten.native_group_norm.default, x, None, None, 2, count, 1, 1, 1e-5)[0].abs().max() < 1e-4
    assert lowered(aten.std.correction, x, [1], correction=1).max() < 1e-6 * x.max()


def test_layer_norm_far_from_zero() -> None:
    torch.manual_seed(0)
    x = 12345.678 + 0.01 * torch.randn(4, 64)
    exact = torch.nn.functional.layer_norm(x.double(), [64])
    got, cpu = lowered(aten.native_layer_norm.default, x, [64], None, None, 1e-5)[0], torch.layer_norm(x, [64])
    assert (got - exact).abs().max() <= 1.5 * (cpu - exact).abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, w = tensor(3, 4, dtype=dtype).requires_grad_(), tensor(4, dtype=dtype).requires_grad_()
    expected = torch.nn.functional.rms_norm(x, [4], w, 1e-6)
    value, rstd = lowered(aten._fused_rms_norm.default, x.detach(), [4], w.detach(), 1e-6)
    near([value], [expected.detach()])
    grad = torch.randn_like(value)
    expected.backward(grad)
    args = grad, x.detach(), [4], rstd, w.detach(), [True, True]
    near(lowered(aten._fused_rms_norm_backward.default, *args), [x.grad, w.grad])


def test_rms_norm_default_epsilon_is_that_of_the_type_computed_in() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.full((2, 4), 1e-5, dtype=dtype)
        near([lowered(aten._fused_rms_norm.default, x, [4], None, None)[0]], [torch.nn.functional.rms_norm(x, [4])])


@pytest.mark.parametrize("dtype", DTYPES)
def test_group_norm(dtype: torch.dtype) -> None:
    x, w, b = tensor(2, 6, 3, 4, dtype=dtype), tensor(6, dtype=dtype), tensor(6, dtype=dtype)
    sizes = 2, 6, 12, 3
    results = aten.native_group_norm(x, w, b, *sizes, 1e-5)
    near(lowered(aten.native_group_norm.default, x, w, b, *sizes, 1e-5), results)
    args = torch.randn_like(x), x, *results[1:], w, *sizes, ALL
    near(lowered(aten.native_group_norm_backward.default, *args), aten.native_group_norm_backward(*args))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 4)])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    x, w, b = tensor(*shape), tensor(3), tensor(3)
    stats = torch.randn(3), torch.rand(3) + 0.5
    check(aten._native_batch_norm_legit_functional.default, x, w, b, *stats, training, 0.3, 1e-5)
    check(aten._native_batch_norm_legit.no_stats, x, None, None, True, 0.1, 1e-5)
    check(aten._native_batch_norm_legit_no_training.default, x, w, b, *stats, 0.1, 1e-5)
    saved = aten._native_batch_norm_legit(x, w, b, *(s.clone() for s in stats), training, 0.3, 1e-5)[1:]
    for mask in (ALL, [True, False, False]):
        args = torch.randn_like(x), x, w, *stats, *saved, training, 1e-5, mask
        near(lowered(aten.native_batch_norm_backward.default, *args), aten.native_batch_norm_backward(*args))


def test_batch_norm_in_lower_precision_keeps_its_statistics() -> None:
    x, stats = tensor(8, 3, dtype=torch.bfloat16), (torch.zeros(3), torch.ones(3))
    args = x, torch.ones(3), torch.zeros(3), *stats, True, 0.1, 1e-5
    got, expected = (
        f(*args)
        for f in (
            partial(lowered, aten._native_batch_norm_legit_functional.default),
            aten._native_batch_norm_legit_functional,
        )
    )
    near([got[0], *got[3:]], [expected[0], *expected[3:]])


def test_batch_norm_with_update() -> None:
    args = tensor(4, 3), tensor(3), tensor(3), torch.zeros(3), torch.ones(3), 0.1, 1e-5
    check(aten._batch_norm_with_update_functional.default, *args)
    check(aten._batch_norm_no_update.default, *args)


def test_synchronised_batch_norm() -> None:
    from torch_tpu.lowering import norm
    from torch_tpu.lowering._jax import jax

    x, grad, weight = tensor(6, 3, 2), torch.randn(6, 3, 2), tensor(3)

    def run(fn: Any, *args: Any) -> Any:
        made = jax.jit(fn)(*(a.numpy() for a in args))
        return jax.tree.map(lambda v: torch.tensor(v.tolist()), made)

    # Two replicas, of 2 and 4 rows.
    parts, counts = (x[:2], x[2:]), torch.tensor([4.0, 8.0])
    stats = [run(lambda x: norm.batch_norm_stats(x, 1e-5), p) for p in parts]
    means, invstds = (torch.stack(v) for v in zip(*stats, strict=True))
    gather = norm.batch_norm_gather_stats_with_counts
    mean, invstd = run(lambda x, m, i, c: gather(x, m, i, None, None, 0.1, 1e-5, c), x, means, invstds, counts)
    near([mean, invstd], [x.mean((0, 2)), (x.var((0, 2), correction=0) + 1e-5).rsqrt()])
    reduce = norm.batch_norm_backward_reduce
    sums = [
        run(lambda g, x, m, i, w: reduce(g, x, m, i, w, True, True, True), g, p, mean, invstd, weight)
        for g, p in zip((grad[:2], grad[2:]), parts, strict=True)
    ]
    dy, dy_xmu, to_weight, to_bias = (sum(v) for v in zip(*sums, strict=True))
    got = run(norm.batch_norm_backward_elemt, grad, x, mean, invstd, weight, dy, dy_xmu, torch.tensor([4, 8]))
    expected = aten.native_batch_norm_backward(grad, x, weight, None, None, mean, invstd, True, 1e-5, ALL)
    near([got, to_weight, to_bias], expected)


def test_weight_norm() -> None:
    for dim, g in ((0, tensor(3, 1, 1)), (2, tensor(1, 1, 5))):
        v = tensor(3, 4, 5)
        w, norms = aten._weight_norm_interface(v, g, dim)
        near(lowered(aten._weight_norm_interface.default, v, g, dim), (w, norms))
        args = torch.randn_like(v), v, g, norms, dim
        near(lowered(aten._weight_norm_interface_backward.default, *args), aten._weight_norm_interface_backward(*args))


def test_renorm_and_nothing_to_normalise() -> None:
    check(aten.renorm.default, tensor(3, 4), 2, 0, 1.5)
    check(aten.native_layer_norm.default, tensor(0, 4), [4], tensor(4), tensor(4), 1e-5)
    check(aten.native_group_norm.default, tensor(0, 4, 3), None, None, 0, 4, 3, 2, 1e-5)
