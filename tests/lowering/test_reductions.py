"""Reductions and scans against torch on CPU: NaN, ties, empty and 0-d tensors, accumulation, order statistics."""

import math

import pytest
import torch
from check import CheckMode, check, lowered

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def make(dtype, *shape):
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-3, high=4)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype):
    x = make(dtype, 3, 4, 5)
    check(aten.sum.default, x)
    check(aten.sum.dim_IntList, x, [0, -1], True)
    check(aten.sum.dim_IntList, x, [])
    check(aten.prod.dim_int, x[:, :2, :2], 1)
    check(aten.cumsum.default, x, 1)
    check(aten.count_nonzero.dim_IntList, x, [1])
    if dtype.is_floating_point or dtype.is_complex:
        check(aten.mean.dim, x, [1], True)
    check(aten.any.dim, x, 0)
    check(aten.all.dims, x, [0, 2], True)


def test_sum_types_and_emptiness():
    check(aten.sum.dim_IntList, torch.ones(3, dtype=torch.int8) * 100, [0])
    check(aten.sum.default, torch.ones(3), dtype=torch.int32)
    check(aten.sum.default, torch.rand(5000).bfloat16())
    check(aten.sum.dim_IntList, torch.rand(0, 3), [0])
    check(aten.mean.dim, torch.rand(0, 3), [0])
    check(aten.mean.default, torch.tensor([1, 2]), dtype=torch.float32)
    check(aten.nansum.default, torch.tensor([1.0, NAN, 2.0]), [0])
    check(aten.sum.default, torch.tensor(2.0))
    check(aten.sum.dim_IntList, torch.tensor(2.0), [0])
    check(aten.all.default, torch.zeros(0))
    check(aten.any.dims, torch.tensor([[0, 3]], dtype=torch.uint8), [])
    check(aten.prod.default, torch.zeros(0))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_extrema_are_the_first(name, dtype):
    packet = getattr(aten, name)
    x = torch.tensor([[1, 3, 3, 0], [2, 2, 2, 2], [0, 1, 0, 1]]).to(dtype)
    check(packet.default, x)
    for dim in (0, -1):
        check(packet.dim, x, dim, dim == 0)
        check(getattr(aten, f"arg{name}").default, x, dim) if dtype != torch.bool else None
        check(getattr(aten, f"a{name}").default, x, [dim], True)
    if dtype != torch.bool:
        check(getattr(aten, f"arg{name}").default, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nan_wins_and_infinities_have_indices(dtype):
    x = torch.tensor([[1, NAN, NAN], [INF, -INF, 0], [-INF, -INF, -INF], [INF, INF, INF]], dtype=dtype)
    for op in (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default):
        check(op, x, 1)
        check(op, x, 0)
    check(aten.amax.default, x, [1])
    check(aten.aminmax.default, x, dim=1)
    check(aten.max.default, x)
    check(aten.median.dim, x[[0, 2]], 1)
    check(aten.nanmedian.dim, x[:1], 1)


def test_long_rows_keep_the_first_index():
    x = torch.zeros(3, 5000)
    x[:, 1234:] = 1
    check(aten.argmax.default, x, 1)
    check(aten.argmin.default, x, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("correction", [None, 0, 1, 3, 2.5])
def test_moments(dtype, correction):
    x = make(dtype, 3, 4)
    for name in ("var", "std", "var_mean", "std_mean"):
        check(getattr(aten, name).correction, x, [1], correction=correction, keepdim=True)
    check(aten.var.correction, x, correction=correction)


def test_variance_does_not_cancel():
    x = 1e4 + torch.arange(1000) * 1e-2
    expected = x.double().var()
    got = lowered(aten.var.correction, x)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=0)
    check(aten.var.correction, torch.ones(1))
    check(aten.var.correction, torch.ones(0, 2), [0])


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, INF, -INF, -1])
def test_norms(order):
    for x in (torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4).bfloat16()):
        check(aten.linalg_vector_norm.default, x, order, [1])
    check(aten.linalg_vector_norm.default, torch.randn(3), order, dtype=torch.float64)
    check(aten.norm.ScalarOpt_dim, torch.randn(3, 4), order, [0, 1], True)
    check(aten.dist.default, torch.randn(3, 4), torch.randn(4), order)


