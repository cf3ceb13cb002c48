"""The device as a program meets it: torch.tpu, torch.accelerator, streams, memory, random numbers, processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import expect, run_python
from torch.utils.data import DataLoader, TensorDataset

tpu = torch.tpu
SEVERAL = {"TORCH_TPU_NUM_DEVICES": "4"}


# --- devices


def test_the_device_is_known_everywhere() -> None:
    assert torch._C._get_privateuse1_backend_name() == "tpu"
    assert tpu.is_available() and tpu.device_count() >= 1 and tpu.current_device() == 0
    assert torch.get_device_module("tpu") is tpu and tpu.__name__ == "torch.tpu"
    assert torch.backends.tpu.is_available() and torch.backends.tpu.is_built()
    x = torch.ones(2, device="tpu")
    assert x.is_tpu and not x.cpu().is_tpu and x.device == torch.device("tpu:0") and x.get_device() == 0
    assert torch.ones(2).tpu().is_tpu and torch.nn.Linear(2, 2).tpu().weight.is_tpu
    assert torch.ones(1, device=0).is_tpu, "an index alone means the accelerator"
    assert tpu.is_initialized()


def test_accelerator_answers_the_same() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available() and accelerator.current_accelerator().type == "tpu"
    assert accelerator.device_count() == tpu.device_count()
    assert accelerator.current_device_index() == tpu.current_device()
    accelerator.set_device_index(0)
    accelerator.synchronize()
    stream = accelerator.current_stream()
    assert stream.device.type == "tpu"
    accelerator.set_stream(stream)
    x = torch.ones(1000, device="tpu")
    assert accelerator.memory_allocated() == tpu.memory_allocated() >= x.nbytes
    assert accelerator.memory_reserved() == tpu.memory_reserved()
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    assert accelerator.memory_stats()["active_bytes.all.current"] == tpu.memory_stats()["active_bytes.all.current"]
    free, total = accelerator.get_memory_info()
    assert (free, total) == tpu.mem_get_info() and 0 < free < total
    with accelerator.device_index(0):
        assert tpu.current_device() == 0


def test_what_the_ecosystem_asks_of_the_module() -> None:
    """Each name is one that a public library was seen to use."""
    names = """
        is_available device_count current_device set_device synchronize is_initialized _is_in_bad_fork manual_seed_all
        manual_seed initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all seed seed_all
        get_amp_supported_dtype device device_of _lazy_init Stream Event stream current_stream default_stream set_stream
        get_device_name get_device_properties get_device_capability reset_peak_memory_stats empty_cache memory_stats
        memory_allocated max_memory_allocated memory_reserved max_memory_reserved mem_get_info memory_summary
        default_generators is_bf16_supported is_emulated cache_stats cpu_fallbacks set_fallback init
    """
    missing = [n for n in names.split() if not hasattr(tpu, n)]
    assert not missing
    tpu.memory._record_memory_history()
    assert isinstance(tpu.memory._snapshot(), dict)
    assert tpu._utils._get_device_index("tpu:0") == 0
    assert tpu._utils._get_device_index(None, optional=True) == 0
    assert tpu._utils._get_device_index(torch.device("cpu"), allow_cpu=True) == -1
    assert not tpu._is_in_bad_fork()
    assert torch.bfloat16 in tpu.get_amp_supported_dtype() and torch.float16 in tpu.get_amp_supported_dtype()


def test_package_names() -> None:
    import importlib.metadata

    import torch_tpu
    from torch_tpu import _loader

    assert importlib.metadata.version("torch-tpu") == importlib.metadata.version("torch_tpu") == torch_tpu.__version__
    _loader.load()
    _loader.load()


def test_names_and_properties_tell_a_chip_from_an_emulation() -> None:
    properties = tpu.get_device_properties(0)
    assert properties.name == tpu.get_device_name() and properties.total_memory == tpu.mem_get_info()[1] > 0
    assert properties.emulated == tpu.is_emulated()
    assert ("emulated" in properties.name) == tpu.is_emulated() and properties.name.startswith("TPU")
    if tpu.is_emulated():
        assert tpu.get_device_capability() == (0, 0)
    assert "tpu:0" in tpu.memory_summary()


@pytest.mark.parametrize("device", [99, "tpu:99", torch.device("tpu", 99)])
def test_there_is_no_such_device(device: Any) -> None:
    for use in (
        lambda: tpu.set_device(device),
        lambda: torch.ones(1).to(device if not isinstance(device, int) else f"tpu:{device}"),
        lambda: tpu.synchronize(device),
        lambda: tpu.memory_allocated(device),
        lambda: tpu.get_device_name(device),
        lambda: tpu.get_rng_state(device),
    ):
        with pytest.raises((RuntimeError, IndexError, ValueError, AssertionError)) as raised:
            use()
        assert "99" in str(raised.value) or "devices" in str(raised.value)
    assert tpu.current_device() == 0
    assert torch.ones(1, device="tpu").item() == 1


def test_the_device_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected a tpu device"):
        tpu.set_device("cpu")


def test_default_device() -> None:
    with torch.device("tpu"):
        made = [
            torch.ones(2),
            torch.tensor([1.0, 2]),
            torch.nn.Linear(2, 2).weight,
            torch.arange(3),
            torch.randn(2),
            torch.eye(2),
        ]
    assert all(x.is_tpu for x in made)
    assert not torch.ones(2).is_tpu
    torch.set_default_device("tpu")
    try:
        assert torch.zeros(2).is_tpu and torch.as_tensor([1, 2]).is_tpu
    finally:
        torch.set_default_device(None)


# --- streams and events


def test_events_measure_time() -> None:
    begin, end = torch.Event("tpu", enable_timing=True), tpu.Event(enable_timing=True)
    x = torch.randn(400, 400, device="tpu")
    (x @ x).sum().item()
    begin.record()
    clock = time.perf_counter()
    for _ in range(20):
        x = x @ x / 400
    end.record()
    end.synchronize()
    spent = 1e3 * (time.perf_counter() - clock)
    assert begin.query() and end.query()
    assert 0 < begin.elapsed_time(end) <= spent * 1.5 + 5
    assert begin.elapsed_time(end) > 0.05 * spent


def test_an_event_that_was_not_recorded() -> None:
    event = tpu.Event(enable_timing=True)
    assert event.query()
    event.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        event.elapsed_time(tpu.Event(enable_timing=True))


def test_streams_are_one_queue() -> None:
    stream = tpu.Stream()
    x = torch.arange(4.0, device="tpu")
    with tpu.stream(stream):
        y = x * 2
        event = stream.record_event()
    tpu.current_stream().wait_event(event)
    tpu.current_stream().wait_stream(stream)
    y.record_stream(stream)
    with stream:
        z = y + 1
    stream.synchronize()
    assert stream.query() and event.query() and z.tolist() == [1, 3, 5, 7]
    assert tpu.current_stream() == tpu.default_stream()
    assert tpu.current_stream().device == torch.device("tpu:0")
    tpu.set_stream(stream)
    event.wait()
    event.wait(stream)


# --- memory


def test_memory_is_counted() -> None:
    x = torch.ones(1000, device="tpu")
    tpu.synchronize()
    before = tpu.memory_allocated()
    tpu.reset_peak_memory_stats()
    a = torch.zeros(2500, device="tpu")
    assert tpu.memory_allocated() == before + 10_000
    view, b = a[10:], a.clone()
    assert tpu.memory_allocated() == before + 20_000
    del a, b
    assert tpu.memory_allocated() == before + 10_000
    del view
    assert tpu.memory_allocated() == before
    assert tpu.max_memory_allocated() >= before + 20_000
    tpu.reset_peak_memory_stats()
    assert tpu.max_memory_allocated() == before
    x.add_(1)
    torch.add(x, 1, out=x)
    assert tpu.memory_allocated() == before
    stats = tpu.memory_stats()
    for key in (
        "active_bytes.all.peak",
        "reserved_bytes.all.peak",
        "allocated_bytes.all.current",
        "num_alloc_retries",
        "num_ooms",
    ):
        assert key in stats
    assert stats["allocation.all.current"] == stats["allocation.all.allocated"] - stats["allocation.all.freed"]


def test_graphs_are_freed() -> None:
    w = torch.ones(100, device="tpu", requires_grad=True)
    ((w * 2).exp().sum()).backward()
    w.grad = None
    before = tpu.memory_allocated()
    for _ in range(3):
        ((w * 2).exp().sum()).backward()
        w.grad = None
    assert tpu.memory_allocated() == before


OUT_OF_MEMORY = """
import torch
kept = torch.ones(1 << 20, device="tpu")
ooms = torch.tpu.memory_stats()["num_ooms"]
for ask in (
    lambda: torch.empty(100 << 20, device="tpu"),
    lambda: torch.ones(100 << 20).to("tpu"),
    lambda: kept.expand(64, 1 << 20) + 1,
    lambda: kept.repeat(64),
):
    try:
        ask()
    except torch.OutOfMemoryError as error:
        text = str(error)
        assert "tpu:0" in text and "MiB" in text and "TORCH_TPU_MEMORY_LIMIT" in text, text
    else:
        raise AssertionError("no error")
