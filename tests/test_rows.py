"""Tensors whose number of rows varies: data-dependent results, uploads and caches that grow share programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from parity import on_both

COUNTS = [1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 40, 63, 64]  # three powers of two: 16, 32, 64


def compiles() -> int:
    return torch.tpu.cache_stats()["compiles"] + torch.tpu.cache_stats()["disk_hits"]


def mask(count: int, length: int = 64) -> torch.Tensor:
    """bool[length] with `count` true values spread out."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(count))
    return torch.zeros(length, dtype=torch.bool).index_fill_(0, order[:count], True)


def programs_of(step: Callable[[int], None]) -> int:
    before = compiles()
    for count in COUNTS:
        step(count)
    return compiles() - before


def test_nonzero_compiles_once_per_power_of_two() -> None:
    def step(count: int) -> None:
        assert torch.equal(mask(count).to("tpu").nonzero().cpu(), mask(count).nonzero())

    assert programs_of(step) <= 3


def test_masked_rows_computed_with_and_reduced() -> None:
    x = torch.randn(64, 3)

    def step(count: int) -> None:
        y = x.to("tpu")[mask(count).to("tpu")]
        want = x[mask(count)]
        assert y.shape == want.shape and y.stride() == want.stride()
        torch.testing.assert_close((y * 2).sum().cpu(), (want * 2).sum())

    assert programs_of(step) <= 3 * 3


def test_masked_rows_in_ops_that_need_their_true_number() -> None:
    x = torch.randn(64, 3)
    for count in (0, 1, 5, 17, 64):
        y, want = x.to("tpu")[mask(count).to("tpu")], x[mask(count)]
        torch.testing.assert_close(y.t().softmax(-1).cpu(), want.t().softmax(-1))
        torch.testing.assert_close(y.flip(0).cumsum(0).cpu(), want.flip(0).cumsum(0))
        torch.testing.assert_close(torch.cat([y, y]).cpu(), torch.cat([want, want]))
        assert torch.equal(y.repeat(2, 1).cpu(), want.repeat(2, 1))


def test_masked_rows_written_back_in_place() -> None:
    x = torch.randn(64, 3)

    def step(count: int) -> None:
        where = mask(count).to("tpu")
        z = x.to("tpu")
        z[where] = z[where] * 2
        want = x.clone()
        want[mask(count)] *= 2
        torch.testing.assert_close(z.cpu(), want)

    assert programs_of(step) <= 3 * 3


def test_in_place_update_of_masked_rows_keeps_their_number() -> None:
    y = torch.arange(8.0, device="tpu")[mask(3, 8).to("tpu")]
    want = torch.arange(8.0)[mask(3, 8)]
    y.add_(1)
    y[1:].mul_(5)
    want.add_(1)
    want[1:].mul_(5)
    assert torch.equal(y.cpu(), want)
    assert y.untyped_storage().nbytes() >= y.numel() * 4


def test_values_written_through_masks_share_programs() -> None:
    x = torch.zeros(64, 5)

    def step(count: int) -> None:
        values = torch.full((count, 5), float(count))
        z = x.to("tpu")
        z[mask(count).to("tpu")] = values.to("tpu")
        want = x.clone()
        want[mask(count)] = values
        assert torch.equal(z.cpu(), want)

    assert programs_of(step) <= 1 + 4 + 3  # one row broadcasts; the first few lengths are taken as they are


def test_columns_of_indices_are_views_of_padded_rows() -> None:
    x = torch.randn(8, 8)
    rows, columns = torch.where(x.to("tpu") > 0)
    want_rows, want_columns = torch.where(x > 0)
    assert torch.equal(rows.cpu(), want_rows) and torch.equal(columns.cpu(), want_columns)
    assert torch.equal(x.to("tpu")[rows, columns].cpu(), x[want_rows, want_columns])


@pytest.mark.parametrize("heads", [(), (1,)])
def test_growing_cache_of_keys_and_values(heads: tuple[int, ...]) -> None:
    keys, device_keys = torch.empty(1, *heads, 0, 6), torch.empty(1, *heads, 0, 6, device="tpu")
    grown = 0
    for length in range(1, 60):
        key, query = torch.randn(1, *heads, 1, 6), torch.randn(1, *heads, 1, 6)
        before = compiles()
        keys, device_keys = torch.cat([keys, key], -2), torch.cat([device_keys, key.to("tpu")], -2)
        out = F.scaled_dot_product_attention(query.to("tpu"), device_keys, device_keys)
        grown += compiles() - before if length > 33 else 0
        assert device_keys.shape == keys.shape and device_keys.stride() == keys.stride()
        torch.testing.assert_close(out.cpu(), F.scaled_dot_product_attention(query, keys, keys))
    assert torch.equal(device_keys.cpu(), keys)
    assert grown == 0  # from 33 to 59 there is room


