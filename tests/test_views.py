"""Views: reading and writing through any chain of them; all that shares the storage is compared with the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity import assert_same, compiles, on_both, to_device

Tensor = torch.Tensor
Step = tuple[str, tuple[Any, ...]]

SHAPES = [(24,), (4, 6), (3, 4, 5), (2, 3, 4, 3), (5, 1, 7), (1,), (2, 2, 2, 2, 2)]


def steps_for(x: Tensor, rng: random.Random) -> list[Step]:
    """The view ops that fit a tensor, with arguments drawn at random."""
    steps: list[Step] = [("unsqueeze", (rng.randint(0, x.ndim),)), ("squeeze", ())]
    if x.ndim == 0:
        return [*steps, ("expand", ((2, 3),)), ("view", ((1, 1),))]
    dim = rng.randrange(x.ndim)
    size = x.shape[dim]
    other = rng.randrange(x.ndim)
    order = list(range(x.ndim))
    rng.shuffle(order)
    steps += [
        ("transpose", (dim, other)),
        ("permute", (order,)),
        ("movedim", (dim, other)),
        ("reshape", ((-1,),)),
    ]
    if x.ndim < 4:
        steps.append(("expand", ((2, *x.shape),)))
    if size > 0:
        begin = rng.randrange(size)
        length = rng.randint(1, size - begin)
        steps += [
            ("narrow", (dim, begin, length)),
            ("select", (dim, rng.randrange(size) - rng.choice([0, size]))),
            ("every", (dim, begin, rng.randint(1, 3))),
            ("part_of_chunk", (dim, rng.randint(1, 3))),
            ("part_of_split", (dim, rng.randint(1, size))),
            ("unfold", (dim, rng.randint(1, size), rng.randint(1, 2))),
        ]
        for factor in (2, 3):
            if size % factor == 0:
                steps.append(("unflatten", (dim, (factor, size // factor))))
    if x.ndim > 1 and dim != other:
        steps.append(("diagonal", (rng.randint(-1, 1), dim, other)))
    if x.ndim > 1 and x.numel() > 0:
        steps.append(("part_of_unbind", (dim,)))
    if x.numel() > 4 and x.storage_offset() == 0:
        room = x.untyped_storage().nbytes() // x.element_size()
        offset = rng.randint(0, room // 4)
        strides = (rng.randint(0, 3), rng.randint(1, 3))
        if offset + 3 * sum(strides) < room:
            steps.append(("as_strided", ((3, 3), strides, offset)))
    return steps


def apply(x: Tensor, step: Step) -> Tensor:
    """One view op of `steps_for`."""
    name, arguments = step
    if name == "every":
        dim, begin, pace = arguments
        return x[(*[slice(None)] * dim, slice(begin, None, pace))]
    if name == "part_of_chunk":
        return x.chunk(arguments[1], arguments[0])[-1]
    if name == "part_of_split":
        return x.split(arguments[1], arguments[0])[-1]
    if name == "part_of_unbind":
        return x.unbind(*arguments)[-1]
    return getattr(x, name)(*arguments)


def draw_chain(base: Tensor, rng: random.Random) -> list[Step]:
    """A chain of one to five view ops that works on `base`."""
    chain, x = [], base
    for _ in range(rng.randint(1, 5)):
        step = rng.choice(steps_for(x, rng))
        after = apply(x, step)
        if (
            after.numel() > 400
            or after.ndim > 6
            or after.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
        ):
            continue
        chain.append(step)
        x = after
    return chain


def follow(base: Tensor, chain: list[Step]) -> list[Tensor]:
    """The base and every view on the way."""
    views = [base]
    for step in chain:
        views.append(apply(views[-1], step))
    return views


def overlaps(x: Tensor) -> bool:
    """True if two elements are at one place."""
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size()).as_strided(
        x.shape, x.stride(), x.storage_offset()
    )
    return places.unique().numel() != x.numel()


def add(v: Tensor) -> None:
    v.add_(10)


def multiply(v: Tensor) -> None:
    v.mul_(v.flip(0) if v.ndim else v)


def copy(v: Tensor) -> None:
    v.copy_(torch.arange(float(v.numel()), device=v.device).reshape(v.shape))


def copy_from_host(v: Tensor) -> None:
    v.copy_(torch.arange(float(v.numel())).reshape(v.shape))


def fill(v: Tensor) -> None:
    v.fill_(-3.5)


def zero(v: Tensor) -> None:
    v.zero_()


def assign(v: Tensor) -> None:
    v[...] = 7


def mask(v: Tensor) -> None:
    v.masked_fill_(v > 8, -1.0)


def out(v: Tensor) -> None:
    torch.add(v, 1, out=v)


WRITES = [add, multiply, copy, copy_from_host, fill, zero, assign, mask, out]


@pytest.mark.parametrize("seed", range(60))
def test_random_chain_is_read(seed: int) -> None:
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    host = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    chain = draw_chain(host, rng)
    base = host.to("tpu")
    view, expected = follow(base, chain)[-1], follow(host, chain)[-1]
    assert (view.shape, view.stride(), view.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    torch.testing.assert_close((view + 1).cpu(), expected + 1)
    torch.testing.assert_close(view.cpu(), expected)


@pytest.mark.parametrize("seed", range(90))
def test_random_chain_is_written_through(seed: int) -> None:
    rng = random.Random(1000 + seed)
    shape = rng.choice(SHAPES)
    host = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    base = host.to("tpu")
    # Two writes through two chains of one base: views made before a write must see it.
    first, second = draw_chain(host, rng), draw_chain(host, rng)
    hosts, views = [follow(host, c) for c in (first, second)], [follow(base, c) for c in (first, second)]
    for h, v in zip(hosts, views, strict=True):
        write = rng.choice([fill, zero] if overlaps(h[-1]) else WRITES)
        write(h[-1])
        write(v[-1])
        assert_same([views, base], [hosts, host])
    torch.testing.assert_close((views[0][-1] * 2).cpu(), hosts[0][-1] * 2)


@pytest.mark.parametrize("seed", range(20))
def test_random_chain_on_memory_never_written(seed: int) -> None:
    """`empty` has no buffer yet; the first write through a view makes the whole one, of the storage's size."""
    rng = random.Random(2000 + seed)
    host = torch.zeros(rng.choice(SHAPES))
    base = torch.empty(host.shape, device="tpu")
    base_zero = torch.zeros_like(base)
    chain = draw_chain(host, rng)
    for device_base in (base, base_zero):
        view = follow(device_base, chain)[-1]
        view.fill_(4)
    follow(host, chain)[-1].fill_(4)
    view, expected = follow(base, chain)[-1], follow(host, chain)[-1]
    torch.testing.assert_close((view + 1).cpu(), expected + 1)
    assert_same(base_zero, host)
    assert (base + 1).shape == host.shape


