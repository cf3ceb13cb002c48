"""Tensors joined, repeated, rolled, flipped and rearranged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check import check

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)
I = torch.arange(2 * 4 * 6 * 5.0).reshape(2, 4, 6, 5)  # noqa: E741 - an image


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.cat.default, ([X, X[:, :1]], 1)),
        (aten.cat.default, ([X, X[..., :0], X], -1)),
        (aten.cat.default, ([torch.zeros(0), X, torch.zeros(0, dtype=torch.float64)], 1)),
        (aten.cat.default, ([torch.zeros(0), torch.zeros(0)],)),
        (aten.cat.default, ([torch.arange(3), torch.ones(2).half(), torch.ones(1, dtype=torch.bool)],)),
        (aten.stack.default, ([X, X.int()], -1)),
        (aten.stack.default, ([torch.tensor(1), torch.tensor(2)],)),
        (aten.repeat.default, (X, [2, 1, 3, 2])),
        (aten.repeat.default, (X, [1, 0, 2])),
        (aten.repeat.default, (torch.tensor(3), [2])),
        (aten.roll.default, (X, [1, -2], [0, -1])),
        (aten.roll.default, (X, [5, 3], [2, 2])),
        (aten.roll.default, (X, [7])),
        (aten.roll.default, (torch.zeros(0, 2), [1], [0])),
        (aten.roll.default, (torch.tensor(1), [1], [])),
        (aten.flip.default, (X, [0, -1])),
        (aten.flip.default, (X, [])),
        (aten.flip.default, (torch.tensor(1), [0])),
        (aten.rot90.default, (X, -3, [2, 0])),
        (aten.rot90.default, (X, 2, [0, 1])),
        (aten.trace.default, (torch.arange(12, dtype=torch.int8).reshape(3, 4) * 20,)),
        (aten.trace.default, (torch.zeros(0, 4),)),
        (aten.block_diag.default, ([X[0], torch.tensor(7), torch.arange(2), torch.zeros(1, 0)],)),
        (aten._chunk_cat.default, ([X, X[:, :2]], 1, 2)),
        (aten._chunk_cat.default, ([torch.arange(5.0), torch.arange(3.0)], 0, 4)),
        (aten.pixel_shuffle.default, (I, 2)),
        (aten.pixel_unshuffle.default, (I[..., :4], 2)),
        (aten.pixel_unshuffle.default, (I[0, :, :4, :4], 4)),
        (aten.channel_shuffle.default, (I, 2)),
        (aten.im2col.default, (I, [2, 3], [1, 1], [0, 0], [1, 1])),
        (aten.im2col.default, (I, [2, 2], [2, 1], [1, 2], [2, 3])),
        (aten.im2col.default, (I[0].bool(), [2, 2], [1, 1], [0, 1], [2, 2])),
        (aten.col2im.default, (torch.ones(2, 8, 20), [6, 5], [2, 2], [1, 1], [0, 0], [1, 1])),
        (aten.col2im.default, (torch.randn(4 * 6, 30), [6, 5], [3, 2], [1, 2], [1, 1], [1, 1])),
        (aten.col2im.default, (torch.randn(2, 16, 9), [7, 8], [4, 2], [1, 3], [1, 0], [2, 2])),
        (aten.repeat_interleave.Tensor, (torch.tensor([1, 0, 2, 3]),)),
    ],
)
def test_shape(op: Any, args: Any) -> None:
    kwargs = {"output_size": 6} if op is aten.repeat_interleave.Tensor else {}
    check(op, *args, **kwargs)