assert torch.tpu.memory_stats()["num_ooms"] - ooms >= 4
assert (kept + 1).sum().item() == 2 << 20
parts = [torch.ones(1 << 20, device="tpu") for _ in range(10)]
try:
    parts += [torch.ones(1 << 20, device="tpu") for _ in range(10)]
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError("no error")
del parts
torch.ones(8 << 20, device="tpu").add_(1)
print(torch.tpu.memory_allocated(), torch.tpu.get_device_properties().total_memory)
"""


def test_exhausted_memory_raises_and_leaves_the_device_usable() -> None:
    assert expect(OUT_OF_MEMORY, TORCH_TPU_MEMORY_LIMIT=str(64 << 20)) == f"{4 << 20} {64 << 20}"


# --- several devices

SEVERAL_DEVICES = """
import torch
from torch import nn
tpu = torch.tpu
assert tpu.device_count() == torch.accelerator.device_count() == 4
x = torch.arange(4.0, device="tpu:3")
assert x.device == torch.device("tpu:3") and (x + 1).device.index == 3
assert tpu.current_device() == 0
y = x.to("tpu:1")
z = x.t().to("tpu:2", torch.float64)
assert y.device.index == 1 and y.tolist() == z.tolist() == [0, 1, 2, 3]
assert x[1::2].to("tpu:0").tolist() == [1, 3]
w = torch.zeros(2, 4, device="tpu:2")
w.t()[1:].copy_(x[1:, None].expand(3, 2))
assert w.tolist() == [[0, 1, 2, 3]] * 2
w.copy_(torch.empty(4, device="tpu:1").fill_(5))
assert w.sum().item() == 40
for mix in (lambda: x + y, lambda: torch.cat([x, y]), lambda: torch.mm(x[None], y[:, None]), lambda: x.add_(y)):
    try:
        mix()
    except RuntimeError as error:
        assert "same device" in str(error) and "tpu:3" in str(error) and "tpu:1" in str(error), error
    else:
        raise AssertionError("no error")
