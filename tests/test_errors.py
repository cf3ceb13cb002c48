"""Wrong calls raise what they raise on the CPU, whether or not a program of such a call is there already."""

import pytest
import torch
import torch.nn.functional as F
from parity import expect, on_both, run_python


def _gradient(fn, x, number):
    x = x.requires_grad_()
    return torch.autograd.grad(fn(x * 1, number).sum(), x)


FLOATS, BYTES = torch.zeros(3), torch.zeros(3, dtype=torch.uint8)
REFUSED = {
    "exponential": (FLOATS, lambda x: x.exponential_(1.0).zero_(), lambda x: x.exponential_(0.0)),
    "cauchy": (FLOATS, lambda x: x.cauchy_(0, 1).zero_(), lambda x: x.cauchy_(0, 0)),
    "log_normal": (FLOATS, lambda x: x.log_normal_(0, 1).zero_(), lambda x: x.log_normal_(0, 0)),
    "geometric": (FLOATS, lambda x: x.geometric_(0.5).zero_(), lambda x: x.geometric_(1.0)),
    "uniform": (FLOATS, lambda x: x.uniform_(1, 3).zero_(), lambda x: x.uniform_(3, 1)),
    "uniform beyond half": (FLOATS.half(), lambda x: x.uniform_(0, 1).zero_(), lambda x: x.uniform_(0, 1e9)),
    "normal": (FLOATS, lambda x: x.normal_(0, 1).zero_(), lambda x: x.normal_(0, -1)),
    "random": (FLOATS, lambda x: x.random_(1, 3).zero_(), lambda x: x.random_(3, 1)),
    "random to": (FLOATS, lambda x: x.random_(3).zero_(), lambda x: x.random_(0)),
    "random beyond bytes": (BYTES, lambda x: x.random_(3).zero_(), lambda x: x.random_(300)),
    "bernoulli": (FLOATS, lambda x: x.bernoulli_(0.5).zero_(), lambda x: x.bernoulli_(1.5)),
    "randint_like": (FLOATS, lambda x: torch.randint_like(x, 1, 3) * 0, lambda x: torch.randint_like(x, 3, 1)),
    "dropout": (FLOATS, lambda x: torch.native_dropout(x, 0.5, True)[0], lambda x: torch.native_dropout(x, 1.5, True)),
    "fill": (BYTES, lambda x: x.fill_(255), lambda x: x.fill_(256)),
    "fill with a negative number": (BYTES.char(), lambda x: x.fill_(-128), lambda x: x.fill_(-129)),
    "full": (BYTES, lambda x: x.new_full((2,), 7), lambda x: x.new_full((2,), 300)),
    "masked_fill": (BYTES, lambda x: x.masked_fill(x == 0, 3), lambda x: x.masked_fill(x == 0, 300)),
    "fill beyond integers": (BYTES.long(), lambda x: x.fill_(7), lambda x: x.fill_(1e20)),
    "fill with a fraction below zero": (BYTES, lambda x: x.fill_(2.5), lambda x: x.fill_(-2.5)),
    "full_like": (BYTES, lambda x: torch.full_like(x, 1.5), lambda x: torch.full_like(x, -2.5)),
    "softshrink": (FLOATS, lambda x: F.softshrink(x, 0.5), lambda x: F.softshrink(x, -0.5)),
    "celu": (FLOATS, lambda x: F.celu(x, 1.0), lambda x: F.celu(x, 0.0)),
    "leaky_relu_": (FLOATS, lambda x: _gradient(F.leaky_relu_, x, 0.1), lambda x: _gradient(F.leaky_relu_, x, -0.1)),
    "elu_": (FLOATS, lambda x: _gradient(F.elu_, x, 0.1), lambda x: _gradient(F.elu_, x, -0.1)),
    "randint beyond bytes": (
        BYTES,
        lambda x: torch.randint(0, 256, (3,), dtype=x.dtype, device=x.device) * 0,
        lambda x: torch.randint(0, 257, (3,), dtype=x.dtype, device=x.device),
    ),
    "division by zero": (BYTES, lambda x: x // 3, lambda x: x // 0),
    "remainder by zero": (BYTES.long(), lambda x: x % 3, lambda x: x % 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_an_op_does_not_take(name):
    x, taken, refused = REFUSED[name]
    on_both(taken, x)
    on_both(refused, x)


def test_numbers_are_not_looked_at_where_there_is_nothing():
    on_both(lambda x: x % 0, torch.zeros(0, dtype=torch.int64))


KERNEL = {
    "a mask that is none": lambda x: x.masked_scatter(torch.ones(4, dtype=torch.uint8, device=x.device), x),
    "weights that are integers": lambda x: x.long().multinomial(2),
    "boundaries of two dimensions": lambda x: torch.bucketize(x, x.reshape(2, 2)),
    "extrema into other dtypes": lambda x: torch.aminmax(x, dim=0, out=(x.double().sum(), x.double().sum())),
    "the median of nothing": lambda x: x[:0].median(0),
    "small integers as indices": lambda x: x[torch.ones(2, dtype=torch.int8, device=x.device)],
    "integers put among floats": lambda x: x.index_put_((x.long(),), x.long()),
    "relu of bools": lambda x: torch.relu(x > 1),
    "a difference of bools and numbers": lambda x: (x > 1) - 1,
    "a difference of numbers and bools": lambda x: x - True,
    "floats shifted": lambda x: torch.bitwise_left_shift(x, x),
    "common divisors of floats": lambda x: torch.gcd(x, x),
    "floor of bools": lambda x: torch.floor(x > 1),
    "an image of integers": lambda x: F.interpolate(x.long().view(1, 1, 4), 8, mode="linear"),
    "gelu of integers": lambda x: F.gelu(x.long()),
    "the variance of integers": lambda x: x.long().var(),
    "random integers from rand": lambda x: torch.rand(3, dtype=torch.int64, device=x.device),
    "a slice put past the end": lambda x: torch.select_scatter(x, x[0], 0, 5),
    "heads that are not grouped": lambda x: F.scaled_dot_product_attention(
        x.view(1, 4, 1, 1), x[:2].view(1, 2, 1, 1), x[:2].view(1, 2, 1, 1)
    ),
    "heads that make no groups": lambda x: F.scaled_dot_product_attention(
        x.view(1, 4, 1, 1), x[:3].view(1, 3, 1, 1), x[:3].view(1, 3, 1, 1), enable_gqa=True
    ),
    "too much output padding": lambda x: F.conv_transpose1d(x.view(1, 1, 4), x.view(1, 1, 4), output_padding=3),
    "classes of 32 bits": lambda x: F.cross_entropy(x.view(2, 2), torch.ones(2, dtype=torch.int32, device=x.device)),
    "rows selected by bytes": lambda x: x.index_select(0, torch.ones(2, dtype=torch.uint8, device=x.device)),
    "the largest of bools": lambda x: (x > 1).argmax(),
    "an inverse that is checked": lambda x: torch.linalg.inv_ex(x.view(2, 2) * 0, check_errors=True),
    "a factor that is checked": lambda x: torch.linalg.cholesky_ex(x.view(1, 2, 2) * 0, check_errors=True),
    "a view out of bounds": lambda x: x.as_strided_scatter(x.reshape(2, 2), (2, 2), (200, 200)),
}


@pytest.mark.parametrize("name", KERNEL)
def test_what_only_kernels_check(name):
    on_both(KERNEL[name], torch.arange(4.0))


OVERLAPPING = {
    "kthvalue": lambda x: torch.kthvalue(
        x, 1, out=(x[:1].squeeze(), torch.empty((), dtype=torch.int64, device=x.device))
    ),
    "masked_select": lambda x: torch.masked_select(x, x > 1, out=x),
    "take": lambda x: torch.take(x, torch.tensor([0, 1, 2, 3], device=x.device), out=x),
    "cat": lambda x: torch.cat([x[:2], x[2:]], out=x),
    "add, partly": lambda x: torch.add(x[:3], 1, out=x[1:]),
    "add, wholly": lambda x: torch.add(x[:3], 1, out=x[:3]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_outs_that_overlap_operands(name):
    on_both(OVERLAPPING[name], torch.arange(4.0))


def test_kernels_of_16_bit_floats_are_not_asked_for():
    """What the CPU lacks for them alone is no error."""
    x = torch.tensor([1.5, -2.0])
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        torch.special.bessel_j0(x.half())
    got = torch.special.bessel_j0(x.half().to("tpu"))
    torch.testing.assert_close(got.cpu().float(), torch.special.bessel_j0(x), atol=1e-3, rtol=1e-3)


def test_checked_factors_of_what_has_them():
    x = 2 * torch.eye(2)
    on_both(lambda x: torch.linalg.inv_ex(x, check_errors=True), x)
    on_both(lambda x: torch.linalg.lu_factor_ex(x, check_errors=True), x)


def test_overlap_is_refused_by_stored_programs(tmp_path):
    """Programs on disk are the same for all offsets."""
    code = "import torch; x = torch.arange(4.0, device='tpu'); torch.add(x[:3], 1, out=x[{}:][:3])"
    expect(code.format(0), TORCH_TPU_CACHE_DIR=str(tmp_path))
    assert "refer to a single memory location" in run_python(code.format(1), TORCH_TPU_CACHE_DIR=str(tmp_path)).stderr


def test_masks_fill_with_numbers_of_other_dtypes():
    def run(x):
        x[x > 1] = torch.tensor(7)
        return x

    on_both(run, torch.arange(4.0))


def test_outs_of_ops_that_have_no_shape_function():
    on_both(lambda x: torch.logcumsumexp(x, 0, out=torch.empty_like(x)), torch.arange(4.0))


@pytest.mark.parametrize("fn", [torch.sum, torch.prod, torch.cumsum, torch.cumprod])
def test_floats_are_reduced_into_integers(fn):
    def run(x):
        size = x.shape if fn in (torch.cumsum, torch.cumprod) else 2
        return fn(x, 0, out=torch.empty(size, dtype=torch.int64, device=x.device))

    on_both(run, torch.full((2, 2), 1.5))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.multinomial(x - 1, 2),
        lambda x: torch.multinomial(x * 0, 2),
        lambda x: torch.poisson(-x),
        lambda x: torch.bernoulli(x),
        lambda x: x.masked_scatter(x > 0, x[:2]),
        lambda x: x.masked_scatter(x > 0, x[:3]),
        lambda x: torch.normal(x, -x),
        lambda x: F.binary_cross_entropy(x, x),
        lambda x: F.embedding_bag(x.long().view(2, 2), x[:3].view(3, 1)),
        lambda x: F.max_unpool1d(x[:1].view(1, 1, 1), x[3:].long().view(1, 1, 1), 2),
        lambda x: F.multi_margin_loss(x[:3].view(1, 3), x[3:].long()),
        lambda x: F.multilabel_margin_loss(x[:3].view(1, 3), x[1:].long().view(1, 3)),
    ],
)
def test_values_are_checked_in_debug_mode(draw):
    with torch.tpu.mode("debug"):
        on_both(draw, torch.arange(4.0))


def test_assertions_on_values_read_them() -> None:
    torch._assert_async(torch.ones(1, device="tpu"))
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="values must be smaller"):
            torch._assert_async(torch.zeros(1, device=device), "values must be smaller")
    x = torch.arange(3, device="tpu")
    got = torch.compile(torch.nn.functional.one_hot)(x, 3)
    assert got.tolist() == torch.eye(3, dtype=torch.int64).tolist()
