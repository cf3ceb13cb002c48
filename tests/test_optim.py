"""Every optimizer of torch.optim takes the CPU's steps on the device, in each of its implementations."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from parity import assert_same, compiles, to_device
from torch import nn
from torch.optim import lr_scheduler

OPTIONS: dict[str, dict[str, Any]] = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"amsgrad": True},
    "Adamax": {},
    "AdamW": {"weight_decay": 0.1},
    "ASGD": {"t0": 2},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
}
CAPTURABLE = ["Adadelta", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
FUSED = ["Adagrad", "Adam", "AdamW", "SGD"]


def trained(name: str, device: str, steps: int = 3, **options: Any) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Parameters of three shapes after some steps with gradients that differ by step, and their optimizer."""
    start = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(3), torch.tensor(0.5)]
    parameters = [nn.Parameter(p) for p in to_device(start, device)]
    optimizer = getattr(torch.optim, name)(parameters, **{"lr": 0.1, **OPTIONS.get(name, {}), **options})
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum((p * math.sin(step + 1 + i)).square().sum() + p.sum() * (step - 1) for i, p in enumerate(parameters))
        loss.backward()
        optimizer.step()
    return parameters, optimizer


@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
@pytest.mark.parametrize("name", OPTIONS)
def test_steps_are_the_cpus(name: str, foreach: bool) -> None:
    expected, _ = trained(name, "cpu", foreach=False)
    got, optimizer = trained(name, "tpu", foreach=foreach)
    assert_same(got, expected)
    assert all(s.device.type == "tpu" for p in got for s in optimizer.state[p].values() if s is not None and s.ndim)


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    expected, _ = trained(name, "cpu", foreach=False)
    assert_same(trained(name, "tpu", fused=True)[0], expected)


@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable(name: str, foreach: bool) -> None:
    expected, _ = trained(name, "cpu", foreach=False)
    got, optimizer = trained(name, "tpu", foreach=foreach, capturable=True)
    assert_same(got, expected)
    assert optimizer.state[got[0]]["step"].device.type == "tpu"


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_learning_rate_as_a_tensor(name: str) -> None:
    expected, _ = trained(name, "cpu", foreach=False, lr=0.05)
    for foreach in (False, True):
        if name in CAPTURABLE:
            got, _ = trained(name, "tpu", foreach=foreach, lr=torch.tensor(0.05, device="tpu"), capturable=True)
            assert_same(got, expected)
    assert_same(trained(name, "tpu", foreach=False, lr=torch.tensor(0.05))[0], expected)


def test_maximize_and_weight_decay() -> None:
    for name in ("SGD", "Adam", "RMSprop"):
        options = {"maximize": True, "weight_decay": 0.1}
        assert_same(trained(name, "tpu", **options)[0], trained(name, "cpu", **options)[0])


def test_sparse_adam_says_what_is_missing() -> None:
    embedding = nn.Embedding(4, 2, sparse=True).to("tpu")
    with pytest.raises(NotImplementedError):
        embedding(torch.tensor([1], device="tpu")).sum().backward()


def test_muon_and_lbfgs() -> None:
    def run(device: str) -> Any:
        w = nn.Parameter(to_device(torch.linspace(-1, 1, 6).reshape(2, 3), device))
        made = []
        if hasattr(torch.optim, "Muon"):
            optimizer = torch.optim.Muon([w], lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                (w * w).sum().backward()
                optimizer.step()
            made.append(w.detach().clone())
        optimizer = torch.optim.LBFGS([w], lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (w - 1).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return [*made, w]

    # Muon orthogonalises in bfloat16.
    assert_same(run("tpu"), run("cpu"), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 1, 0.5),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
        lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=8),
        lambda o: lr_scheduler.LinearLR(o),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    ],
)
def test_schedules(make: Any) -> None:
    def run(device: str) -> torch.Tensor:
        p = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        schedule = make(optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            optimizer.step()
            schedule.step(*([loss] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        return p

    assert_same(run("tpu"), run("cpu"))


def test_state_moves_between_devices() -> None:
    parameters, optimizer = trained("Adam", "cpu", steps=2)
    moved = [nn.Parameter(p.detach().to("tpu")) for p in parameters]
    twin = torch.optim.Adam(moved, lr=0.1, amsgrad=True)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for ps, o in ((parameters, optimizer), (moved, twin)):
        o.zero_grad()
        sum((p * p).sum() for p in ps).backward()
        o.step()
    assert_same(moved, parameters)


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping_gradients(foreach: bool) -> None:
    def run(device: str) -> Any:
        ps = [nn.Parameter(to_device(p, device)) for p in (torch.arange(4.0), torch.ones(2, 2))]
        sum((p * p * 3).sum() for p in ps).backward()
        norm = nn.utils.clip_grad_norm_(ps, 1.0, foreach=foreach)
        first = [p.grad.clone() for p in ps]
        nn.utils.clip_grad_value_(ps, 0.1, foreach=foreach)
        return norm, first, [p.grad for p in ps], nn.utils.get_total_norm([p.grad for p in ps], norm_type=float("inf"))

    assert_same(run("tpu"), run("cpu"))


def test_exponential_moving_average() -> None:
    def run(device: str) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(2, 2).to(device)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for _ in range(3):
            with torch.no_grad():
                model.weight.mul_(2)
            average.update_parameters(model)
        return list(average.module.parameters())

    assert_same(run("tpu"), run("cpu"))


def test_training_compiles_nothing_after_its_second_step() -> None:
    for name, options in (("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("SGD", {"foreach": True})):
        trained(name, "tpu", steps=2, **options)
        before = compiles()
        trained(name, "tpu", steps=5, **options)
        assert compiles() - before <= 2, "factors of the loss that only later steps have"
