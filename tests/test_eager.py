"""Eager calls: errors as on the CPU, promotion, `out=`, what compiles and what doesn't, threads, functorch, modes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity import assert_same, compiles, expect, on_both, run_python, to_device
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor
X = torch.arange(12.0).reshape(3, 4) - 5


# --- errors


def words(error: Exception) -> str:
    """An error's text without the name of the device."""
    return str(error).split("\n")[0].replace("tpu:0", "cpu").replace("'tpu'", "'cpu'")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + x[:, :3],
        lambda x: x @ x,
        lambda x: torch.mm(x, x[0]),
        lambda x: torch.bmm(x, x),
        lambda x: torch.cat([x, x[:, :2]]),
        lambda x: torch.stack([x, x[:2]]),
        lambda x: x.sum(dim=3),
        lambda x: x.sum(dim=(0, 0)),
        lambda x: x.softmax(2),
        lambda x: x.long().add_(0.5),
        lambda x: x.bool().mul_(2),
        lambda x: x.long().copy_(x).div_(2),
        lambda x: x.add_(1j),
        lambda x: torch.complex(x, x.double()),
        lambda x: torch.complex(x, x, out=x.to(torch.complex128)),
        lambda x: x.lerp(x.double(), 0.5),
        lambda x: torch.add(x, x, out=torch.empty(3, 4, dtype=torch.long, device=x.device)),
        lambda x: x.add_(x.new_ones(2, 3, 4)),
        lambda x: x.index_select(0, x[0]),
        lambda x: x.index_select(2, torch.tensor([0], device=x.device)),
        lambda x: x.gather(0, x),
        lambda x: x.gather(0, torch.zeros(1, dtype=torch.long, device=x.device)),
        lambda x: x.scatter(0, torch.zeros(1, 1, dtype=torch.long, device=x.device), x.double()),
        lambda x: x[x],
        lambda x: x[torch.ones(2, dtype=torch.bool, device=x.device)],
        lambda x: x[:, torch.ones(3, dtype=torch.bool, device=x.device)],
        lambda x: x.view(7),
        lambda x: x.sort(dim=5),
        lambda x: x.topk(9),
        lambda x: x.reshape(5, -1),
        lambda x: F.conv2d(x[None, None], torch.ones(1, 2, 2, 2, device=x.device)),
        lambda x: F.linear(x, torch.ones(2, 3, device=x.device)),
        lambda x: F.embedding(x, x),
        lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.long, device=x.device)),
        lambda x: F.layer_norm(x, (5,)),
        lambda x: F.max_pool2d(x[None], 9),
        lambda x: x.long().mean(),
        lambda x: ~x,
        lambda x: x & x,
        lambda x: -(x > 0),
        lambda x: (x > 0) - (x > 1),
        lambda x: x.fill_(torch.ones(2, device=x.device)),
        lambda x: torch.where(x, x, x),
        lambda x: torch.full((2,), 1.0, dtype=torch.long, device=x.device).clamp_(),
        lambda x: torch.arange(0, 5, -1, device=x.device),
        lambda x: torch.empty(-1, device=x.device),
        lambda x: torch.linspace(0, 1, -2, device=x.device),
        lambda x: torch.randint(5, 5, (2,), device=x.device),
        lambda x: F.dropout(x, 1.5),
        lambda x: torch.cumsum(x, 4),
        lambda x: torch.tril(x[0]),
        lambda x: x.masked_fill_(x, 1.0),
        lambda x: torch.dot(x[0], x[:, 0]),
        lambda x: torch.max(x[:0]),
        lambda x: x[:0].argmax(),
        lambda x: x.expand(2, 2),
        lambda x: x.long().pow(-1),
        lambda x: F.conv2d(x[None, None], x[:1, :1, None, None], padding=-1),
        lambda x: F.conv2d(x[None, None], x[:1, :1, None, None], stride=0),
        lambda x: torch._foreach_addcmul([x], [x], [x], value=1j),
        lambda x: torch.renorm(x, -1, 0, 1.0),
        lambda x: torch.histc(x, 4, 2, 1),
        lambda x: x[:1].expand(3, 4).add_(1),
        lambda x: torch.add(x, 1, out=x[:1].expand(3, 4)),
    ],
)
def test_wrong_arguments_raise_the_cpus_error(fn: Callable[[Tensor], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fn(X.clone())
        except Exception as error:  # noqa: BLE001 - the oracle
            expected = error
        else:
            fn(X.to("tpu"))
            return
        with pytest.raises(type(expected)) as raised:
            fn(X.to("tpu"))
    assert type(raised.value) is type(expected)
    assert words(raised.value)[:60] == words(expected)[:60]


def test_an_error_changes_nothing() -> None:
    x = X.to("tpu")
    for wrong in (lambda: x.add_(x.new_ones(2)), lambda: x.copy_(x.new_ones(5)), lambda: torch.mm(x, x, out=x)):
        with pytest.raises(RuntimeError):
            wrong()
    torch.testing.assert_close(x.cpu(), X)
    assert x._version == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.add_(y),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: torch.mm(x, y.t()),
        lambda x, y: F.linear(x, y),
        lambda x, y: torch.add(x, x, out=y),
        lambda x, y: F.embedding(y.long() % 3, x),
        lambda x, y: x.index_select(0, torch.tensor([0])),
        lambda x, y: F.layer_norm(x, (4,), y[0]),
        lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
        lambda x, y: torch._foreach_add([x, x], [y, y]),
        lambda x, y: F.cross_entropy(x, torch.zeros(3, dtype=torch.long)),
    ],
)
def test_operands_on_two_devices_raise(fn: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"device|tpu"):
        fn(X.to("tpu"), X.clone())