@pytest.mark.parametrize("count", [20, 25, 33])
@pytest.mark.parametrize(
    "place",
    [lambda x: x.as_strided((3, 3), (2, 3)), lambda x: x[0:8:2], lambda x: x[3], lambda x: x[:16].view(4, 4).t()],
    ids=["overlapping", "stepped", "element", "transposed"],
)
def test_first_write_of_storages_of_several_sizes(count: int, place: Callable[[Tensor], Tensor]) -> None:
    """The program of a first write depends on how large the storage is."""
    x = torch.empty(count, device="tpu")
    place(x).fill_(1)
    y = torch.zeros(count)
    place(y).fill_(1)
    x[-1] = 5
    y[-1] = 5
    at = y != 0
    torch.testing.assert_close(x.cpu()[at], y[at])
    torch.testing.assert_close((x * 1).cpu()[at], y[at])


@pytest.mark.parametrize("seed", range(12))
def test_gradient_through_a_random_chain(seed: int) -> None:
    rng = random.Random(3000 + seed)
    host = torch.arange(24.0).reshape(rng.choice([(4, 6), (2, 3, 4)]))
    chain = draw_chain(host, rng)

    def run(x: Tensor) -> Tensor:
        y = x * 2
        view = follow(y, chain)[-1]
        if not overlaps(view):
            view.mul_(3)
        (grad,) = torch.autograd.grad((y * y).sum() + (view * view).sum(), x)
        return grad

    on_both(run, host.requires_grad_())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64]
)
def test_writes_of_every_kind_of_dtype(dtype: torch.dtype) -> None:
    def run(x: Tensor) -> list[Tensor]:
        x[:, 1:3].copy_(x[:, :2].clone())
        x.t()[::2].fill_(1)
        x.diagonal().zero_()
        return [x, x[1:].t(), x.unfold(1, 2, 2)]

    x = torch.arange(20).reshape(4, 5)
    on_both(run, (x % 2 == 0) if dtype == torch.bool else x.to(dtype))


