"""CTC loss and its gradient against torch on CPU, through the lowerings themselves: log alpha's shape is ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check import _to_jax, _to_torch

from torch_tpu.lowering import ctc
from torch_tpu.lowering._jax import jax

aten = torch.ops.aten


def run(fn: Any, *tensors: torch.Tensor) -> Any:
    with jax.enable_x64(True):
        arrays = [_to_jax(t) for t in tensors]
        lowered = jax.jit(fn).trace(*arrays).lower(lowering_platforms=("tpu",)).compile()
        return jax.tree.map(_to_torch, lowered(*arrays))


CASES = {
    "plain": ([12, 9, 12], [4, 2, 3], 0),
    "blank in the middle": ([12, 12], [5, 1], 3),
    "impossible": ([3, 12], [5, 5], 0),
    "empty targets": ([12, 5], [0, 3], 0),
    "as long as the input": ([5, 4], [5, 4], 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case: str, packed: bool, dtype: torch.dtype) -> None:
    inputs, lengths, blank = CASES[case]
    torch.manual_seed(0)
    log_probs = torch.randn(12, len(inputs), 6, dtype=dtype).log_softmax(2)
    labels = [c for c in range(6) if c != blank]
    targets = torch.tensor(labels)[torch.randint(5, (len(inputs), 6))]
    targets[0, 1] = targets[0, 0]
    if packed:
        targets = torch.cat([t[:n] for t, n in zip(targets, lengths, strict=True)])
    grad = torch.randn(len(inputs), dtype=dtype)
    arguments = torch.tensor(inputs), torch.tensor(lengths)

    loss, log_alpha = aten._ctc_loss(log_probs, targets, inputs, lengths, blank)
    got, alpha = run(lambda p, t, n, m: ctc.ctc_loss(p, t, n, m, blank, False), log_probs, targets, *arguments)
    torch.testing.assert_close(got, loss)
    for b, (n, m) in enumerate(zip(inputs, lengths, strict=True)):
        torch.testing.assert_close(alpha[b, :n, : 2 * m + 1], log_alpha[b, :n, : 2 * m + 1][:, : alpha.shape[2]])

    expected = aten._ctc_loss_backward(grad, log_probs, targets, inputs, lengths, loss, log_alpha, blank, True)
    got = run(
        lambda g, p, t, n, m, x, a: ctc.ctc_loss_backward(g, p, t, n, m, x, a, blank, True),
        grad, log_probs, targets, *arguments, loss, alpha,
    )  # fmt: skip
    torch.testing.assert_close(got, expected)


def test_lengths_as_numbers() -> None:
    log_probs, targets = torch.randn(6, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]])
    expected = aten._ctc_loss(log_probs, targets, [6, 5], [2, 1])[0]
    got = run(lambda p, t: ctc.ctc_loss(p, t, [6, 5], [2, 1], 0, False)[0], log_probs, targets)
    torch.testing.assert_close(got, expected)