# --- operands that are numbers


def test_zero_dimensional_cpu_tensors_and_numbers_are_operands() -> None:
    def run(x: Tensor) -> list[Tensor]:
        s = torch.tensor(2.0)
        return [
            x + s, s - x, x * 3, 3 / (x + 6), x**2, 2**x, x + True, x.long() + s, x.long() + 2.5, x.half() * s.double(),
            torch.where(x > 0, x, s), torch.where(x > 0, 1.0, x), x.clamp(min=s), torch.maximum(x, s.to(x.device)),
            x.masked_fill(x > 0, s), x.lerp(x * 2, 0.25), torch.add(x, x, alpha=3), x.addcmul(x, x, value=0.5),
            x.to(torch.bfloat16) + 1.1, x.to(torch.float64) + 0.1, x + 2j, x.int() + torch.tensor(3, dtype=torch.int64),
            (x > 0) + 1, (x > 0) * 2.0, x.long() / 2, x.long() // 2, x % 3, -x.long() % 3,
        ]  # fmt: skip

    on_both(run, X)


@pytest.mark.parametrize(
    "a", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.complex64]
)
def test_promotion(a: torch.dtype) -> None:
    others = [torch.bool, torch.int16, torch.float16, torch.bfloat16, torch.float64]

    def run(x: Tensor) -> list[Tensor]:
        left = x.abs().to(a)
        sums = [left + x.abs().to(b) for b in others]
        return [*sums, left + x.abs().to(torch.float64)[0, 0], torch.cat([left, x.abs().to(torch.int16)])]

    on_both(run, X[:2, :2])


def test_wrapping_of_narrow_integers() -> None:
    def run(x: Tensor) -> list[Tensor]:
        return [x.to(t) * 100 + 77 for t in (torch.uint8, torch.int8, torch.int16)] + [
            x.long() * 2**40,
            x.int() * 2**30,
        ]

    on_both(run, X.abs())


# --- in place and out=


