"""What goes into compiled functions and comes out: views, writes, containers, numbers, dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from alike import assert_as_eager
from torch import Tensor


def device_tensor(*sizes: int, grad: bool = False) -> Tensor:
    return torch.randn(*sizes, device="tpu", requires_grad=grad)


def test_results_that_alias_arguments_share_their_storage() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return x, x.t(), x[1:], x.view(-1), x.expand(2, 3, 4)

    x = device_tensor(3, 4)
    assert_as_eager(run, x)
    results = torch.compile(run, fullgraph=True)(x)
    x.zero_()
    assert all(r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for r in results)
    assert all(r.abs().max() == 0 for r in results)


def test_results_that_alias_each_other_share_their_storage() -> None:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y[1:]

    assert_as_eager(run, device_tensor(3, grad=True))
    whole, part = torch.compile(run, fullgraph=True)(device_tensor(3))
    whole.zero_()
    assert part.tolist() == [0, 0]


def test_views_at_other_offsets_are_the_same_program() -> None:
    run = torch.compile(lambda x: (x * 2).sum(), fullgraph=True)
    x = torch.arange(20.0, device="tpu").reshape(5, 4)
    run(x[0])
    run(x[1])
    rows = [x[i] for i in range(5)]
    before = torch.tpu.cache_stats()
    got = [run(row) for row in rows]
    after = torch.tpu.cache_stats()
    assert (after["compiles"], after["disk_hits"]) == (before["compiles"], before["disk_hits"])
    assert [y.item() for y in got] == (x * 2).sum(1).tolist()


def test_views_of_other_strides_are_right() -> None:
    run = torch.compile(lambda x, y: x @ y + x.t(), fullgraph=True)
    x, y = device_tensor(6, 6), device_tensor(6, 6)
    for a, b in ((x, y), (x.t(), y), (x[::2, ::2], y[:3, 3:]), (x.flip(0), y.t()), (x[:1].expand(6, 6), y)):
        torch.testing.assert_close(run(a, b), a @ b + a.t())


def test_as_strided_reaches_what_a_view_does_not_show() -> None:
    base = torch.arange(10.0, device="tpu")
    run = torch.compile(lambda x: x.as_strided((3,), (2,), 1) * 2, fullgraph=True)
    assert run(base[6:8]).tolist() == [2.0, 6.0, 10.0]


def test_writes_to_arguments_and_to_views_of_them() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x[1:].add_(y[:2])
        y.t().mul_(2)
        x[0] = y[0]
        y.view(-1)[::2].zero_()
        return x + 1

    assert_as_eager(run, device_tensor(3, 4), device_tensor(3, 4))


def test_arguments_that_share_storage_see_each_others_writes() -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b

    outcomes = []
    for f in (run, torch.compile(run, fullgraph=True)):
        base = torch.arange(6.0, device="tpu")
        outcomes.append((f(base[:4], base[2:]), base))
    torch.testing.assert_close(*outcomes)


def test_writes_into_the_argument_of_a_view_show_in_its_base() -> None:
    base = torch.zeros(4, 4, device="tpu")
    torch.compile(lambda row: row.add_(1), fullgraph=True)(base[2])
    assert base.sum(1).tolist() == [0, 0, 4, 0]


def test_out_arguments() -> None:
    def run(x: Tensor, y: Tensor, to: Tensor, part: Tensor) -> Tensor:
        torch.add(x, y, out=to)
        torch.mul(x[0], 3, out=part[0])
        return to.sum()

    x = device_tensor(2, 3)
    assert_as_eager(run, x, device_tensor(2, 3), torch.empty(2, 3, device="tpu"), torch.zeros(2, 3, device="tpu"))


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_containers_in_and_out() -> None:
    def run(batch: dict[str, Any], pair: Pair) -> dict[str, Any]:
        ids = [x + len(batch) for x in batch["list"]]
        return {"pair": Pair(pair.right, pair.left * 2), "nested": (ids, {"n": 3, "none": None})}

    batch = {"list": [device_tensor(2), device_tensor(3)], "more": ()}
    assert_as_eager(run, batch, Pair(device_tensor(2, grad=True), device_tensor(1)))


def test_numbers_and_scalars_on_the_cpu() -> None:
    def run(x: Tensor, factor: float, times: int, flag: bool, scalar: Tensor) -> Tensor:
        return (x * factor + times if flag else x) * scalar

    x = device_tensor(3)
    for factor, times in ((0.5, 2), (1.5, 3), (2.5, 4)):
        assert_as_eager(run, x, factor, times, True, torch.tensor(3.0))
    assert_as_eager(lambda x: x * torch.tensor(2.5) + torch.tensor([1, 2, 3]).to(x.device), x)


def test_work_on_the_cpu_beside_the_device() -> None:
    def run(x: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
        host = host.sin()
        return x + host.to(x.device), x.sum().cpu() + host

    assert_as_eager(run, device_tensor(3), torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (3, 4), device="tpu").to(dtype)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return x == x[0], x & x if not dtype.is_floating_point else x / 3, x.sum(0), x.float() / 2, x.cumsum(1)

    results = assert_as_eager(run, x)
    assert results[2].dtype == (dtype if dtype.is_floating_point else torch.int64)


def test_float64_keeps_its_digits() -> None:
    x = torch.tensor([1.0, 1e-12], dtype=torch.float64, device="tpu")
    assert torch.compile(lambda x: x.sum() - 1, fullgraph=True)(x).item() == pytest.approx(1e-12, rel=1e-3)


def test_transposed_inverses_of_a_batch() -> None:
    """The CPU plugin can't lay out batched triangular solves that are returned transposed."""
    x = device_tensor(2, 3, 3) + 3 * torch.eye(3, device="tpu")
    run = torch.compile(lambda x: (torch.linalg.inv(x).mT.contiguous(), torch.linalg.inv(x)), fullgraph=True)
    transposed, inverse = run(x)
    torch.testing.assert_close(inverse @ x, torch.eye(3, device="tpu").expand(2, 3, 3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(transposed, inverse.mT)
    assert_as_eager(lambda x: torch.linalg.inv(x), x.requires_grad_(), rtol=1e-4, atol=1e-5)


def test_complex_numbers() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(x, y)
        return (z * z.conj()).real, torch.view_as_real(z.exp()), torch.fft.fft(z).abs(), z.angle()

    assert_as_eager(run, device_tensor(4, grad=True), device_tensor(4, grad=True))
    z = torch.randn(3, 3, dtype=torch.complex64, device="tpu", requires_grad=True)
    assert_as_eager(lambda z: (z @ z.mH, z.imag, z + 1j), z)


def test_empty_tensors() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x + 1, torch.cat([x, y]), x.sum(), y[:0] @ y.t(), torch.empty(0, 2, device=y.device)

    assert_as_eager(run, torch.empty(0, 3, device="tpu", requires_grad=True), device_tensor(2, 3, grad=True))


def test_results_without_any_tensor_of_the_device() -> None:
    run = torch.compile(lambda x: (x.shape, x.device, None), fullgraph=True)
    assert run(device_tensor(2)) == ((2,), torch.device("tpu:0"), None)


def test_no_tensors_go_in() -> None:
    run = torch.compile(lambda n: (torch.arange(n, device="tpu") * 2, torch.empty(0, device="tpu")), fullgraph=True)
    numbers, none = run(3)
    assert numbers.tolist() == [0, 2, 4] and none.shape == (0,)
    torch.manual_seed(0)
    got = torch.compile(lambda: torch.rand(5, device="tpu"), fullgraph=True)()
    torch.manual_seed(0)
    assert torch.equal(got, torch.rand(5, device="tpu"))


def test_memory_formats_of_results() -> None:
    x = device_tensor(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight = device_tensor(5, 3, 3, 3, grad=True)
    result = assert_as_eager(torch.nn.functional.conv2d, x, weight, rtol=1e-4, atol=1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)
    moved = assert_as_eager(lambda x: x.permute(3, 0, 1, 2) + 1, x)
    assert moved.stride() == (x.permute(3, 0, 1, 2) + 1).stride()