@pytest.mark.parametrize(
    "run",
    [
        lambda y: y[1:].copy_(y[:-1].clone()),
        lambda y: y.add_(y),
        lambda y: y.t().add_(y.clone().t()),
        lambda y: y[:1].add_(y[1:2]),
        lambda y: y.copy_(y.t().clone()),
        lambda y: torch.add(y[:2], y[1:], out=y[:2].clone()),
        lambda y: y.index_copy_(0, torch.tensor([0, 2], device=y.device), y[1:].clone()),
    ],
)
def test_source_and_destination_share_memory(run: Callable[[Tensor], Tensor]) -> None:
    on_both(run, torch.arange(9.0).reshape(3, 3))


def test_source_is_read_whole_before_its_memory_is_written() -> None:
    """The CPU refuses operands that overlap the destination partly, or gives whatever its loops do."""
    y = torch.arange(6.0, device="tpu")
    y[1:].copy_(y[:-1])
    torch.testing.assert_close(y.cpu(), torch.tensor([0.0, 0, 1, 2, 3, 4]))
    y.copy_(torch.arange(6.0))
    y[:-1].copy_(y[1:])
    torch.testing.assert_close(y.cpu(), torch.tensor([1.0, 2, 3, 4, 5, 5]))
    host = torch.arange(9.0).reshape(3, 3)
    y = host.to("tpu")
    y.t().add_(y)
    torch.testing.assert_close(y.cpu(), host + host.t())
    torch.mm(y, y, out=y)
    torch.testing.assert_close(y.cpu(), (host + host.t()) @ (host + host.t()))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.expand(3, 4).add_(1),
        lambda x: x.expand(3, 4).mul_(x),
        lambda x: torch.add(x, 1, out=x.expand(3, 4)),
        lambda x: x.expand(3, 4).copy_(torch.ones(3, 4, device=x.device)),
        lambda x: x.expand(3, 4).fill_(2),
    ],
)
def test_write_through_expanded(run: Callable[[Tensor], Tensor]) -> None:
    on_both(run, torch.arange(4.0))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x[1],
        lambda x: x[-1, 2],
        lambda x: x[:, None, 1:3],
        lambda x: x[..., ::2],
        lambda x: x[1:1],
        lambda x: x[torch.tensor([0, 2], device=x.device)],
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[:, [1, 1, 0]],
        lambda x: x[x > 5],
        lambda x: x[torch.tensor([True, False, True], device=x.device)],
        lambda x: x[True],
        lambda x: x[2, [0, 1]],
        lambda x: x[[0, 1], :2],
        lambda x: x[(torch.tensor([[0], [1]], device=x.device), torch.tensor([1, 2], device=x.device))],
    ],
)
def test_index_reads_and_writes(run: Callable[[Tensor], Tensor]) -> None:
    on_both(run, torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ((1,), 5.0),
        ((slice(None), 1), torch.tensor([7.0, 8.0, 9.0])),
        ((slice(None, None, 2), slice(1, 3)), torch.ones(2)),
        ((Ellipsis, None), 3),
        (([0, 2],), torch.full((4,), 2.0)),
        (([0, 2], [1, 1]), torch.tensor([1.0, 2.0])),
        ((slice(None), [3, 0]), torch.tensor([[1.0, 2.0]])),
        ((True,), -1.0),
        ((slice(1, 1),), 4.0),
        ((torch.tensor([True, False, True]),), torch.tensor([[9.0]])),
    ],
)
def test_index_assignment(key: Any, value: Any) -> None:
    def run(x: Tensor) -> Tensor:
        x[key] = value.to(x.device) if isinstance(value, Tensor) else value
        return x

    on_both(run, torch.arange(12.0).reshape(3, 4))