with tpu.device(2):
    assert tpu.current_device() == 2 and torch.ones(1, device="tpu").device.index == 2
    with tpu.device_of(x):
        assert tpu.current_device() == 3
    with tpu.device(None):
        assert tpu.current_device() == 2
assert tpu.current_device() == 0
tpu.set_device("tpu:1")
assert torch.randn(2, device="tpu").device.index == 1 and torch.accelerator.current_device_index() == 1
torch.accelerator.set_device_index(0)
assert tpu.current_device() == 0
torch.manual_seed(1)
a = [torch.randn(3, device=f"tpu:{i}").tolist() for i in range(4)]
assert a[0] == a[1] == a[3]
assert len(tpu.get_rng_state_all()) == 4
with torch.random.fork_rng(device_type="tpu"):
    torch.randn(3, device="tpu:3")
assert tpu.get_rng_state("tpu:3")[8].item() == tpu.get_rng_state("tpu:0")[8].item()
for i in range(4):
    tpu.synchronize(i)
assert tpu.memory_allocated(3) == 16 and tpu.memory_allocated(1) > 0
model = nn.Linear(4, 2).to("tpu:2")
out = model(x.to("tpu:2")).sum().to("tpu:3") * x.sum()
out.backward()
assert model.weight.grad.device.index == 2
torch.testing.assert_close(model.weight.grad.cpu(), torch.arange(4.0).expand(2, 4) * 6)
before = tpu.cache_stats()["compiles"]
for i in range(4):
    (torch.zeros(3, device=f"tpu:{i}") * 3 - 1)
