"""Embeddings and bags of them, and their gradients, against torch on CPU."""

from __future__ import annotations

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2
INDICES = torch.tensor([1, 2, 2, 5, 9, 0, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_embedding(dtype: torch.dtype) -> None:
    weight, indices = torch.randn(10, 3, dtype=dtype), torch.tensor([[1, 2], [2, 9], [0, 2]])
    check(aten.embedding.default, weight, indices)
    check(aten.embedding.default, weight, torch.tensor(3, dtype=torch.int32))
    check(aten.embedding.default, weight[:0], indices[:0])
    # Whole numbers, whose sums are exact.
    grad = torch.randint(-9, 9, (3, 2, 3)).to(dtype)
    for padding, by_frequency in ((-1, False), (2, False), (-1, True)):
        check(aten.embedding_dense_backward.default, grad, indices, 10, padding, by_frequency)


def test_sums_of_16_bit_gradients_are_of_float32() -> None:
    grad, indices = torch.ones(512, 1, dtype=torch.bfloat16), torch.zeros(512, dtype=torch.int64)
    assert lowered(aten.embedding_dense_backward.default, grad, indices, 2, -1, False)[0].item() == 512


def test_no_indices() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    check(aten.embedding.default, torch.randn(4, 3), none)
    check(aten.embedding_dense_backward.default, torch.randn(0, 3), none, 4, -1, False)
    check(aten._embedding_bag.default, torch.randn(4, 3), none, torch.tensor([0, 0]), False, MEAN)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_renorm(norm_type: float) -> None:
    check(aten.embedding_renorm.default, torch.randn(10, 3), INDICES, 1.0, norm_type)


@pytest.mark.parametrize("with_last", [False, True])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_bags(mode: int, padding: int, with_last: bool) -> None:
    weight = torch.randn(10, 3)
    offsets = torch.tensor([0, 2, 2, 3, *([7] if with_last else [])])
    how = False, mode, False, None, with_last, padding
    check(aten._embedding_bag.default, weight, INDICES, offsets, *how)
    got = lowered(aten._embedding_bag_forward_only.default, weight, INDICES, offsets, *how)[0]
    torch.testing.assert_close(got, aten._embedding_bag_forward_only(weight, INDICES, offsets, *how)[0])
    rest = aten._embedding_bag(weight, INDICES, offsets, *how)[1:]
    args = torch.randn(4, 3), INDICES, offsets, *rest, 10, False, mode, False, None, padding
    check(aten._embedding_bag_backward.default, *args)


def test_weighted_bags() -> None:
    weight, offsets, each, grad = torch.randn(10, 3), torch.tensor([0, 2, 2, 3]), torch.randn(7), torch.randn(4, 3)
    how = False, SUM, False, each, False, 2
    check(aten._embedding_bag.default, weight, INDICES, offsets, *how)
    rest = aten._embedding_bag(weight, INDICES, offsets, *how)[1:]
    check(aten._embedding_bag_backward.default, grad, INDICES, offsets, *rest, 10, False, SUM, False, each, 2)
    check(aten._embedding_bag_per_sample_weights_backward.default, grad, weight, INDICES, offsets, rest[0], SUM, 2)


def test_gradients_by_frequency() -> None:
    # PyTorch's CPU kernel divides by the frequency of another index.
    offsets, grad = torch.tensor([0, 3]), torch.randn(2, 3)
    args = grad, INDICES, offsets, *(torch.zeros(0, dtype=torch.int64),) * 3, 10, True, SUM, False, None, -1
    got = lowered(aten._embedding_bag_backward.default, *args)
    torch.testing.assert_close(got[2], (2 * grad[0] + grad[1]) / 3)
    torch.testing.assert_close(got[5], grad[1])