@pytest.mark.parametrize("p", [1, 2, 3.5, INF])
def test_renorm(p):
    for x in (torch.randn(3, 4, 5), torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4).bfloat16()):
        check(aten.renorm.default, x, p, -1, 1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(dtype, dim):
    x = torch.randn(3, 5).mul(20).to(dtype).requires_grad_()
    with CheckMode() as mode:
        torch.softmax(x, dim).sum().backward()
        torch.log_softmax(x, dim).square().sum().backward()
        torch.logsumexp(x, dim).sum().backward()
    # Near zero torch rounds bfloat16 within log_softmax.
    assert not (mode.failures.keys() - ({"aten::_log_softmax"} if dtype == torch.bfloat16 else set())), mode.failures


def test_softmax_of_edges():
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, 1.0], [NAN, 1.0]])
    check(aten._softmax.default, x, 1, False)
    check(aten._log_softmax.default, x, 1, False)
    check(aten._safe_softmax.default, x, 1)
    check(aten.logsumexp.default, x, [1])
    check(aten.logsumexp.default, torch.tensor([1, 2]), [0])
    for shape in ((), (0, 3), (3, 0)):
        check(aten._softmax.default, torch.ones(shape), 0, False)
    check(aten.logsumexp.default, torch.ones(3, 0), [1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_scans(dtype):
    x = torch.tensor([[2, 1, 3, 3, 0, 3], [1, 1, 1, 5, 5, 2]]).to(dtype)
    for dim in (0, -1):
        check(aten.cumsum.default, x, dim)
        check(aten.cumprod.default, x, dim)
        check(aten.cummax.default, x, dim)
        check(aten.cummin.default, x, dim)
    check(aten.cumsum.default, x, 1, dtype=torch.float64)


def test_scans_of_edges():
    x = torch.tensor([1.0, NAN, 5.0, NAN, INF])
    for op in (aten.cummax.default, aten.cummin.default, aten.logcumsumexp.default, aten.cumsum.default):
        check(op, x, 0)
        check(op, torch.tensor(7.25), 0)
        check(op, torch.ones(0, 3), 0)
    check(aten.logcumsumexp.default, torch.tensor([[-INF, -INF, 1.0, 1000.0, -1000.0]]), 1)
    check(aten.logcumsumexp.default, torch.randn(3, 1500).mul(20), 1)
    check(aten.logcumsumexp.default, torch.randn(40, 3, dtype=torch.complex64), 0)
    check(aten.cumsum.default, torch.rand(3000), 0)
    check(aten.cumsum.default, torch.full((4,), 2**62), 0)


def test_masked_softmax():
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    masks = [torch.rand(4, 4) < 0.5, torch.rand(2, 4) < 0.5, torch.rand(2, 3, 4, 4) < 0.5]
    masks[2][0, 0, 0] = True  # a row with nothing left
    with CheckMode() as mode:
        for kind, mask in enumerate(masks):
            y = torch._masked_softmax(x, mask, 3, kind)
        y.square().sum().backward()
    assert not mode.failures, mode.failures


def test_order_statistics():
    x = torch.rand(5, 7)
    for k in (1, 4, 7):
        check(aten.kthvalue.default, x, k, 1, True)
    for op in (aten.median, aten.nanmedian):
        check(op.dim, x, 0)
        check(op.default, x)
        check(op.default, torch.tensor([3, 1, 2, 2]))
        check(op.default, torch.tensor(4.0))
        check(op.default, torch.tensor([1.0, NAN, 3.0, 2.0]))
        check(op.dim, torch.tensor(4.0), 0)
    check(aten.nanmedian.dim, torch.tensor([[NAN, 1.0, NAN, 2.0, 0.0], [NAN] * 5]), 1)


def test_mode_is_the_smallest_and_last():
    for row in ([1, 2, 2, 1, 3], [5, 5, 1, 1], [3, 3, 3], [4]):
        check(aten.mode.default, torch.tensor(row), 0)
    check(aten.mode.default, torch.tensor([NAN, 2.0, 2.0, NAN, NAN]), 0, True)
    check(aten.mode.default, torch.randint(0, 3, (4, 9)), 1)
    check(aten.mode.default, torch.tensor(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_hash_tensor(dtype):
    x = make(dtype, 3, 4)
    check(aten.hash_tensor.default, x)
    check(aten.hash_tensor.default, x, [1], keepdim=True)