def test_in_place_forms_return_their_operand() -> None:
    x = X.to("tpu")
    for op in (x.add_, x.mul_, x.fill_, x.sub_):
        assert op(2.0) is x
    out = torch.empty(3, 4, device="tpu")
    assert torch.add(x, x, out=out) is out
    values, places = torch.empty(3, device="tpu"), torch.empty(3, dtype=torch.long, device="tpu")
    made = torch.max(x, 1, out=(values, places))
    assert made.values is values and made.indices is places
    assert x.abs_().polygamma_(1) is x  # the functional form is polygamma(1, x)
    assert x.relu_() is x and torch.relu_(x) is x and F.relu(x, inplace=True) is x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, o: torch.mul(x, 2, out=o),
        lambda x, o: torch.mm(x.t(), x, out=o.new_zeros(4, 4)),
        lambda x, o: torch.sum(x, 1, out=o[:, 0]),
        lambda x, o: torch.cat([x[:1], x[:2]], out=o),
        lambda x, o: torch.clamp(x, 0, 2, out=o),
        lambda x, o: torch.index_select(x, 0, torch.tensor([2, 0, 1], device=x.device), out=o),
        lambda x, o: torch.where(x > 0, x, 0.0, out=o),
        lambda x, o: torch.arange(4, device=x.device, out=o[0]),
        lambda x, o: torch.softmax(x, 1, out=o),
        lambda x, o: torch.eq(x, 2, out=o.bool()),
        lambda x, o: torch.cumsum(x, 0, out=o),
        lambda x, o: torch.stack([x[0], x[1], x[2]], out=o),
        lambda x, o: torch.zeros(3, 4, out=o),
        lambda x, o: torch.mean(x, 0, out=o[1]),
        lambda x, o: torch.frac(x, out=x),
    ],
)
def test_out_forms(fn: Callable[[Tensor, Tensor], Any]) -> None:
    on_both(fn, X, torch.full((3, 4), 9.0))


def test_outputs_that_are_resized_keep_their_place() -> None:
    def run(x: Tensor, base: Tensor) -> Any:
        out = base[:, 1]
        return torch.sum(x, 0, out=out), out.storage_offset(), out.untyped_storage().nbytes(), base

    with pytest.warns(UserWarning, match="was resized"):
        torch.sum(X.to("tpu"), 0, out=torch.zeros(2, device="tpu"))
    on_both(run, X, torch.zeros(8, 2))
    on_both(run, X, torch.zeros(2, 2))
    on_both(lambda x, o: torch.max(x, 1, out=(o, o.new_empty(0, dtype=torch.long))), X, torch.empty(0))


def test_updates_beside_outputs() -> None:
    def run(x: Tensor, mean: Tensor, var: Tensor) -> Any:
        outs = [x.new_empty(0) for _ in range(3)]
        names = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
        aten = torch.ops.aten
        legit = aten._native_batch_norm_legit.out(x, None, None, mean, var, True, 0.1, 1e-5, **names)
        return legit, aten.native_batch_norm.out(x, None, None, mean, var, True, 0.1, 1e-5, **names), mean, var

    on_both(run, X, torch.zeros(4), torch.ones(4))


def test_what_is_not_updated_may_overlap() -> None:
    on_both(lambda x, m, v: F.batch_norm(x, m.expand(4), v.expand(4)), X, torch.zeros(1), torch.ones(1))


