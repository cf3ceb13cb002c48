"""Dynamic shapes: one program serves all sizes up to a bound, padding never counts, and results are those of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_tpu import eager

SIZES = (5, 9, 3, 16, 12, 4)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the graphs that become programs."""
    made: list[str] = []
    build = eager.build

    def counting(name: str, *args: Any) -> Any:
        if name.startswith("torch_tpu::"):
            made.append(name)
        return build(name, *args)

    monkeypatch.setattr(eager, "build", counting)
    yield made


def poisoned(x: Tensor) -> Tensor:
    """The tensor in memory where NaN lies behind its elements: they would show if the padding counted."""
    fill = float("nan") if x.is_floating_point() else 1
    room = torch.full((32, *x.shape[1:]), fill, dtype=x.dtype, device="tpu")
    room[: x.shape[0]] = x
    return room[: x.shape[0]]


ONE_PROGRAM: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: (x * 2 + 1).tanh().where(x > 0, -x),
    "a size as a number": lambda x: x.sum() / x.shape[0] + x * x.shape[0],
    "sums": lambda x: (x.sum(0), x.sum(), x.sum(1), x.sum(0, keepdim=True)),
    "means": lambda x: (x.mean(0), x.mean(), x.mean(1)),
    "extremes": lambda x: (x.amax(0), x.amin(0), x.max(0), x.min(1), x.argmax(0)),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(0), x.softmax(1), x.logsumexp(0)),
    "products": lambda x: (x @ x.T, x.T @ x, x @ torch.ones(4, 2, device=x.device)),
    "batched products": lambda x: x[:, None] @ x[:, :, None],
    "views": lambda x: (x.reshape(-1, 2, 2).transpose(0, 1), x.view(-1), x.unsqueeze(1).expand(-1, 3, 4)),
    "slices": lambda x: (x[1:], x[:-1], x[-1], x[0], x[:, 1:3]),
    "made from sizes": lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None] + torch.ones_like(x),
    "norms": lambda x: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,))),
    "concatenation": lambda x: torch.cat([x, x * 2], 1),
    "cumulative sums": lambda x: x.cumsum(0),
    "masks": lambda x: (x @ x.T).tril().masked_fill(x @ x.T > 1, 0),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, -1, 4)] * 3),
    "causal attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, -1, 4)] * 3, is_causal=True),
    "scores far below zero": lambda x: F.scaled_dot_product_attention(
        *[x.view(1, 1, -1, 4)] * 3, attn_mask=(x @ x.T).detach() * 0 - 100
    ),
    "merged and apart": lambda x: (x.T.reshape(-1) * 2).view(4, -1).sum(1) + x.T.flatten().view(4, x.shape[0]).amax(1),
    "of bools and bytes": lambda x: ((x > 0).logsumexp(0), (x > 0).to(torch.uint8).logsumexp(0)),
    "16 bits": lambda x: (x.bfloat16().T @ x.bfloat16()).float(),
}


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_one_program_up_to_a_bound(name: str, programs: list[str]) -> None:
    fn = ONE_PROGRAM[name]
    torch._dynamo.reset()
    fast = torch.compile(fn)
    torch.manual_seed(0)
    for n in SIZES:
        x = poisoned(torch.randn(n, 4, device="tpu"))
        torch._dynamo.mark_dynamic(x, 0)
        got, expected = fast(x), fn(x)
        torch.testing.assert_close(got, expected)
        for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
            assert a.stride() == b.stride() or not b.is_contiguous()
    assert len(set(programs)) == 1 and len(programs) == 1, programs


MORE = ["scores far below zero", "merged and apart"]


@pytest.mark.parametrize("name", ["sums", "means", "softmax", "products", "norms", "slices", "causal attention", *MORE])
def test_gradients_share_programs_too(name: str, programs: list[str]) -> None:
    fn = ONE_PROGRAM[name]
    torch._dynamo.reset()
    fast = torch.compile(fn)
    torch.manual_seed(0)
    for n in SIZES:
        x = torch.randn(n, 4, device="tpu")
        grads = []
        for f in (fast, fn):
            leaf = x.clone().requires_grad_()
            torch._dynamo.mark_dynamic(leaf, 0)
            sum((y * y).sum() for y in torch.utils._pytree.tree_leaves(f(leaf))).backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)
    assert len(programs) == len(set(programs)) <= 2, programs  # a forward without saved values is that of above