assert tpu.cache_stats()["compiles"] - before <= 3, "one program serves every device"
x0 = torch.zeros(2, device="tpu:0")
x0.set_(torch.ones(2, device="tpu:0"))
import io
f = io.BytesIO(); torch.save(x, f); f.seek(0)
assert torch.load(f).device.index == 3
f.seek(0)
assert torch.load(f, map_location={"tpu:3": "tpu:1"}).device.index == 1
e = tpu.Event(enable_timing=True)
with tpu.device(3):
    s = tpu.current_stream()
    assert s.device_index == 3
    e.record(s)
e.synchronize()
print("ok")
"""


def test_several_devices_in_one_process() -> None:
    assert expect(SEVERAL_DEVICES, **SEVERAL) == "ok"


def test_a_file_from_more_devices_than_there_are() -> None:
    code = """
import io, torch
x = torch.ones(2, device="tpu:3")
torch.save(x, PATH)
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = repr(str(Path(folder) / "x.pt"))
        expect(code.replace("PATH", path), **SEVERAL)
        done = run_python(f"import torch; torch.load({path})", TORCH_TPU_NUM_DEVICES="1")
        assert done.returncode != 0 and "RuntimeError" in done.stderr
        assert expect(f"import torch; print(torch.load({path}, map_location='tpu').device)") == "tpu:0"


# --- random numbers


def test_random_state_is_seed_and_offset() -> None:
    torch.manual_seed(0x1234567890)
    state = tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.shape == (16,) and state.device.type == "cpu"
    assert int.from_bytes(bytes(state[:8].tolist()), "little") == 0x1234567890
    assert state[8:].sum() == 0
    assert tpu.initial_seed() == 0x1234567890
    a = torch.randn(10, device="tpu")
    after = tpu.get_rng_state()
    assert int.from_bytes(bytes(after[8:].tolist()), "little") == 12, "rounded up to whole counters"
    b = torch.randn(10, device="tpu")
    tpu.set_rng_state(state)
    assert torch.equal(torch.randn(10, device="tpu"), a)
    assert torch.equal(torch.randn(10, device="tpu"), b)
    assert not torch.equal(a, b)
    with pytest.raises(RuntimeError):
        tpu.set_rng_state(torch.zeros(8, dtype=torch.uint8))


def test_seeding() -> None:
    made = []
    for seed in (
        torch.manual_seed,
        tpu.manual_seed,
        tpu.manual_seed_all,
        torch.accelerator.manual_seed if hasattr(torch.accelerator, "manual_seed") else tpu.manual_seed,
    ):
        seed(5)
        made.append(torch.rand(4, device="tpu"))
    assert all(torch.equal(made[0], m) for m in made)
    torch.manual_seed(6)
    assert not torch.equal(made[0], torch.rand(4, device="tpu"))
    tpu.seed()
    first = torch.rand(4, device="tpu")
    tpu.seed_all()
    assert not torch.equal(first, torch.rand(4, device="tpu"))


def test_fork_rng_restores() -> None:
    torch.manual_seed(1)
    before = tpu.get_rng_state()
    for fork in (tpu.fork_rng(), torch.random.fork_rng(devices=[0], device_type="tpu")):
        with fork:
            torch.manual_seed(9)
            torch.randn(5, device="tpu")
        assert torch.equal(tpu.get_rng_state(), before)