def test_shapes_that_only_the_cpu_knows() -> None:
    """Shape functions written in Python fail for these."""
    on_both(lambda x: F.interpolate(x, 3), torch.zeros(0, 3, 4))
    on_both(lambda x: torch.norm(x, float("inf"), -1), torch.zeros(0, 5))
    on_both(lambda x: torch.histogram(x, 2, out=(x.new_empty(0), x.new_empty(0))), X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, o: torch.copysign(x, -2.5, out=o),
        lambda x, o: torch.fmod(x, 2.5, out=o),
        lambda x, o: torch.fmod(x[0, 0].half(), 2.5, out=o),
        lambda x, o: torch.special.zeta(2.5, x.abs() + 1, out=o),
        lambda x, o: torch.special.xlog1py(x.long(), 2.5, out=o),
        lambda x, o: torch.copysign(x.long(), 2, out=o.long()),
    ],
)
def test_out_forms_with_a_number_for_a_tensor(fn: Callable[[Tensor, Tensor], Any]) -> None:
    on_both(fn, X, X[:0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, o: torch.cholesky_inverse(torch.eye(3, device=x.device) + 1, out=o),
        lambda x, o: torch.linalg.qr(x, mode="r", out=(o, x.new_empty(0)))[1],
        lambda x, o: torch.geqrf(x, out=(o, o.clone())),
        lambda x, o: torch.linalg.inv(x @ x.mT + torch.eye(3, device=x.device), out=o),
        lambda x, o: torch.linalg.solve(x[:, :3] + 9, x, out=o),
        lambda x, o: torch.linalg.lstsq(x, x)[0],
        lambda x, o: torch.add(x.mT, 1, out=o),
        lambda x, o: torch.fft.rfft(x, dim=0, out=o.cfloat()),
        lambda x, o: torch.fft.ihfft(x, dim=0, out=o.cfloat()),
        lambda x, o: torch.baddbmm(x[None], x[None, :, :3], x[None], out=o),
    ],
)
def test_resized_outs_have_the_strides_of_new_results(fn: Callable[[Tensor, Tensor], Any]) -> None:
    def run(x: Tensor) -> Any:
        result = fn(x, torch.empty(0, device=x.device))
        return result, [r.stride() for r in ([result] if isinstance(result, Tensor) else result)]

    on_both(run, X, atol=1e-4, rtol=1e-4)


def test_foreach() -> None:
    def run(xs: list[Tensor], ys: list[Tensor]) -> Any:
        torch._foreach_add_(xs, ys, alpha=2)
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_addcdiv_(xs, ys, [y + 3 for y in ys], value=0.1)
        torch._foreach_lerp_(xs, ys, 0.3)
        torch._foreach_copy_(ys[:1], [xs[0] * 2])
        return (
            torch._foreach_sqrt(torch._foreach_abs(xs)),
            torch._foreach_norm(xs),
            torch._foreach_add(xs, [1.0, 2.0, 3.0]),
        )

    xs = [torch.ones(3), torch.arange(4.0).reshape(2, 2), torch.tensor(2.0)]
    on_both(run, xs, [x + 1 for x in xs])


def test_foreach_over_views_of_one_storage() -> None:
    def run(base: Tensor) -> Tensor:
        parts = list(base.split(2))
        torch._foreach_add_(parts, [p * 2 for p in parts])
        torch._foreach_mul_([base[0], base[5]], 10.0)
        return base

    on_both(run, torch.arange(6.0))


# --- what compiles


def test_scalars_are_values_of_programs() -> None:
    x = X.to("tpu")

    def step(s: float) -> Tensor:
        y = x * s + s
        y.add_(x, alpha=s).mul_(s).clamp_(min=-s, max=s)
        return y.lerp(x, s).addcmul(x, x, value=s).masked_fill(x > s, s)

    def host(s: float) -> Tensor:
        y = X * s + s
        y.add_(X, alpha=s).mul_(s).clamp_(min=-s, max=s)
        return y.lerp(X, s).addcmul(X, X, value=s).masked_fill(s < X, s)

    step(0.1), step(0.2)
    before = compiles()
    for s in (0.3, 0.7, 1.5, -2.0, 3.25):
        torch.testing.assert_close(step(s).cpu(), host(s))
    assert compiles() == before


def test_learning_rate_schedules_and_step_counts_compile_nothing() -> None:
    p = torch.nn.Parameter(torch.ones(4, device="tpu"))
    for make in (lambda: torch.optim.SGD([p], lr=0.1, momentum=0.9), lambda: torch.optim.AdamW([p], lr=0.1)):
        optimizer = make()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for i in range(6):
            if i == 2:
                before = compiles()
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
            schedule.step()
        assert compiles() == before


