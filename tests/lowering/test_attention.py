"""Attention and its gradients against PyTorch's mathematical definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from check import lowered
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_tpu.lowering import attention

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
VARLEN = aten._flash_attention_forward.default
VARLEN_BACKWARD = aten._flash_attention_backward.default
INF = float("inf")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float64: 1e-9}


@pytest.fixture(params=["at once", "in chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes, as such and as if they were too large for all scores at once."""
    if request.param == "in chunks":
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1)
        monkeypatch.setattr(attention, "QUERY_CHUNK", 4)
        monkeypatch.setattr(attention, "KEY_CHUNK", 4)


def operands(b: int, hq: int, hk: int, n: int, s: int, e: int, ev: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (b, hq, n, e), (b, hk, s, e), (b, hk, s, ev), (b, hq, n, ev)
    return [torch.randn(x, dtype=dtype) for x in shapes]


def expected(q: Any, k: Any, v: Any, grad: Any, mask: Any, causal: bool, scale: float | None = None) -> list[Any]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True)
    out.backward(grad)
    return [out.detach(), q.grad, k.grad, v.grad, None if mask is None else mask.grad]


def run(
    q: Any, k: Any, v: Any, grad: Any, mask: Any, causal: bool, p: float = 0.0, scale: float | None = None
) -> list[Any]:
    if mask is not None and mask.dtype == torch.bool:
        # As scaled_dot_product_attention hands it on.
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -INF)
    out, lse, _, _, _, _, seed, offset, _ = lowered(FORWARD, q, k, v, mask, p, causal, False, scale=scale)
    rest = out, lse, None, None, q.shape[-2], k.shape[-2], p, causal, seed, offset
    return [out, *lowered(BACKWARD, grad, q, k, v, mask, [True] * 4, *rest, scale=scale)]


def compare(got: list[Any], wanted: list[Any]) -> None:
    for g, w in zip(got, wanted, strict=True):
        if w is not None:
            assert torch.isfinite(g).all()
            torch.testing.assert_close(g, w, rtol=TOLERANCE[w.dtype], atol=TOLERANCE[w.dtype])


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes_and_causal(causal: bool, dtype: torch.dtype) -> None:
    x = operands(2, 4, 2, 7, 11, 8, 6, dtype)
    compare(run(*x, None, causal), expected(*x, None, causal))


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shape", [(7, 9), (7, 1), (1, 4, 7, 9), (2, 1, 1, 9)])
def test_float_masks_and_their_gradients(shape: tuple[int, ...]) -> None:
    x = operands(2, 4, 2, 7, 9, 8, 8, torch.float32)
    mask = torch.randn(shape)
    compare(run(*x, mask, False), expected(*x, mask, False))


@pytest.mark.usefixtures("chunks")
def test_rows_that_attend_to_nothing_give_0_and_no_nan() -> None:
    x = operands(2, 4, 2, 7, 9, 8, 8, torch.float32)
    mask = torch.rand(2, 1, 7, 9) > 0.4
    mask[0, 0, 2] = False
    got = run(*x, mask, False)
    assert got[0][0, :, 2].abs().max() == 0
    compare(got[:4], expected(*x, mask, False)[:4])
    compare(run(*x, torch.full((7, 9), -INF), False)[:4], [torch.zeros_like(t) for t in (x[3], *x[:3])])


def test_scale_and_three_dimensions() -> None:
    x = operands(1, 2, 2, 5, 6, 4, 4, torch.float32)
    compare(run(*x, None, False, scale=0.3), expected(*x, None, False, 0.3))
    flat = [t[0] for t in x]
    compare(run(*flat, None, True), [None if t is None else t[0] for t in expected(*x, None, True)])


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_empty(shape: tuple[int, int, int]) -> None:
    b, n, s = shape
    x = operands(b, 2, 2, n, s, 4, 4, torch.float32)
    got = run(*x, None, False)
    assert [t.shape for t in got[:4]] == [x[3].shape, *(t.shape for t in x[:3])]
    assert all(t.abs().sum() == 0 for t in got[:4])


@pytest.mark.usefixtures("chunks")
def test_dropout_is_the_same_in_the_backward_pass() -> None:
    p = 0.3
    q, k, v, grad = operands(2, 4, 2, 70, 33, 8, 8, torch.float32)
    eye = torch.eye(33).expand(2, 2, 33, 33).contiguous()
    kept = lowered(FORWARD, q, k, eye, None, p, False, False)[0] != 0
    assert abs(kept.float().mean() - (1 - p)) < 0.02
    assert (kept[0, 0] != kept[1, 3]).any()
    q2, k2, v2 = (x.clone().requires_grad_() for x in (q, k, v))
    weights = torch.softmax(q2 @ k2.repeat_interleave(2, 1).mT / 8**0.5, -1) * kept / (1 - p)
    out = weights @ v2.repeat_interleave(2, 1)
    out.backward(grad)
    compare(run(q, k, v, grad, None, False, p), [out.detach(), q2.grad, k2.grad, v2.grad, None])