def test_index_assignment_by_mask() -> None:
    def run(x: Tensor) -> Tensor:
        x[x > 5] = 0
        x[x == 1] = torch.tensor([8.0], device=x.device)
        x.t()[x.t() == 2] = 11.0
        return x

    on_both(run, torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.uint8, torch.float32),
        (torch.int64, torch.int32),
        (torch.int16, torch.int64),
        (torch.bfloat16, torch.int16),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.float32),
        (torch.bool, torch.uint8),
        (torch.float64, torch.float16),
    ],
)
def test_dtype_views_read_and_write(source: torch.dtype, target: torch.dtype) -> None:
    def run(x: Tensor) -> list[Tensor]:
        view = x.view(target)
        view[0] = view[1].clone()
        return [view + view if target != torch.bool else view ^ True, view[:, 1:], x]

    x = torch.arange(64).reshape(4, 16)
    on_both(run, x % 2 == 0 if source == torch.bool else (x + 1).to(source))


def test_dtype_view_errors_are_the_cpus() -> None:
    on_both(lambda x: x.view(torch.float64), torch.ones(3))
    on_both(lambda x: x.t().view(torch.float64), torch.ones(4, 4))
    on_both(lambda x: x[1:].view(torch.float64), torch.ones(5))


def test_complex_views() -> None:
    def run(z: Tensor) -> list[Tensor]:
        parts = torch.view_as_real(z)
        parts[..., 1] += 1
        z.imag.mul_(2)
        z.real[0] = 9
        conj = z.conj()
        conj[1] = 5 + 2j
        return [z, parts, conj, conj.imag, z.mH, conj @ z, torch.view_as_complex(parts * 2), conj.resolve_conj()]

    z = torch.arange(9.0).reshape(3, 3) + 1j * torch.arange(9.0).reshape(3, 3).t()
    on_both(run, z)


def test_conjugate_and_negative_views_cross_devices() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    for there, here in ((z.to("tpu").conj(), z.conj()), (z.to("tpu").conj().imag, z.conj().imag)):
        torch.testing.assert_close(there.cpu(), here)
        torch.testing.assert_close((there * 1).cpu(), here * 1)
        torch.testing.assert_close(here.to("tpu").cpu(), here.resolve_conj().resolve_neg())
        assert there.is_conj() == here.is_conj() and there.is_neg() == here.is_neg()
    target = torch.zeros(2, dtype=torch.complex64, device="tpu")
    target.conj().copy_(z)
    torch.testing.assert_close(target.cpu(), z.conj().resolve_conj())
    target.copy_(z.conj())
    torch.testing.assert_close(target.cpu(), z.conj().resolve_conj())


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4), ()])
def test_empty_and_0d(shape: tuple[int, ...]) -> None:
    def run(x: Tensor) -> list[Tensor]:
        x.add_(1)
        x.fill_(2)
        views = [x.reshape(-1), x.unsqueeze(0), x.expand(2, *x.shape), x.flatten(), x.T if x.ndim == 2 else x]
        return [v * 2 for v in views] + [x.sum(), torch.cat([x.reshape(-1)] * 2), x.clone()]

    on_both(run, torch.ones(shape))


@pytest.mark.parametrize(
    "shape, format", [((2, 3, 4, 5), torch.channels_last), ((2, 3, 2, 2, 3), torch.channels_last_3d)]
)
def test_memory_formats_are_kept(shape: tuple[int, ...], format: torch.memory_format) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(memory_format=format)
    there = x.to("tpu")
    made = {
        "move": lambda t: t,
        "relu": torch.relu,
        "clone": torch.clone,
        "add": lambda t: t + t,
        "contiguous": torch.Tensor.contiguous,
        "empty_like": torch.zeros_like,
        "double": torch.Tensor.double,
        "sliced": lambda t: t[:, 1:] * 2,
        "copied": lambda t: torch.zeros_like(t, memory_format=torch.contiguous_format).copy_(t),
        "back": lambda t: t.contiguous().to(memory_format=format),
    }
    for name, fn in made.items():
        got, expected = fn(there), fn(x)
        assert got.stride() == expected.stride(), name
        torch.testing.assert_close(got.cpu(), expected)


def test_dense_permuted_layouts_are_kept() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    there = to_device(x, "tpu")
    for fn in (torch.neg, lambda t: t + 1, torch.clone, lambda t: t.double(), torch.empty_like):
        assert fn(there).stride() == fn(x).stride()
    torch.testing.assert_close(torch.neg(there).cpu(), -x)