def test_counts_of_true_values_compile_by_power_of_two() -> None:
    x = torch.arange(64.0, device="tpu")

    def step(n: int) -> float:
        y = x[x < n]
        x[x < n] = y * 1
        return (y * 2).sum().item() + (x < n).nonzero().numel()

    for n in (17, 33, 5):
        step(n)
    before = compiles()
    for n in (18, 30, 40, 60, 3, 9):
        assert step(n) == n * (n - 1) + n
    assert compiles() == before


def test_a_static_cache_is_filled_without_compiling() -> None:
    cache = torch.zeros(2, 8, 3, device="tpu")
    for t in range(8):
        if t == 2:
            before = compiles()
        position = torch.tensor([t], device="tpu")
        cache.index_copy_(1, position, torch.full((2, 1, 3), float(t), device="tpu"))
        cache[:, t] += 1
    assert compiles() == before
    assert cache[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_settings_are_part_of_the_signature() -> None:
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    there = x.to("tpu")
    exact = (there @ there).cpu()
    torch.testing.assert_close(exact, x @ x)
    torch.set_default_dtype(torch.float64)
    try:
        assert (torch.arange(3, device="tpu") / 2).dtype == torch.float64
        assert torch.zeros(2, device="tpu").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (torch.arange(3, device="tpu") / 2).dtype == torch.float32
    assert torch.equal((there @ there).cpu(), exact)


# --- threads


def in_threads(work: Callable[[int], None], count: int = 8) -> None:
    """Run `work` at once in several threads; raises the first error."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            barrier.wait()
            work(i)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    if errors:
        raise errors[0]


def test_threads_that_miss_together_compile_once() -> None:
    x = torch.arange(7.0, device="tpu")
    before = compiles()
    results: dict[int, Tensor] = {}

    def work(i: int) -> None:
        results[i] = torch.atan2(x, x + 1)

    in_threads(work)
    assert compiles() == before + 2  # x + 1 and atan2
    assert all(torch.equal(r, results[0]) for r in results.values())


def test_threads_run_ops_at_once() -> None:
    shared = torch.arange(100.0, device="tpu")

    def work(i: int) -> None:
        mine = torch.full((100,), float(i), device="tpu")
        for k in range(60):
            mine = mine + shared
            mine[k].mul_(0)
            mine -= shared
        expected = torch.full((100,), float(i))
        for k in range(60):
            expected = expected + torch.arange(100.0)
            expected[k].mul_(0)
            expected -= torch.arange(100.0)
        torch.testing.assert_close(mine.cpu(), expected)

    in_threads(work)


def test_threads_update_one_tensor_atomically() -> None:
    x = torch.zeros(10, device="tpu")

    def work(i: int) -> None:
        for _ in range(50):
            x[i].add_(1)

    in_threads(work)
    assert x.tolist() == [50.0] * 8 + [0, 0]


def test_autograd_in_threads() -> None:
    w = torch.ones(5, device="tpu", requires_grad=True)

    def work(i: int) -> None:
        for _ in range(10):
            (grad,) = torch.autograd.grad((w * i).pow(2).sum(), w)
            assert grad.tolist() == [2.0 * i * i] * 5

    in_threads(work)


def test_a_miss_inside_backward() -> None:
    x = torch.full((3, 5), 0.3, device="tpu", requires_grad=True)
    y = torch.special.i1e(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    host = torch.full((3, 5), 0.3, requires_grad=True)
    torch.testing.assert_close(grad.cpu(), torch.autograd.grad(torch.special.i1e(host).sum(), host)[0])


# --- autograd, functorch, modes


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = X.to("tpu")
        y = (x * 2)[1:]
        y.add_(1)
        assert y.is_inference() and x.is_inference()
    torch.testing.assert_close((y + 0).cpu(), (X * 2)[1:] + 1)
    with pytest.raises(RuntimeError, match="inference"):
        y.requires_grad_().sum().backward()
    w = torch.ones(4, device="tpu", requires_grad=True)
    with torch.inference_mode():
        assert not (w * 2).requires_grad
    with torch.no_grad():
        w.add_(1)
    assert w.tolist() == [2] * 4


def test_higher_derivatives_and_hooks() -> None:
    def run(x: Tensor) -> Any:
        seen: list[Tensor] = []
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.register_hook(seen.append)
        (h,) = torch.autograd.grad((g * g).sum(), x)
        return g, h, seen, torch.autograd.functional.hessian(lambda t: (t**3).sum(), x[0])

    on_both(run, X.requires_grad_())
    X.requires_grad_(False)


def test_gradients_accumulate_in_place() -> None:
    def run(x: Tensor) -> Tensor:
        p = torch.nn.Parameter(x * 1)
        for _ in range(3):
            (p * p).sum().backward()
        kept = p.grad
        (p * p).sum().backward()
        assert p.grad is kept
        return p.grad

    on_both(run, X)


def test_custom_function() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            return x**3, 3 * x**2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(output[1])
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            return grad * ctx.saved_tensors[0]

        @staticmethod
        def vmap(info: Any, dims: Any, x: Tensor) -> Any:
            return Cube.apply(x), dims * 2

    def run(x: Tensor) -> Any:
        f = lambda t: Cube.apply(t)[0].sum()  # noqa: E731
        return (
            torch.func.grad(f)(x),
            torch.func.vmap(torch.func.grad(f))(x),
            torch.func.vmap(lambda t: Cube.apply(t)[0])(x),
        )

    on_both(run, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.func.grad(lambda t: t.sin().sum())(x),
        lambda x: torch.func.vmap(lambda t: t.softmax(0) + t[0])(x),
        lambda x: torch.func.vmap(torch.dot, in_dims=(0, 0))(x, x),
        lambda x: torch.func.vmap(lambda t: t.index_select(0, t[:2].long().abs() % 3))(x),
        lambda x: torch.func.jvp(lambda t: (t * t).exp().sum(1), (x / 9,), (x,)),
        lambda x: torch.func.jacrev(lambda t: t.tanh() * t[0])(x[0]),
        lambda x: torch.func.jacfwd(lambda t: t.tanh() * t[0])(x[0]),
        lambda x: torch.func.hessian(lambda t: t.sin().sum())(x[0]),
        lambda x: torch.func.vmap(torch.func.grad(lambda t: (t @ t).exp()), in_dims=1)(x / 9),
        lambda x: torch.func.vmap(lambda t: torch.where(t > 0, t, 0.0).cumsum(0))(x),
        lambda x: torch.func.linearize(lambda t: t.sin(), x)[1](x),
    ],
)
def test_functorch(fn: Callable[[Tensor], Any]) -> None:
    on_both(fn, X)


def test_per_sample_gradients() -> None:
    def run(x: Tensor, w: Tensor, b: Tensor) -> Any:
        def loss(params: dict[str, Tensor], sample: Tensor) -> Tensor:
            return F.linear(sample, params["w"], params["b"]).relu().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))({"w": w, "b": b}, x)

    on_both(run, X, torch.ones(2, 4) / 3, torch.ones(2))


@pytest.mark.parametrize("mask", [None, (3, 2, 1, 5, 6), (3, 5, 6)], ids=["no mask", "of heads", "of all"])
def test_attention_under_vmap(mask: tuple[int, ...] | None) -> None:
    def run(q: Tensor, k: Tensor, m: Tensor | None) -> Any:
        def loss(q: Tensor, k: Tensor, m: Tensor | None) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, m).square().sum()

        wanted = (0, 1) if m is None else (0, 1, 2)
        return torch.func.vmap(torch.func.grad(loss, wanted), in_dims=(0, 1, None if m is None else 0))(q, k, m)

    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(3, 2, 4, 5, 8, generator=generator), torch.randn(2, 3, 4, 6, 8, generator=generator)
    on_both(run, q, k, None if mask is None else torch.randn(mask, generator=generator), atol=1e-4, rtol=1e-4)
    # Three dimensions, the mapped one among the keys' only.
    whole = torch.func.vmap(F.scaled_dot_product_attention, in_dims=(None, 0, 0))
    on_both(whole, q[0, 0], k.transpose(0, 1)[:, 0], k.transpose(0, 1)[:, 0])


def test_randomness_under_vmap() -> None:
    x = torch.zeros(4, 3, device="tpu")
    different = torch.func.vmap(lambda t: t + torch.randn(3, device="tpu"), randomness="different")(x)
    same = torch.func.vmap(lambda t: t + torch.randn(3, device="tpu"), randomness="same")(x)
    assert different.unique().numel() == 12 and same.unique().numel() == 3


class Record(TorchDispatchMode):
    """Writes down the ops that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_programs_ops_and_none_of_the_lowering() -> None:
    x = torch.ones(2, 9, device="tpu")
    with Record() as record:
        y = torch.hypot(x, x * 3)
    assert record.seen == ["aten::mul.Tensor", "aten::hypot"]
    torch.testing.assert_close(y.cpu(), torch.full((2, 9), 10.0).sqrt())


def test_tensor_subclasses_and_torch_function() -> None:
    class Named(torch.Tensor):
        pass

    x = X.to("tpu").as_subclass(Named)
    y = x * 2 + x[0]
    assert type(y) is Named and y.device.type == "tpu"
    torch.testing.assert_close(y.as_subclass(Tensor).cpu(), X * 2 + X[0])


def test_a_miss_under_default_device_autocast_and_fake_mode() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = X.to("tpu")
    with torch.device("tpu"), torch.autocast("tpu", dtype=torch.bfloat16):
        assert_same(x.logaddexp(x * 3), X.logaddexp(X * 3))
    with torch.device("meta"):
        assert_same(x.logaddexp(x * 4), X.logaddexp(X * 4))
    with FakeTensorMode():
        fake = torch.empty(3, 4, device="tpu")
        made = (fake @ fake.t()).relu()
        assert made.shape == (3, 3) and made.device.type == "tpu"


def test_meta_and_device_do_not_mix_up() -> None:
    assert torch.empty_like(X.to("tpu"), device="meta").is_meta
    assert torch.zeros_like(X, device="tpu").device.type == "tpu"
    there = X.to("tpu")
    for make in (torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.empty_like):
        for device in ("cpu", "meta", "tpu"):
            assert make(there, device=device).device.type == make(X, device=device).device.type == device
    for device in ("cpu", "meta"):
        assert torch.full_like(there, 2.0, device=device).device.type == device
        assert (
            there.new_zeros(2, device=device).device.type
            == there.new_full((2,), 1, device=device).device.type
            == device
        )
    assert torch.tensor([1, 2], device="tpu").new_tensor([1.5]).dtype == torch.int64


# --- unsupported ops, debug mode

UNSUPPORTED = """
import torch
from torch.library import Library
library = Library("fallback_test", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
x = torch.arange(3.0, device="tpu")
try:
    torch.ops.fallback_test.twice(x)
except NotImplementedError as error:
    assert "fallback_test::twice" in str(error) and "set_fallback" in str(error), error
else:
    raise AssertionError
assert torch.tpu.cpu_fallbacks() == {}
torch.tpu.set_fallback("cpu")
for _ in range(3):
    y = torch.ops.fallback_test.twice(x)
assert y.device.type == "tpu" and y.tolist() == [0, 2, 4]
assert torch.tpu.cpu_fallbacks() == {"fallback_test::twice": 3}
torch.tpu.set_fallback(None)
for z in (torch.ones(2, device="tpu"), x):  # also the call that fell back before
    try:
        torch.ops.fallback_test.twice(z)
    except NotImplementedError:
        pass
    else:
        raise AssertionError
"""


def test_unsupported_ops_raise_or_fall_back_as_asked() -> None:
    done = run_python(UNSUPPORTED)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has no lowering") == 1, "one warning per op"
    with pytest.raises(ValueError, match="fallback"):
        torch.tpu.set_fallback("gpu")


def test_modes_are_set_and_restored() -> None:
    assert torch.tpu.get_mode() == "strict"
    with torch.tpu.mode("debug"):
        assert torch.tpu.get_mode() == "debug"
        torch.testing.assert_close((X.to("tpu") * 2).cpu(), X * 2)
        with torch.tpu.mode("strict"):
            assert torch.tpu.get_mode() == "strict"
        with pytest.raises(ZeroDivisionError), torch.tpu.mode("strict"):
            raise ZeroDivisionError
        assert torch.tpu.get_mode() == "debug"
    with pytest.raises(ValueError, match="mode"):
        torch.tpu.set_mode("quick")
    assert torch.tpu.get_mode() == "strict"
    assert expect("import torch; print(torch.tpu.get_mode())", TORCH_TPU_MODE="debug") == "debug"


def at(*places: int) -> Callable[[Tensor], Tensor]:
    """A maker of an index tensor on the device of an operand."""
    return lambda x: torch.tensor(places, device=x.device)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[at(0, 3)(x)],
        lambda x: x[at(-4)(x)],
        lambda x: x[:, at(4)(x)],
        lambda x: x.index_select(0, at(0, 3)(x)),
        lambda x: x.index_select(0, at(-1)(x)),
        lambda x: x.gather(1, at(0, 4)(x)[None]),
        lambda x: x.scatter(1, at(0, 4)(x)[None], 1.0),
        lambda x: x.scatter_add(0, at(3)(x)[None], x[:1, :1]),
        lambda x: x.index_add(0, at(5)(x), x[:1]),
        lambda x: x.index_copy_(0, at(3)(x), x[:1]),
        lambda x: x.index_fill(0, at(3)(x), 1.0),
        lambda x: x.index_put_((at(3)(x),), x[:1]),
        lambda x: F.embedding(at(1, 3)(x), x),
        lambda x: F.embedding(at(-1)(x), x),
        lambda x: F.nll_loss(x, at(0, 4, 1)(x)),
        lambda x: F.one_hot(at(1, 4)(x), 3),
        lambda x: x.take(at(12)(x)),
    ],
)
def test_debug_mode_checks_indices(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        fn(X.clone())
    x = X.to("tpu")
    with torch.tpu.mode("debug"), pytest.raises((IndexError, RuntimeError)):
        fn(x)
    torch.testing.assert_close(x.cpu(), X, msg="a refused index changes nothing")


def test_static_indices_are_always_checked() -> None:
    x = X.to("tpu")
    for wrong in (lambda: x[3], lambda: x[0, 4], lambda: x.select(1, -5), lambda: x.narrow(0, 2, 2)):
        with pytest.raises((IndexError, RuntimeError)):
            wrong()


def test_debug_mode_names_the_line() -> None:
    x = X.to("tpu")
    with torch.tpu.mode("debug"):
        y = x.exp()
        assert torch.tpu.current_stream().query()
    torch.testing.assert_close(y.cpu(), X.exp())


def test_equal_and_allclose() -> None:
    x = to_device(X, "tpu")
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1) and not torch.equal(x, x[:2])
    assert torch.allclose(x, x + 1e-9) and not torch.allclose(x, x + 1)
    with pytest.raises(RuntimeError, match="same device"):
        torch.equal(x, X)


@pytest.mark.parametrize("tokens", [1, 3, 64])
def test_products_with_a_weight_transposed(tokens: int) -> None:
    weight, x, bias = torch.randn(64, 32), torch.randn(tokens, 32), torch.randn(64)
    on_both(F.linear, x, weight)
    on_both(F.linear, x, weight, bias)
