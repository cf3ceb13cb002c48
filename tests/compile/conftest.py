"""Shared set-up of the tests of torch.compile."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test compiles anew, from the same seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
