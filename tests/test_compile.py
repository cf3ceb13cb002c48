"""torch.compile with backend "tpu": graphs are programs, and give what eager gives, random numbers included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def compiled(fn: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn)


def test_the_backend_goes_by_its_name() -> None:
    assert "tpu" in torch._dynamo.list_backends()


def test_forward_and_backward_are_one_program_each() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).to("tpu")
    eager, fast = copy.deepcopy(model), compiled(model)
    x = torch.randn(5, 8, device="tpu")
    fast(x).sum().backward()
    model.zero_grad(set_to_none=True)
    before = torch.tpu.cache_stats()
    out = fast(x)
    assert torch.tpu.cache_stats()["launches"] == before["launches"] + 1
    ones = torch.ones_like(out)
    before = torch.tpu.cache_stats()
    out.backward(ones)
    after = torch.tpu.cache_stats()
    assert after["launches"] == before["launches"] + 1 and after["compiles"] == before["compiles"]
    expected = eager(x)
    expected.backward(ones)
    torch.testing.assert_close(out, expected)
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


class Stateful(nn.Module):
    """Buffers that forward changes, random numbers, tensors made from nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.dropout(self.norm(x), 0.5, self.training) + torch.arange(8, device=x.device) + self.calls


def test_buffers_and_random_numbers_are_those_of_eager() -> None:
    eager = Stateful().to("tpu")
    model = copy.deepcopy(eager)
    fast, x = compiled(model), torch.randn(6, 8, device="tpu")
    for _ in range(2):
        torch.manual_seed(1)
        got = fast(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, eager(x))
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_views_and_constants_among_the_results() -> None:
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    with torch.no_grad():
        same, view, new, number = compiled(lambda x: (x, x[1:], x + torch.tensor([1.0, 2.0, 3.0]).to(x.device), 7))(x)
    assert same.data_ptr() == x.data_ptr() and view.data_ptr() == x[1:].data_ptr() and number == 7
    assert new.tolist() == [[1.0, 3.0, 5.0], [4.0, 6.0, 8.0]]


def test_constants_of_other_values_are_other_programs() -> None:
    x = torch.zeros(2, device="tpu")
    for value in (1.0, 2.0):
        constant = torch.tensor([value, value])
        assert compiled(lambda x, c=constant: x + c.to(x.device))(x).tolist() == [value, value]


def test_what_is_not_supported_is_named() -> None:
    x = torch.zeros(3, device="tpu")
    with pytest.raises(Exception, match="no options"):
        torch._dynamo.reset()
        torch.compile(lambda x: x * 2, backend="tpu", options={"fast": True})(x)
