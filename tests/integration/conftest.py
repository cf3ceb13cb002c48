"""Shared set-up of the tests with other projects' libraries."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

import pytest
import torch

# For models as small as these, threads cost torch on the CPU more than they bring, most of all on a busy machine.
torch.set_num_threads(1)

# torchvision's wheels are built for torch with CUDA: beside a torch without, their operators don't load, and the import
# fails at the shape functions of two of them, which nothing here calls.
if importlib.util.find_spec("torchvision") is not None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def nothing_falls_back() -> Iterator[None]:
    """No test here may run an op on the CPU unasked."""
    before = torch.tpu.cpu_fallbacks()
    yield
    assert torch.tpu.cpu_fallbacks() == before


@pytest.fixture
def accelerate_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A context manager in which accelerate, which keeps its device for the process, takes another one."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    def forget() -> None:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()

    @contextlib.contextmanager
    def on(device: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            forget()
            if device != "tpu":
                patch.setenv("ACCELERATE_TORCH_DEVICE", device)
            yield
        forget()

    yield on
    forget()