def test_earlier_values_of_a_growing_tensor_stay_as_they_were() -> None:
    kept, joined = [], torch.zeros(1, 2, device="tpu")
    for i in range(1, 24):
        joined = torch.cat([joined, torch.full((1, 2), float(i), device="tpu")])
        kept.append(joined)
    for i, tensor in enumerate(kept, start=1):
        assert tensor[:, 0].tolist() == [float(k) for k in range(i + 1)]


def test_masks_behind_other_dimensions() -> None:
    x = torch.arange(12.0).view(3, 4)
    where = torch.tensor([True, False, True, True])
    assert torch.equal(x.to("tpu")[:, where.to("tpu")].cpu(), x[:, where])


@pytest.mark.parametrize("extra", [2, 6, 7, 12, 40])
@pytest.mark.parametrize("count", [0, 1, 10, 16])
def test_rows_joined_to_a_result_of_unknown_size(count: int, extra: int) -> None:
    """With and without room for them in its buffer: nothing may be written over its own rows."""
    x, more = torch.randn(64, 3), torch.randn(extra, 3)
    rows, want = x.to("tpu")[mask(count).to("tpu")], x[mask(count)]
    there = more.to("tpu")
    assert torch.equal(torch.cat([rows, there]).cpu(), torch.cat([want, more]))
    assert torch.equal(torch.cat([rows, there, there]).cpu(), torch.cat([want, more, more]))
    out = torch.empty(0, device="tpu")
    assert torch.equal(torch.cat([rows, there], out=out).cpu(), torch.cat([want, more]))
    assert torch.equal(rows.cpu(), want)


def test_counts_whose_number_is_a_value() -> None:
    x = torch.tensor([4, 1, 1, 0])
    for args in (
        (x,),
        (x.to(torch.uint8), None, 7),
        (x, torch.tensor([1, 2, 3, 4])),
        (x, torch.tensor([1.0, 2.0, 3.0, 4.0])),
        (torch.zeros(0, dtype=torch.int64), None, 3),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0), 3),
    ):
        there = [a.to("tpu") if isinstance(a, torch.Tensor) else a for a in args]
        torch.testing.assert_close(torch.bincount(*there).cpu(), torch.bincount(*args))
    for repeats in (torch.tensor([2, 0, 3, 1]), torch.tensor([0, 0], dtype=torch.int32), x[:0]):
        got = torch.repeat_interleave(repeats.to("tpu")).cpu()
        torch.testing.assert_close(got, torch.repeat_interleave(repeats))
    with pytest.raises(RuntimeError, match="negative"):
        torch.repeat_interleave(torch.tensor([1, -1], device="tpu"))


def test_sizes_that_are_values() -> None:
    counts = torch.tensor([1, 3, 1, 0])
    assert torch.equal(torch.bincount(counts.to("tpu")).cpu(), torch.bincount(counts))
    assert torch.equal(torch.repeat_interleave(counts.to("tpu")).cpu(), torch.repeat_interleave(counts))
    rows = torch.tensor([[1, 2], [1, 2], [0, 1]])
    for dim in (None, 0, 1):
        got = torch.unique(rows.to("tpu"), return_inverse=True, return_counts=True, dim=dim)
        for g, w in zip(got, torch.unique(rows, return_inverse=True, return_counts=True, dim=dim), strict=True):
            assert torch.equal(g.cpu(), w)


def test_positions_of_arange_are_runtime_values() -> None:
    for begin in (3, 4):
        torch.arange(begin, begin + 2, device="tpu")
    before = compiles()
    for begin in range(5, 30):
        assert torch.arange(begin, begin + 2, device="tpu").tolist() == [begin, begin + 1]
    assert compiles() == before


def test_a_scalar_selected_by_counted_indices():
    def select(x, index):
        return x.index_select(0, index.unique())

    on_both(select, torch.tensor(2.0), torch.tensor([0, 0]))
