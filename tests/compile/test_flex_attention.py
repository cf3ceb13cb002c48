"""flex_attention on the device: scores changed and masked by functions, by tiles, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

Function = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 40)


def by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k).abs() <= 30 * (h + 1)


def no_early_rows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= 150) & (k < q)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + (k - q) * 0.05 * (h + 1)


def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2 * torch.tanh(score / 2)


def inputs(heads: int = 4, kv_heads: int = 4, rows: int = 300, columns: int = 300, **options: Any) -> list[Tensor]:
    return [
        torch.randn(2, h, n, 16, **options).requires_grad_()
        for h, n in ((heads, rows), (kv_heads, columns), (kv_heads, columns))
    ]


def reference(q: Tensor, k: Tensor, v: Tensor, score_mod: Function | None, mask_mod: Function | None) -> Tensor:
    """The same with all scores at once; the functions broadcast."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    b, h, row, column = torch.meshgrid(*(torch.arange(n, device=q.device) for n in scores.shape), indexing="ij")
    scores = scores if score_mod is None else score_mod(scores, b, h, row, column)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(b, h, row, column), -math.inf)
    return torch.softmax(scores, -1).nan_to_num() @ v


def mask(fn: Function | None, rows: int, columns: int, device: str = "tpu", heads: Any = None) -> Any:
    """The block mask of a function, if there is one."""
    return fn and create_block_mask(fn, None, heads, rows, columns, device=device)