def test_padding_between_elements() -> None:
    """Batches of two sequences: the padding lies between them, and views merge it away."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.up, self.out = nn.Embedding(10, 8), nn.Linear(8, 16), nn.Linear(16, 6)

        def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.out(F.gelu(self.up(self.embed(tokens))))
            return logits, F.cross_entropy(logits.view(-1, 6), targets.view(-1))

    torch.manual_seed(0)
    model = Tagger().to("tpu")
    torch._dynamo.reset()
    fast = torch.compile(model, dynamic=True)
    with torch.no_grad():
        for n in SIZES:
            tokens, targets = (torch.randint(k, (2, n), device="tpu") for k in (10, 6))
            got, expected = fast(tokens, targets), model(tokens, targets)
            torch.testing.assert_close(got, expected)
            assert got[0].is_contiguous()


@pytest.mark.parametrize("how", ["flattened", "transposed", "flat targets"])
def test_losses_of_sequences_of_varying_lengths(how: str, programs: list[str]) -> None:
    """Padding lies between the rows of a flattened batch; what the forward keeps for the backward has it at the end."""
    torch.manual_seed(0)
    classes = {"flattened": 10, "transposed": 11, "flat targets": 12}[how]  # alike graphs would share programs
    model = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, classes)).to("tpu")
    eager_model = copy.deepcopy(model)

    def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        scores = model(tokens)
        return F.cross_entropy(scores.transpose(1, 2) if how == "transposed" else scores.flatten(0, 1), targets)

    torch._dynamo.reset()
    fast = torch.compile(loss_of)
    for n in (24, 20, 30, 17):
        tokens, targets = (torch.randint(k, (3, n), device="tpu") for k in (7, classes))
        targets = targets if how == "transposed" else targets.flatten()
        outcomes = []
        for run, of in ((fast, model), (loss_of, eager_model)):
            of.zero_grad()
            loss = run(of, tokens, targets)
            loss.backward()
            outcomes.append([loss, *(p.grad for p in of.parameters())])
        torch.testing.assert_close(*outcomes)
    assert len(programs) <= 4, programs


def test_a_language_model_of_varying_batches_and_lengths(programs: list[str]) -> None:
    """The loss of each token's successor: batch and length are symbols, rows a product of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9)).to("tpu")
    eager_model = copy.deepcopy(model)

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    torch._dynamo.reset()
    fast = torch.compile(loss_of, dynamic=True)
    for rows, length in ((3, 9), (5, 13), (2, 16), (7, 4)):
        tokens = torch.randint(9, (rows, length), device="tpu")
        outcomes = []
        for run, of in ((fast, model), (loss_of, eager_model)):
            of.zero_grad()
            loss = run(of, tokens)
            loss.backward()
            outcomes.append([loss, *(p.grad for p in of.parameters())])
        torch.testing.assert_close(*outcomes)
    assert len(programs) == 2, programs


VIEWS: dict[str, Callable[[Tensor, int], Any]] = {
    "an element": lambda x, k: x[k],
    "a slice": lambda x, k: x[k : k + 2],
    "the last": lambda x, k: x[-k:],
    "columns": lambda x, k: x[:, x.shape[1] // 2 :],
    "half": lambda x, k: x.chunk(2)[1],
    "split": lambda x, k: x.split(x.shape[-1] // 3, -1),
    "turned": lambda x, k: x.view(x.shape[0], -1).T,
    "written": lambda x, k: (x.add_(1), x[k:])[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_that_are_views_of_inputs_stay_views(name: str) -> None:
    torch._dynamo.reset()
    fast = torch.compile(VIEWS[name], dynamic=True)
    for k in (2, 3, 4):
        x = torch.randn(k + 4, 3 * k, device="tpu")
        y = x.clone()
        for got, expected in zip(_tensors(fast(x, k)), _tensors(VIEWS[name](y, k)), strict=True):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride() and got.storage_offset() == expected.storage_offset()
            assert got.untyped_storage()._cdata == x.untyped_storage()._cdata
        torch.testing.assert_close(x, y)


def _tensors(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


EXACT: dict[str, Callable[[Tensor, int], Any]] = {
    "a size below zero at its bound": lambda x, k: x[k:] * 1,
    "an integer beyond 32 bits": lambda x, k: x + k * 2**31,
    "a position in merged dimensions": lambda x, k: (x.T.reshape(-1).argmax(0), x.T.reshape(-1).max(0)),
    "a head": lambda x, k: F.scaled_dot_product_attention(*[x.float()[None]] * 3),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_where_bounds_mislead(name: str) -> None:
    torch._dynamo.reset()
    fast = torch.compile(EXACT[name], dynamic=True)
    for k in (2, 3, 4):
        x = torch.randint(100, (k + 3, 5), device="tpu")
        torch.testing.assert_close(fast(x, k), EXACT[name](x, k))


def test_gradients_of_attention_with_heads_of_varying_size() -> None:
    torch._dynamo.reset()
    attend = torch.compile(F.scaled_dot_product_attention, dynamic=True)
    for size in (24, 20):
        q, k, v = (torch.randn(2, 2, 8, size, device="tpu", requires_grad=True) for _ in range(3))
        gradients = [
            torch.autograd.grad(f(q, k, v).square().sum(), (q, k, v)) for f in (attend, F.scaled_dot_product_attention)
        ]
        torch.testing.assert_close(*gradients)


def test_exact_sizes_where_padding_can_not_be_had(programs: list[str]) -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda x: torch.flip(x, (0,)), dynamic=True)
    for n in (3, 5):
        x = torch.arange(float(n), device="tpu")
        assert fast(x).tolist() == x.tolist()[::-1]
    assert len({p.partition("_")[0] for p in programs}) == 1 and len(programs) == 3  # one attempt, then one a size


def test_random_numbers_are_those_of_eager() -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda x: F.dropout(x, 0.5), dynamic=True)
    for n in (3, 7):
        x = torch.ones(n, 5, device="tpu")
        torch.manual_seed(n)
        got = fast(x)
        torch.manual_seed(n)
        torch.testing.assert_close(got, F.dropout(x, 0.5))


@pytest.mark.parametrize("how", ["automatic", "marked"])
def test_a_training_loop_of_varying_batches(how: str, programs: list[str]) -> None:
    torch.manual_seed(0)
    width = 16 if how == "automatic" else 24  # alike graphs would share programs
    model = nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 3)).to("tpu")
    eager_model = copy.deepcopy(model)

    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    torch._dynamo.reset()
    fast = torch.compile(loss_of)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager_model)]
    for n in (8, 5, 11, 16, 2, 7):
        x, y = torch.randn(n, 6, device="tpu"), torch.randint(3, (n,), device="tpu")
        if how == "marked":
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(y, 0)
        losses = [fast(model, x, y), loss_of(eager_model, x, y)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(list(model.parameters()), list(eager_model.parameters()))
    assert len(programs) == (4 if how == "automatic" else 2), programs