def test_offsets_compile_nothing_new() -> None:
    x, y = torch.randn(8, 10).to("tpu"), torch.zeros(8, 10, device="tpu")
    for t in range(2):
        y[:, t] = torch.relu(x[:, t])
        y[t] = y[t] + x[t, :].sum()
        y[t, t : t + 3].mul_(2)
    before = compiles()
    for t in range(2, 7):
        y[:, t] = torch.relu(x[:, t])
        y[t] = y[t] + x[t, :].sum()
        y[t, t : t + 3].mul_(2)
    assert compiles() == before


def test_metadata_ops_launch_nothing() -> None:
    x = torch.ones(4, 6, device="tpu")
    before = torch.tpu.cache_stats()["launches"]
    views = [
        x.t(),
        x[1:, ::2],
        x.view(3, 8),
        x.expand(2, 4, 6),
        x.detach(),
        x.unfold(0, 2, 1),
        x.diagonal(),
        x.as_strided((2,), (5,)),
    ]
    views += [*x.split(2), *x.unbind(1), x.unsqueeze(0), torch.empty_like(x), torch.view_as_complex(x.view(4, 3, 2))]
    torch.empty(0, device="tpu").set_(x)
    assert torch.tpu.cache_stats()["launches"] == before
    assert all(v.device.type == "tpu" for v in views)


def test_views_that_schemas_do_not_call_views() -> None:
    def run(x: Tensor, other: Tensor) -> Any:
        out = torch.empty(8, 12, device=x.device)
        torch.kron(x, other, out=out)
        for part in (*torch.unsafe_chunk(x, 2), *torch.unsafe_split(x, [1, 3], 1), torch.ops.aten._unsafe_view(x, [8])):
            part.mul_(2)
        return out

    on_both(run, torch.arange(8.0).view(2, 4), torch.arange(12.0).view(4, 3))


def test_version_counters_move_as_on_cpu() -> None:
    for device in ("cpu", "tpu"):
        x = torch.ones(3, device=device)
        view = x[1:]
        view.add_(1)
        x.mul_(2)
        torch.add(x, 1, out=x)
        x.detach().zero_()
        assert (x._version, view._version) == (4, 4)


def test_autograd_notices_a_write_through_a_view() -> None:
    def run(x: Tensor) -> Tensor:
        y = x * 1
        z = y.exp()
        z[0] = 0
        return torch.autograd.grad(z.sum(), x)[0]

    on_both(run, torch.ones(3, requires_grad=True))


def test_leaf_may_not_be_written() -> None:
    on_both(lambda x: x.add_(1), torch.ones(3, requires_grad=True))
    on_both(lambda x: x[1:].add_(1), torch.ones(3, requires_grad=True))


def test_base_of_a_view_stays_alive() -> None:
    view = torch.arange(10.0, device="tpu")[3:5]
    assert view._is_view() and view._base is not None
    torch.testing.assert_close((view + 0).cpu(), torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.view(5, 5),
        lambda x: x.t().view(-1),
        lambda x: x[4],
        lambda x: x.select(0, -5),
        lambda x: x.narrow(0, 2, 5),
        lambda x: x.expand(3, 6),
        lambda x: x.permute(0, 0),
        lambda x: x.as_strided((30,), (1,)) + 1,
        lambda x: x.unfold(0, 9, 1),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: x.transpose(0, 2),
        lambda x: x.split([1, 1]),
        lambda x: x[:, ::-1],
        lambda x: x.as_strided((2,), (-1,)),
    ],
)
def test_wrong_views_raise_as_on_cpu(run: Callable[[Tensor], Any]) -> None:
    on_both(run, torch.arange(24.0).reshape(4, 6))


@pytest.mark.parametrize(
    "split", [lambda x: x.unsafe_chunk(2), lambda x: x.unsafe_split(1), lambda x: x.unsafe_split_with_sizes([1, 3])]
)
def test_parts_that_are_no_views_share_memory(split):
    def write(x):
        split(x)[0].zero_()
        return x

    on_both(write, torch.arange(8.0).reshape(4, 2))


def test_view_copy_of_what_has_no_view():
    on_both(lambda x: torch.view_copy(x, (6,)), torch.arange(6.0).reshape(2, 3).t())