def test_generators() -> None:
    generator = torch.Generator("tpu")
    assert generator.device.type == "tpu"
    generator.manual_seed(3)
    state = tpu.get_rng_state()
    a = torch.randn(4, device="tpu", generator=generator)
    assert torch.equal(tpu.get_rng_state(), state), "the default generator stays"
    generator.manual_seed(3)
    assert torch.equal(torch.empty(4, device="tpu").normal_(generator=generator), a)
    saved = generator.get_state()
    perm = torch.randperm(6, device="tpu", generator=generator)
    generator.set_state(saved)
    assert torch.equal(torch.randperm(6, device="tpu", generator=generator), perm)
    assert generator.initial_seed() == 3
    twin = generator.clone_state() if hasattr(generator, "clone_state") else generator
    assert twin.device.type == "tpu"
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(2, device="tpu", generator=torch.Generator("cpu").manual_seed(0))
    with pytest.raises(RuntimeError):
        torch.randn(2, generator=generator)
    assert len(tpu.default_generators) == tpu.device_count()
    tpu.default_generators[0].manual_seed(8)
    assert tpu.initial_seed() == 8


def test_threads_draw_different_numbers_of_one_seed() -> None:
    def draw() -> set[tuple[float, ...]]:
        torch.manual_seed(4)
        found: list[tuple[float, ...]] = []
        threads = [
            threading.Thread(target=lambda: found.append(tuple(torch.rand(4, device="tpu").tolist()))) for _ in range(6)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return set(found)

    first = draw()
    assert len(first) == 6
    assert draw() == first


def test_checkpoint_replays_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="tpu", requires_grad=True)
    for reentrant in (False, True):
        torch.manual_seed(0)
        out = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5) * 3, x, use_reentrant=reentrant)
        (grad,) = torch.autograd.grad(out.sum(), x) if not reentrant else (None,)
        if reentrant:
            x.grad = None
            out.sum().backward()
            grad = x.grad
        assert torch.equal(grad, out.detach())


# --- processes


def test_import_prints_nothing_and_starts_nothing() -> None:
    code = """
import sys, torch
assert torch.tpu.is_available() and torch.tpu.device_count() == 1 and torch.accelerator.is_available()
assert not torch.tpu.is_initialized()
assert "jax" not in sys.modules and "torch_tpu.eager" not in sys.modules
torch.manual_seed(1)
torch.ones(3) + 1
assert not torch.tpu.is_initialized() and "jax" not in sys.modules
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_first_use_prints_nothing() -> None:
    done = run_python("import torch; x = torch.ones(3, device='tpu') * 2; x.sum().item(); del x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_autoload_can_be_turned_off_and_either_import_may_come_first() -> None:
    assert expect("import torch; print(hasattr(torch, 'tpu'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False"
    expect("import torch_tpu, torch; assert torch.ones(2, device='tpu').sum().item() == 2")
    expect("import torch, torch_tpu; torch.ones(2, device='tpu')", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_import_after_a_backward_on_the_cpu() -> None:
    code = """
import torch
x = torch.ones(2, requires_grad=True); (x * x).sum().backward()
import torch_tpu
y = torch.ones(2, device="tpu", requires_grad=True); (y * y).sum().backward()
assert y.grad.tolist() == [2, 2]
"""
    expect(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_a_forked_child_is_told_to_use_spawn() -> None:
    code = """
import os, sys, torch
x = torch.ones(2, device="tpu") + 1
if os.fork() == 0:
    assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_initialized()
    (torch.ones(3) + 1).sum().item()
    uses = [lambda: torch.ones(1, device="tpu"), lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2).to("tpu")]
    for use in (*uses, torch.tpu.synchronize):
        try:
            use()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            os._exit(3)
    os._exit(0)
pid, status = os.wait()
assert status == 0, status
assert (x + 1).tolist() == [3, 3]
"""
    expect(code)


def test_a_child_forked_before_first_use_may_use_the_device() -> None:
    code = """
import os, torch
if os.fork() == 0:
    os._exit(0 if (torch.ones(2, device="tpu") + 1).sum().item() == 4 else 1)