CASES = {
    "plain": (None, None, {}),
    "causal": (None, causal, {}),
    "scores and mask": (alibi, causal, {}),
    "scores not linear": (capped, window, {}),
    "grouped heads": (alibi, causal, {"kv_heads": 2}),
    "mask of each head": (None, by_head, {"kv_heads": 1}),
    "rows without scores": (capped, no_early_rows, {}),
    "other lengths": (alibi, window, {"rows": 130, "columns": 410}),
    "one block": (alibi, causal, {"rows": 20, "columns": 20}),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_all_scores_at_once(name: str) -> None:
    score_mod, mask_mod, sizes = CASES[name]
    host = inputs(**sizes)
    there = [x.detach().to("tpu").requires_grad_() for x in host]
    rows, columns = host[0].shape[2], host[1].shape[2]
    block_mask = mask(mask_mod, rows, columns, heads=4 if mask_mod is by_head else None)
    run = torch.compile(flex_attention, fullgraph=True)
    got = run(*there, score_mod=score_mod, block_mask=block_mask, enable_gqa=True)
    expected = reference(*host, score_mod, mask_mod)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(expected)
    grads = torch.autograd.grad(got, there, weights.to("tpu")), torch.autograd.grad(expected, host, weights)
    torch.testing.assert_close([g.cpu() for g in grads[0]], list(grads[1]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_those_of_the_cpu(compiled: bool, dtype: torch.dtype) -> None:
    host = [x.detach().to(dtype) for x in inputs()]
    aux = AuxRequest(lse=True)
    expected = flex_attention(*host, alibi, mask(no_early_rows, 300, 300, "cpu"), return_aux=aux)
    run = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    got = run(*(x.to("tpu") for x in host), alibi, mask(no_early_rows, 300, 300), return_aux=aux)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got[0].cpu(), expected[0], **tolerance)
    torch.testing.assert_close(got[1].lse.cpu(), expected[1].lse, rtol=1e-4, atol=1e-5)


def test_largest_scores() -> None:
    q, k, v = (x.detach() for x in inputs(rows=140, columns=140))
    run = torch.compile(flex_attention, fullgraph=True)
    _, got = run(*(x.to("tpu") for x in (q, k, v)), return_aux=AuxRequest(max_scores=True))
    torch.testing.assert_close(got.max_scores.cpu(), (q @ k.mT / 4).amax(-1), rtol=1e-4, atol=1e-5)


def test_captured_tensors_and_their_gradients() -> None:
    table, bias, factor = torch.randn(600), torch.randn(4), torch.tensor(0.7)
    documents = (torch.arange(300) // 70).int()

    def outcome(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (x.detach().to(device).requires_grad_() for x in inputs())
        t, c, f = (x.to(device).requires_grad_() for x in (table, bias, factor))
        d = documents.to(device)

        def relative(score: Tensor, b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return score * f + t[row - column + 300] * c[h]

        def same_document(b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return d[row] == d[column]

        if device == "cpu":
            result = reference(q, k, v, relative, same_document)
        else:
            block_mask = mask(same_document, 300, 300)
            result = torch.compile(flex_attention, fullgraph=True)(q, k, v, relative, block_mask)
        weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(device)
        return [x.cpu() for x in (result, *torch.autograd.grad(result, (q, k, v, t, c, f), weights))]

    torch.testing.assert_close(outcome("tpu"), outcome("cpu"), rtol=1e-4, atol=1e-4)


def test_lengths_that_vary() -> None:
    run = torch.compile(flex_attention, fullgraph=True, dynamic=True)
    for length in (100, 150, 260):
        host = inputs(rows=length, columns=length)
        there = [x.detach().to("tpu").requires_grad_() for x in host]
        got = run(*there, block_mask=mask(causal, length, length))
        expected = reference(*host, None, causal)
        grads = torch.autograd.grad(got.sum(), there), torch.autograd.grad(expected.sum(), host)
        torch.testing.assert_close([x.cpu() for x in (got, *grads[0])], [expected, *grads[1]], rtol=1e-4, atol=2e-5)


def test_gradient_of_the_logarithms_of_sums() -> None:
    host = inputs(rows=50, columns=50)
    there = [x.detach().to("tpu").requires_grad_() for x in host]
    run = torch.compile(lambda *qkv: flex_attention(*qkv, return_aux=AuxRequest(lse=True))[1].lse, fullgraph=True)
    got = torch.autograd.grad(run(*there).square().sum(), there[:2])
    scores = (host[0] @ host[1].mT) / 4
    expected = torch.autograd.grad(torch.logsumexp(scores, -1).square().sum(), host[:2])
    torch.testing.assert_close([g.cpu() for g in got], list(expected), rtol=1e-4, atol=1e-4)


def test_blocks_that_are_not_listed_are_left_out() -> None:
    """The mask's blocks decide, not its function alone: here each row of blocks sees its own block."""
    own = torch.arange(3, device="tpu", dtype=torch.int32).reshape(1, 1, 3, 1)
    indices = torch.cat([own, torch.zeros(1, 1, 3, 2, device="tpu", dtype=torch.int32)], -1)
    ones = torch.ones(1, 1, 3, device="tpu", dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(ones, indices, BLOCK_SIZE=64, seq_lengths=(192, 192))
    q, k, v = (x.detach() for x in inputs(rows=192, columns=192))
    got = torch.compile(flex_attention, fullgraph=True)(*(x.to("tpu") for x in (q, k, v)), block_mask=blocks)
    expected = reference(q, k, v, None, lambda b, h, row, column: row // 64 == column // 64)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_keys_shared_by_the_batch() -> None:
    q, k, v = inputs(rows=70, columns=70)
    k, v = (x[:1].detach().requires_grad_() for x in (k, v))
    block_mask = create_block_mask(causal, 2, None, 70, 70, device="tpu")
    there = [x.detach().to("tpu").requires_grad_() for x in (q, k, v)]
    got = torch.compile(flex_attention, fullgraph=True)(*there, block_mask=block_mask)
    expected = reference(q, k, v, None, causal)
    grads = torch.autograd.grad(got.sum(), there), torch.autograd.grad(expected.sum(), (q, k, v))
    torch.testing.assert_close([x.cpu() for x in (got, *grads[0])], [expected, *grads[1]], rtol=1e-4, atol=2e-5)


def test_under_autocast() -> None:
    q, k, v = (x.detach().to("tpu") for x in inputs(rows=40, columns=40))
    run = torch.compile(flex_attention, fullgraph=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        got = run(q, k, v)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), run(q, k, v), rtol=2e-2, atol=2e-2)


def test_long_sequences_take_memory_of_tiles() -> None:
    """All scores of this one are 1 GB."""
    length = 16384
    q, k, v = (torch.randn(1, 1, length, 8, device="tpu", requires_grad=True) for _ in range(3))
    block_mask = create_block_mask(window, None, None, length, length, device="tpu", _compile=True)
    run = torch.compile(flex_attention, fullgraph=True)
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    run(q, k, v, block_mask=block_mask).sum().backward()
    assert torch.tpu.max_memory_allocated() - before < 100e6
    part = reference(*(x[:, :, :500].detach().cpu() for x in (q, k, v)), None, window)
    torch.testing.assert_close(run(q, k, v, block_mask=block_mask)[:, :, :500].cpu(), part, rtol=1e-4, atol=1e-5)