def test_chunks_do_not_change_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _ = operands(1, 2, 1, 9, 10, 4, 4, torch.float32)
    once = lowered(FORWARD, q, k, v, None, 0.5, True, False)[0]
    for name, value in (("SCORES_AT_ONCE", 1), ("QUERY_CHUNK", 4), ("KEY_CHUNK", 4)):
        monkeypatch.setattr(attention, name, value)
    torch.testing.assert_close(lowered(FORWARD, q, k, v, None, 0.5, True, False)[0], once)


def sequences(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, causal: bool, left: int, right: int) -> torch.Tensor:
    outs = []
    for i in range(len(ends_q) - 1):
        x, y, z = (t[e[i] : e[i + 1]].transpose(0, 1) for t, e in ((q, ends_q), (k, ends_k), (v, ends_k)))
        row = torch.arange(x.shape[1])[:, None] + y.shape[1] - x.shape[1]
        col = torch.arange(y.shape[1])
        mask = (col <= row) if causal else torch.ones(x.shape[1], y.shape[1], dtype=torch.bool)
        mask = mask & (col >= row - left) if left >= 0 else mask
        mask = mask & (col <= row + right) if right >= 0 else mask
        outs.append(F.scaled_dot_product_attention(x, y, z, mask, enable_gqa=True).transpose(0, 1))
    rest = q.shape[0] - int(ends_q[-1])
    return torch.cat([*outs, torch.zeros(rest, *q.shape[1:])])


VARIABLE = {
    "causal": ([3, 5, 2], [3, 5, 2], 2, 2, True, -1, -1),
    "longer keys, heads shared, an empty one": ([3, 0, 6, 1], [7, 2, 6, 4], 4, 2, True, -1, 0),
    "window": ([3, 5, 2], [4, 5, 9], 2, 1, False, 2, 1),
    "full": ([3, 5, 2], [4, 5, 9], 2, 2, False, -1, -1),
}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("case", VARIABLE)
def test_variable_lengths(case: str) -> None:
    lengths_q, lengths_k, hq, hk, causal, left, right = VARIABLE[case]
    ends_q, ends_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (lengths_q, lengths_k))
    torch.manual_seed(0)
    # Two rows belong to no sequence.
    q, grad = (torch.randn(sum(lengths_q) + 2, hq, 8) for _ in range(2))
    k, v = (torch.randn(sum(lengths_k) + 2, hk, 8) for _ in range(2))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = sequences(*leaves, ends_q, ends_k, causal, left, right)
    wanted.backward(grad)
    how = {"window_size_left": left, "window_size_right": right}
    rest = ends_q, ends_k, max(lengths_q), max(lengths_k), 0.0, causal
    out, lse, state, unused, _ = lowered(VARLEN, q, k, v, *rest, False, **how)
    grads = lowered(VARLEN_BACKWARD, grad, q, k, v, out, lse, *rest, state, unused, **how)
    compare([out, *grads], [wanted.detach(), *(x.grad for x in leaves)])
    assert lse.shape == (hq, q.shape[0])


def test_a_batch_of_equal_lengths() -> None:
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 8)
    out, lse, *_ = lowered(VARLEN, q, k, v, None, None, 5, 7, 0.0, False, False)
    wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True)
    torch.testing.assert_close(out, wanted.transpose(1, 2))
    assert lse.shape == (2, 4, 5)


def test_paged_keys() -> None:
    pool, q = torch.randn(6, 4, 2, 8), torch.randn(2, 2, 8)
    table, used = torch.tensor([[3, 1], [0, 5]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    cum = torch.tensor([0, 1, 2], dtype=torch.int32)
    out = lowered(VARLEN, q, pool, pool, cum, None, 1, 8, 0.0, True, False, seqused_k=used, block_table=table)[0]
    for i, n in enumerate(used):
        keys = pool[table[i].long()].reshape(8, 2, 8)[:n].transpose(0, 1)
        wanted = F.scaled_dot_product_attention(q[i, None].transpose(0, 1), keys, keys)
        torch.testing.assert_close(out[i, None].transpose(0, 1), wanted)


def test_attention_of_the_cpu() -> None:
    from check import check

    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    check(op, q, k, v, 0.0, True)
    mask = torch.randn(1, 1, 6, 6)
    mask[0, 0, 1] = -INF
    check(op, q, k, v, attn_mask=mask)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    check(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        torch.randn_like(q),
        q,
        k,
        v,
        out,
        lse,
        0.0,
        True,
    )