assert os.wait()[1] == 0
"""
    expect(code)


class OnDevice(torch.utils.data.Dataset):
    """CPU samples, as worker processes make them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_workers_leave_the_device_alone(workers: int) -> None:
    torch.ones(1, device="tpu").add_(1)
    loader = DataLoader(OnDevice(), batch_size=4, num_workers=workers, pin_memory=True, timeout=60 if workers else 0)
    total = torch.zeros(2, device="tpu")
    for batch in loader:
        total += batch.to("tpu", non_blocking=True).sum(0)
    assert total.tolist() == [66, 66]


def test_data_loader_of_device_tensors() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0, device="tpu")), batch_size=3)
    assert [b[0].tolist() for b in loader] == [[0, 1, 2], [3, 4, 5]]


def test_a_thread_has_its_own_current_device() -> None:
    code = """
import threading, torch
torch.tpu.set_device(2)
seen = []
def look():
    seen.append(torch.tpu.current_device())
    torch.tpu.set_device(1)
t = threading.Thread(target=look); t.start(); t.join()
assert seen == [0] and torch.tpu.current_device() == 2
"""
    expect(code, **SEVERAL)


# --- bad settings

USE = "import torch; torch.ones(1, device='tpu')"


def test_a_plugin_that_is_none(tmp_path: Path) -> None:
    text = tmp_path / "plugin.so"
    text.write_text("not a library")
    library = next(p for p in Path(torch.__file__).parent.glob("lib/libc10.so"))
    for path, said in (
        (str(tmp_path / "missing.so"), "not a file"),
        (str(text), "cannot load the PJRT plugin"),
        (str(library), "not a PJRT plugin"),
    ):
        done = run_python(USE, TORCH_TPU_PJRT_PLUGIN=path)
        assert done.returncode == 1 and said in done.stderr and "TORCH_TPU_PJRT_PLUGIN" in done.stderr, done.stderr[
            -600:
        ]
        # Programs that don't use the device run.
        assert expect("import torch; print((torch.ones(2) + 1).sum().item())", TORCH_TPU_PJRT_PLUGIN=path) == "4.0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_TPU_NUM_DEVICES", "many"),
        ("TORCH_TPU_NUM_DEVICES", "0"),
        ("TORCH_TPU_NUM_DEVICES", "1000"),
        ("TORCH_TPU_MEMORY_LIMIT", "much"),
        ("TORCH_TPU_MODE", "fast"),
        ("TORCH_TPU_FALLBACK", "gpu"),
    ],
)
def test_settings_without_meaning_are_refused_by_name(name: str, value: str) -> None:
    done = run_python(USE, **{name: value})
    assert done.returncode == 1 and name in done.stderr, done.stderr[-600:]


def test_start_may_be_retried() -> None:
    code = """
import os, torch
os.environ["TORCH_TPU_PJRT_PLUGIN"] = "/nowhere/plugin.so"
try:
    torch.ones(1, device="tpu")
except RuntimeError as error:
    assert "not a file" in str(error)
else:
    raise AssertionError
del os.environ["TORCH_TPU_PJRT_PLUGIN"]
assert torch.ones(1, device="tpu").item() == 1
"""
    expect(code)


ENVIRONMENT = """
import os
os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
os.environ.update({variables})
before = dict(os.environ)
import torch
print({{k: v for k, v in os.environ.items() if before.get(k) != v}}, before.keys() <= os.environ.keys())
"""


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({}, {"ACCELERATE_TORCH_DEVICE": "tpu"}),
        ({"ACCELERATE_TORCH_DEVICE": "cpu"}, {}),
        ({"TORCH_TPU_PJRT_PLUGIN": "/nowhere/plugin.so"}, {}),
    ],
)
def test_accelerate_is_told_of_the_device(variables: dict[str, str], changed: dict[str, str]) -> None:
    """Loading sets that variable, where it is unset and there is a device, and no other."""
    assert expect(ENVIRONMENT.format(variables=variables)) == f"{changed} True"
