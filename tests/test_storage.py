"""Storages: bytes, sharing, resizing, copying, pickling and moving them, and what leaves the device."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity import assert_same, expect, on_both
from torch import nn
from torch.nn.utils import parametrizations, parametrize

Tensor = torch.Tensor


def pointer(x: Tensor) -> int:
    """What identifies a tensor's storage."""
    return x.untyped_storage().data_ptr()


def tied() -> nn.Module:
    """A model whose head is its embedding."""
    model = nn.Sequential()
    model.embed, model.norm, model.head = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=False)
    model.head.weight = model.embed.weight
    return model


def saved(value: Any, **load: Any) -> Any:
    """A value after torch.save and torch.load."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **load)


# --- bytes


def test_sizes_and_identity() -> None:
    x = torch.arange(6, device="tpu", dtype=torch.int16)
    storage = x.untyped_storage()
    assert (storage.nbytes(), len(storage), x.nbytes, storage.device) == (12, 12, 12, torch.device("tpu", 0))
    assert pointer(x[2:]) == pointer(x) and x[2:].data_ptr() == x.data_ptr() + 4
    assert x.is_set_to(x.view(6)) and not x.is_set_to(x.clone())
    assert storage.resizable() and storage.is_tpu


def test_addresses_are_unique_and_do_not_overlap() -> None:
    made = [torch.empty(n, device="tpu") for n in (1, 3, 1000, 7, 2)]
    spans = sorted((pointer(x), pointer(x) + x.nbytes) for x in made)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert torch.empty(0, device="tpu").data_ptr() == 0


def test_storage_element_access() -> None:
    x = torch.tensor([1, 2, 3], dtype=torch.uint8, device="tpu")
    assert x.untyped_storage().tolist() == [1, 2, 3]
    assert x.untyped_storage().cpu().tolist() == [1, 2, 3]
    assert torch.UntypedStorage(8, device="tpu").nbytes() == 8


def test_freed_and_refilled_storage() -> None:
    """As FSDP frees and refills its parameters."""
    x = torch.arange(4.0, device="tpu")
    view = x[1:]
    before = torch.tpu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0 and x.shape == (4,)
    assert torch.tpu.memory_allocated() == before - 16
    x.untyped_storage().resize_(16)
    x.copy_(torch.tensor([5.0, 6, 7, 8]))
    torch.testing.assert_close((view + 0).cpu(), torch.tensor([6.0, 7, 8]))
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(16)
    x.add_(0).fill_(3)
    torch.testing.assert_close(view.cpu(), torch.full((3,), 3.0))


def test_reading_a_freed_storage_raises() -> None:
    x = torch.arange(4.0, device="tpu")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        (x + 1).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.complex64])
def test_resize_keeps_what_fits(dtype: torch.dtype) -> None:
    def run(x: Tensor) -> list[Tensor]:
        view = x[2:]
        x.resize_(3, 2)
        small = x.clone()
        x.resize_(6)
        again = x + x
        x.resize_(2, 5)
        x.view(-1)[6:] = 1
        return [small, again, x, view, x.t() + 1]

    on_both(run, torch.arange(6).to(dtype))


def test_resize_of_storage_keeps_what_fits() -> None:
    def run(x: Tensor) -> list[Tensor]:
        x.untyped_storage().resize_(40)
        longer = x.as_strided((10,), (1,))
        longer[6:] = 2
        x.untyped_storage().resize_(16)
        return [x[:4].clone(), x[1:4] * 2]

    def values(x: Tensor) -> list[Tensor]:
        return run(x.clone())

    on_both(values, torch.arange(6.0))


def test_resize_as_and_empty() -> None:
    on_both(lambda x, y: [x.resize_as_(y).zero_(), x + y], torch.ones(2), torch.ones(3, 4))
    on_both(lambda x: [x.resize_(0), x.sum(), x.resize_(2, 0)], torch.ones(4))


# --- out=


def test_out_is_resized_from_empty() -> None:
    def run(x: Tensor, out: Tensor) -> list[Tensor]:
        torch.add(x, x, out=out)
        return [out, out * 2, torch.mm(x, x, out=out[:0].new_empty(0))]

    on_both(run, torch.arange(9.0).reshape(3, 3), torch.empty(0))


def test_out_that_grows_or_shrinks_warns_and_keeps_a_usable_storage() -> None:
    for device in ("cpu", "tpu"):
        x = torch.arange(4.0, device=device)
        for size in (2, 10):
            out = torch.zeros(size, device=device)
            with pytest.warns(UserWarning, match="resized"):
                torch.add(x, 1, out=out)
            assert out.tolist() == [1, 2, 3, 4]
            out.resize_(10)
            out[4:] = 7
            assert (out + 0).tolist() == [1, 2, 3, 4] + [7] * 6
            assert out.untyped_storage().nbytes() == 40


def test_out_of_another_layout_or_dtype() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    on_both(lambda x, out: torch.neg(x, out=out.t()), x, torch.zeros(3, 2))
    on_both(lambda x, out: torch.add(x, 1, out=out), x, torch.zeros(2, 3, dtype=torch.float64))
    on_both(lambda x, out: torch.add(x, 1, out=out), x, torch.zeros(2, 3, dtype=torch.int32))
    on_both(
        lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.long, device=x.device))), x, torch.zeros(2, 3)
    )
    on_both(lambda x, out: torch.cat([x, x], out=out[:, :3]), x, torch.zeros(4, 5))


def test_out_whose_views_follow() -> None:
    def run(x: Tensor, out: Tensor) -> list[Tensor]:
        view = out[1:]
        torch.mul(x, 3, out=out)
        return [view, out]

    on_both(run, torch.arange(3.0), torch.zeros(3))


# --- set_, .data


def test_set_shares_the_storage() -> None:
    def run(x: Tensor) -> list[Tensor]:
        y = torch.empty(0, device=x.device)
        y.set_(x)
        y.add_(1)
        z = torch.empty(0, device=x.device).set_(x.untyped_storage(), 2, (2, 2), (1, 2))
        z.mul_(10)
        w = torch.empty(0, device=x.device).set_(x.untyped_storage())
        assert pointer(y) == pointer(z) == pointer(w) == pointer(x)
        v = x[1:]
        v.set_()
        return [x, y, z, w, v]

    on_both(run, torch.arange(6.0))


def test_set_grows_the_storage() -> None:
    def run(x: Tensor) -> Tensor:
        x.set_(x.untyped_storage(), 1, (3, 3), (3, 1))
        x[1:] = 4
        return x + 1

    on_both(run, torch.arange(4.0))


def test_data_is_assigned() -> None:
    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        p = nn.Parameter(x)
        p.data = y
        assert pointer(p) == pointer(y) and p.shape == y.shape
        p.data.mul_(2)
        p.data = p.data[1:]
        p.data = p.data.double()
        return [p * 1, y]

    on_both(run, torch.ones(2), torch.arange(6.0).reshape(3, 2))


def test_data_moves_between_devices() -> None:
    p = nn.Parameter(torch.arange(3.0))
    p.data = p.data.to("tpu")
    assert p.device.type == "tpu" and p.requires_grad
    (p * p).sum().backward()
    torch.testing.assert_close(p.grad.cpu(), torch.tensor([0.0, 2, 4]))
    p.grad = None
    p.data = p.data.to("cpu")
    assert p.device.type == "cpu" and p.tolist() == [0, 1, 2]


# --- copies of objects


def test_deepcopy_keeps_sharing() -> None:
    x = torch.arange(6.0, device="tpu")
    a = copy.deepcopy({"base": x, "view": x[2:4], "again": x, "turned": x.view(2, 3).t()})
    assert pointer(a["base"]) == pointer(a["view"]) == pointer(a["turned"]) != pointer(x)
    assert a["base"] is a["again"]
    a["base"].add_(1)
    torch.testing.assert_close((a["view"] + 0).cpu(), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close((a["turned"] + 0).cpu(), torch.tensor([[1.0, 4], [2, 5], [3, 6]]))
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    shallow = copy.copy(x)
    assert pointer(shallow) == pointer(x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float64]
)
def test_deepcopy_pickle_and_save_keep_values(dtype: torch.dtype) -> None:
    host = torch.arange(12).reshape(3, 4).to(dtype)
    x = host.to("tpu")
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), saved(x), saved(x.t()).t(), saved(x[1:, ::2])):
        assert made.device.type == "tpu" and made.dtype == dtype
        expected = host[1:, ::2] if made.shape == (2, 2) else host
        torch.testing.assert_close(made.cpu(), expected)
        torch.testing.assert_close(made.clone().cpu(), expected)


def test_deepcopy_of_a_model_in_training() -> None:
    model = tied().to("tpu")
    model.head(model.norm(model.embed(torch.tensor([1, 2], device="tpu")))).sum().backward()
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight and twin.head.weight is not model.head.weight
    with torch.no_grad():
        twin.embed.weight.zero_()
    assert model.embed.weight.abs().sum() > 0


@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load_keep_views_shared(weights_only: bool) -> None:
    x = torch.arange(10.0, device="tpu")
    loaded = saved({"all": x, "part": x[3:5]}, weights_only=weights_only)
    assert pointer(loaded["all"]) == pointer(loaded["part"])
    loaded["all"].mul_(2)
    assert loaded["part"].device.type == "tpu" and loaded["part"].tolist() == [6, 8]


@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(weights_only: bool) -> None:
    there, here = torch.arange(3.0, device="tpu"), torch.arange(3.0)
    to_cpu = {"map_location": "cpu", "weights_only": weights_only}
    to_tpu = {"map_location": "tpu", "weights_only": weights_only}
    cases = [
        (there, to_cpu, "cpu"),
        (here, to_tpu, "tpu"),
        (here, {**to_tpu, "map_location": torch.device("tpu:0")}, "tpu"),
        (here, {**to_tpu, "map_location": {"cpu": "tpu:0"}}, "tpu"),
        (there, {**to_cpu, "map_location": lambda storage, location: storage.cpu()}, "cpu"),
        (there, {"weights_only": weights_only}, "tpu"),
    ]
    for value, options, device in cases:
        loaded = saved({"x": value}, **options)["x"]
        assert loaded.device.type == device and loaded.tolist() == [0, 1, 2]
        assert (loaded + 1).tolist() == [1, 2, 3]


def test_load_by_mmap_and_under_a_default_device(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(tied().to("tpu").state_dict(), file)
    mapped = torch.load(file, mmap=True, map_location="cpu")
    with torch.device("tpu"):
        loaded = torch.load(file)
    for name, value in mapped.items():
        assert_same(loaded[name], value)
    model = tied().to("tpu")
    model.load_state_dict(mapped)
    assert_same(model.embed.weight, mapped["embed.weight"])


def test_a_second_process_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    torch.save({"x": torch.arange(4.0, device="tpu"), "n": nn.Parameter(torch.ones(2, device="tpu"))}, file)
    code = f"import torch; d = torch.load({str(file)!r}); print(d['x'].device, (d['x'] + d['n'].sum()).tolist())"
    assert expect(code) == "tpu:0 [2.0, 3.0, 4.0, 5.0]"
    code = f"import torch; print(torch.load({str(file)!r}, map_location='cpu')['x'].tolist())"
    assert expect(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[0.0, 1.0, 2.0, 3.0]"


def test_numpy_and_scalars() -> None:
    x = torch.arange(3.0, device="tpu")
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="host memory first"):
            convert()
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert x.tolist() == [0, 1, 2] and x[1].item() == 1 and float(x[2]) == 2 and bool(x[1]) and int(x[2]) == 2
    assert [1, 2, 3][x[1].long()] == 2
    with pytest.raises(RuntimeError, match="converted to Scalar"):
        x.item()
    assert repr(x) == "tensor([0., 1., 2.], device='tpu:0')"
    assert str(nn.Parameter(x)).startswith("Parameter containing:")


# --- models


@pytest.mark.parametrize("route", ["to", "tpu", "dtype", "half then to", "there and back", "to_empty", "data"])
def test_tied_weights_stay_tied(route: str) -> None:
    model = tied()
    parameter = model.embed.weight
    if route == "to":
        model.to("tpu")
    elif route == "tpu":
        model.tpu()
    elif route == "dtype":
        model.to("tpu", torch.bfloat16)
    elif route == "half then to":
        model.half().to("tpu")
    elif route == "there and back":
        model.to("tpu").to("cpu").to("tpu").to(torch.bfloat16).float()
    elif route == "to_empty":
        model.to_empty(device="tpu")
    else:
        model.embed.weight.data = model.embed.weight.data.to("tpu")
    assert model.head.weight is model.embed.weight
    if route != "to_empty":
        assert model.embed.weight is parameter, "optimizers hold the parameter"
    assert len(list(model.parameters())) == 3
    with torch.no_grad():
        model.head.weight.fill_(2)
    assert model.embed.weight[0, 0].item() == 2


def test_parametrizations_and_weight_norm() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    torch.manual_seed(0)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.Linear(4, 2),
    ).eval()
    parametrize.register_parametrization(model[3], "weight", Twice())
    x = torch.randn(3, 4)
    expected = model(x)
    model.to("tpu")
    torch.testing.assert_close(model(x.to("tpu")).cpu(), expected)
    model(x.to("tpu")).sum().backward()
    assert all(p.grad is not None and p.grad.device.type == "tpu" for p in model.parameters())


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(assign: bool) -> None:
    model, source = nn.Linear(3, 2).to("tpu"), nn.Linear(3, 2)
    state = {k: v.to("tpu") if assign else v for k, v in source.state_dict().items()}
    model.load_state_dict(state, assign=assign)
    assert_same(list(model.parameters()), list(source.parameters()))
    assert (pointer(model.weight) == pointer(state["weight"])) == assign
    with torch.device("meta"):
        empty = nn.Linear(3, 2)
    empty.load_state_dict({k: v.to("tpu") for k, v in source.state_dict().items()}, assign=True)
    assert_same(list(empty.parameters()), list(source.parameters()))


def test_optimizer_state_survives_save_and_load() -> None:
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3, device="tpu")).sum().backward()
    optimizer.step()
    again = torch.optim.Adam(model.parameters(), lr=0.1)
    again.load_state_dict(saved(optimizer.state_dict(), map_location="cpu"))
    states = [again.state[p]["exp_avg"] for p in model.parameters()]
    assert_same(states, [optimizer.state[p]["exp_avg"].cpu() for p in model.parameters()])


# --- host memory


def test_pinned_and_non_blocking() -> None:
    x = torch.arange(1000.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned()
    y = pinned.to("tpu", non_blocking=True)
    pinned.fill_(-1)  # the copy has been taken
    torch.testing.assert_close(y.cpu(), x)
    back = y.to("cpu", non_blocking=True)
    torch.tpu.synchronize()
    torch.testing.assert_close(back, x)
    target = torch.empty(1000).pin_memory()
    target.copy_(y, non_blocking=True)
    torch.tpu.synchronize()
    torch.testing.assert_close(target, x)
    with pytest.raises(RuntimeError, match=r"cannot pin|dense CPU"):
        y.pin_memory()
    assert not y.is_pinned()


def test_host_memory_may_be_changed_right_after_a_copy() -> None:
    x = torch.zeros(4096)
    copies = []
    for i in range(8):
        x.fill_(i)
        copies.append(x.to("tpu", non_blocking=True))
    assert [int(c[17]) for c in copies] == list(range(8))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.uint16]
)
def test_copies_cross_in_every_dtype_and_layout(dtype: torch.dtype) -> None:
    host = (torch.arange(24) % 2 if dtype == torch.bool else torch.arange(24)).reshape(2, 3, 4).float().to(dtype)
    for view in (host, host.permute(2, 0, 1), host[:, 1], host[:, :1].expand(2, 3, 4), host[:, :, 2]):
        there = view.to("tpu")
        back = there.cpu()
        assert back.dtype == dtype
        assert torch.equal(back.float(), view.float())


def test_copy_converts_on_the_way() -> None:
    x = torch.tensor([1.5, -2.5, 300.0])
    for dtype in (torch.int64, torch.bfloat16, torch.float64, torch.bool):
        assert_same(x.to("tpu", dtype), x.to(dtype))
        assert_same(x.to("tpu").to(dtype), x.to(dtype))
        torch.testing.assert_close(x.to("tpu").to("cpu", dtype), x.to(dtype))
        target = torch.zeros(3, dtype=dtype)
        target.copy_(x.to("tpu"))
        torch.testing.assert_close(target, x.to(dtype))
        there = torch.zeros(2, 3, dtype=dtype, device="tpu")
        there.copy_(x)
        torch.testing.assert_close(there.cpu(), x.to(dtype).expand(2, 3))


def test_unsupported_dtypes_and_layouts_say_so() -> None:
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to("tpu")
    with pytest.raises(NotImplementedError, match="dense"):
        torch.ones(2, 2, device="tpu").to_sparse()
    one = torch.ones(1, device="tpu")
    for sizes in ((), ((1, 1),)):
        with pytest.raises(NotImplementedError, match="sparse tensors are not supported"):
            torch.sparse_csr_tensor(torch.tensor([0, 1], device="tpu"), torch.tensor([0], device="tpu"), one, *sizes)
    with pytest.raises(NotImplementedError, match="complex32 is not supported"):
        one.half() * 1j


# --- DLPack


def test_dlpack_out_and_in() -> None:
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    y = torch.from_dlpack(x.t())  # what other libraries see: a copy on the CPU
    assert y.device.type == "cpu" and torch.equal(y, x.t().cpu())
    with pytest.raises(BufferError, match="copy"):
        x.__dlpack__(copy=False)
    capsule = torch.utils.dlpack.to_dlpack(x)  # inside PyTorch the capsule is the tensor's memory
    z = torch.utils.dlpack.from_dlpack(capsule)
    z.add_(1)
    assert z.device == x.device and z.tolist() == x.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_dlpack_between_the_device_and_numpy() -> None:
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    host = np.from_dlpack(x)
    assert host.tolist() == x.tolist()
    there = torch.from_dlpack(np.arange(4.0)).to("tpu")
    assert there.tolist() == [0, 1, 2, 3]


def test_dlpack_to_jax() -> None:
    jax = pytest.importorskip("jax")
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    array = jax.dlpack.from_dlpack(x)
    assert np.asarray(array).tolist() == x.tolist()


def test_a_resized_output_warns_once_and_not_from_inside_the_package() -> None:
    out = torch.empty(0, device="tpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.add(torch.ones(2, device="tpu"), 1, out=out)
    assert not caught
