"""The module `torch.tpu`: devices, memory, random numbers, streams and events, modes, counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from . import _C, runtime
from . import compile_log as _log

Device = torch.device | str | int | None


# --- devices


def is_available() -> bool:
    """True if there is a device: a TPU, or the CPU plugin. Starts nothing."""
    return _C.device_count() > 0


def device_count() -> int:
    """How many devices there are. Starts nothing."""
    return _C.device_count()


def is_initialized() -> bool:
    """True if the PJRT client has been made in this process."""
    return _C.started() and not _C.in_bad_fork()


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint reads it to know whether there is a random state to keep
        return is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def init() -> None:
    """Make the PJRT client now instead of at first use."""
    _C.ensure_started()


def is_emulated() -> bool:
    """True if "tpu" is not a TPU chip but another processor's plugin (XLA's CPU plugin)."""
    return runtime.is_emulated()


def current_device() -> int:
    """The index of this thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make `device` this thread's current one; RuntimeError if there is no such device."""
    index = _index(device)
    if index >= 0:
        _C.set_device(index)


class device(contextlib.ContextDecorator):
    """Context manager: the current device inside. `with torch.tpu.device(1): ...`; None or -1 changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device) if device is not None else -1

    def __enter__(self) -> device:
        self.previous = current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)
        return self

    def __exit__(self, *error: object) -> None:
        _C.set_device(self.previous)


class device_of(device):
    """Context manager: the device of a tensor or storage inside; nothing changes for one that is not on tpu."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "tpu" else None)


def synchronize(device: Device = None) -> None:
    """Wait until everything launched on a device is done; raises the error of a launch that failed."""
    _C.synchronize(_index(device))


def get_device_name(device: Device = None) -> str:
    """The device's name: "TPU v6e" on a chip, "TPU (emulated on CPU)" on the CPU plugin."""
    _C.ensure_started()
    kind = _C.device_kind(_index(device))
    if is_emulated():
        return f"TPU (emulated on {kind.upper()})"
    return kind if kind.startswith("TPU") else f"TPU {kind}"


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(generation, 0) of a chip, (0, 0) for an emulated one."""
    if is_emulated():
        return (0, 0)
    digits = "".join(c for c in get_device_name(device).lower().partition("v")[2] if c.isdigit())
    return (int(digits or 0), 0)


@dataclass(frozen=True)
class DeviceProperties:
    """name; total_memory in bytes; platform: of the PJRT client; emulated: not a TPU chip."""

    name: str
    total_memory: int
    platform: str
    emulated: bool


def get_device_properties(device: Device = None) -> DeviceProperties:
    """What is known of a device."""
    return DeviceProperties(get_device_name(device), _C.memory_limit(), _C.platform_name(), is_emulated())


def can_device_access_peer(device: Device, peer: Device) -> bool:
    """True: devices of one process copy to each other."""
    return _index(device) != _index(peer)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True on every device."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes `torch.autocast("tpu")` takes; bfloat16 is the default."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def _lazy_init() -> None:
    _C.ensure_started()


def _index(device: Device) -> int:
    """The index of a device given as torch.device, string, int or None (the current one)."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return current_device() if device.index is None else device.index


_utils = ModuleType("torch_tpu.device._utils")
_utils._get_device_index = lambda device, optional=False, allow_cpu=False: (
    -1 if allow_cpu and device is not None and torch.device(device).type == "cpu" else _index(device)
)


# --- memory


def memory_allocated(device: Device = None) -> int:
    """Bytes of the tensors that are alive."""
    return _C.memory_stats(_index(device))["allocated"]


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes in use since the start or the last `reset_peak_memory_stats`, with programs' scratch memory."""
    return _C.memory_stats(_index(device))["peak"]


def memory_reserved(device: Device = None) -> int:
    """As `memory_allocated`: there is no cache of free memory above the runtime's own."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """As `max_memory_allocated`."""
    return max_memory_allocated(device)


def memory_stats(device: Device = None) -> dict[str, int]:
    """Counters under the names torch.cuda uses, in bytes and blocks."""
    now = _C.memory_stats(_index(device))
    stats: dict[str, int] = {}
    for name in ("active_bytes", "allocated_bytes", "reserved_bytes", "requested_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            here = pool == "all"
            stats[f"{name}.{pool}.current"] = now["allocated"] if here else 0
            stats[f"{name}.{pool}.peak"] = now["peak"] if here else 0
            stats[f"{name}.{pool}.allocated"] = now["total_allocated"] if here else 0
            stats[f"{name}.{pool}.freed"] = now["total_freed"] if here else 0
    for name in ("active", "allocation"):
        stats[f"{name}.all.current"] = now["active_blocks"]
        stats[f"{name}.all.allocated"] = now["allocations"]
        stats[f"{name}.all.freed"] = now["allocations"] - now["active_blocks"]
    stats |= {"num_alloc_retries": 0, "num_ooms": now["ooms"], "temporaries_bytes.peak": now["temporaries_peak"]}
    return stats


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A readable table of the main counters."""
    index = _index(device)
    now, total = _C.memory_stats(index), _C.memory_limit()
    rows = [("allocated", now["allocated"]), ("peak", now["peak"]), ("scratch peak", now["temporaries_peak"])]
    lines = [f"tpu:{index} memory, limit {total / 2**20:.1f} MiB"]
    lines += [f"  {name:<14}{value / 2**20:>12.1f} MiB" for name, value in rows]
    lines.append(f"  {'tensors':<14}{now['active_blocks']:>12}")
    return "\n".join(lines)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes."""
    total = _C.memory_limit()
    return max(0, total - memory_allocated(device)), total


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let the peak start from what is in use now."""
    _C.reset_peak_memory_stats(_index(device))


def empty_cache() -> None:
    """Nothing to free: memory goes back to the runtime when a tensor dies."""


def _record_memory_history(*args: Any, **kwargs: Any) -> None:
    """Accepted and ignored: there is no allocator whose history could be recorded."""


def _snapshot(device: Device = None) -> dict[str, Any]:
    return {"segments": [], "device_traces": [], "stats": memory_stats(device)}


memory = ModuleType("torch_tpu.device.memory")
memory.__dict__.update(
    {f.__name__: f for f in (_record_memory_history, _snapshot, memory_stats, memory_summary, mem_get_info)}
)


# --- random numbers


class _Generators:
    """The default generators, one a device, as a sequence."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} tpu devices")
        return _C.default_generator(index)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    if is_available():
        default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator at random; returns the seed."""
    return default_generators[current_device()].seed()


def seed_all() -> None:
    """Seed the generators of all devices with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[current_device()].initial_seed()


def get_rng_state(device: Device = "tpu") -> torch.Tensor:
    """uint8[16] on the CPU: the seed in bytes 0-7, the offset in bytes 8-15."""
    return default_generators[_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tpu") -> None:
    """Set what `get_rng_state` returned."""
    default_generators[_index(device)].set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [g.get_state() for g in default_generators]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set what `get_rng_state_all` returned."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state.cpu())


def fork_rng(*args: Any, **kwargs: Any) -> Any:
    """`torch.random.fork_rng` for this device."""
    return torch.random.fork_rng(*args, **{"device_type": "tpu", **kwargs})


# --- streams and events: one in-order queue a device


class _OfTpu(type):
    """Makes `isinstance(x, torch.tpu.Stream)` true of a torch.Stream on tpu: PyTorch refuses subclasses."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.plain) and instance.device.type == "tpu"


class Stream(metaclass=_OfTpu):
    """Makes a torch.Stream of a device. All streams of a device are its one in-order queue."""

    plain = torch.Stream

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> torch.Stream:
        if kwargs:
            return torch.Stream(priority=priority, **kwargs)
        return torch.Stream(device=torch.device("tpu", _index(device)), priority=priority)


class Event(metaclass=_OfTpu):
    """Makes a torch.Event: the completion of what had been launched when it was recorded."""

    plain = torch.Event

    def __new__(cls, enable_timing: bool = True, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event(device="tpu", enable_timing=enable_timing)


def current_stream(device: Device = None) -> torch.Stream:
    """The device's stream."""
    return Stream(stream_id=0, device_index=_index(device), device_type=torch._C._autograd.DeviceType.PrivateUse1.value)


def default_stream(device: Device = None) -> torch.Stream:
    """The device's stream."""
    return current_stream(device)


def set_stream(stream: torch.Stream | None) -> None:
    """Accepted: a device has one queue, which stays the current one."""


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
    """Context manager of a stream; work goes to the device's one queue."""
    yield stream


# --- modes and counters


def cache_stats() -> dict[str, Any]:
    """Counters of this process.

    compiles, memory_hits, disk_hits, launches, uploads (scalars and offsets sent), compile_seconds.
    """
    return _C.stats()


def clear_cache() -> None:
    """Forget the programs in memory; those on disk stay."""
    _C.clear_programs()


def compile_log() -> _log.CompileLog:
    """The programs that this process compiled or loaded from the disk, the last 4096, as a list whose `str` is a table.

    Each has `name`, `line`, `seconds`, `from_disk`, `why` and `arguments`. TORCH_LOGS="torch_tpu" prints compiles as
    they end, "+torch_tpu" loads too.
    """
    return _log.entries()


def clear_compile_log() -> None:
    """Forget what `compile_log` has; programs stay."""
    _log.clear()


def forbid_compiles(loads: bool = False) -> contextlib.AbstractContextManager[None]:
    """Context manager: a compile inside raises `CompileForbidden`, a RuntimeError that says what, where and why.

    In all threads of the process, because backward passes run in threads of their own. loads: so do programs that come
    from the disk cache, which take milliseconds.
    """
    return _log.forbid(loads)


CompileForbidden = _log.CompileForbidden


def cpu_fallbacks() -> dict[str, int]:
    """The ops that had no lowering and ran on the CPU because it was asked for, and how often."""
    return _C.cpu_fallbacks()


def set_fallback(to: str | None) -> None:
    """ "cpu": run ops without a lowering on the CPU, with one warning per op. None: raise NotImplementedError."""
    if to not in ("cpu", None):
        raise ValueError(f"fallback must be 'cpu' or None, not {to!r}")
    _C.set_cpu_fallback(to == "cpu")


def get_mode() -> str:
    """The execution mode, see `set_mode`."""
    return "debug" if _C.debug_mode() else "strict"


def set_mode(mode: str) -> None:
    """ "strict": one op, one asynchronous launch. "debug": wait for each, and check indices. Also TORCH_TPU_MODE."""
    if mode not in ("strict", "debug"):
        raise ValueError(f"mode must be 'strict' or 'debug', not {mode!r}")
    _C.set_debug_mode(mode == "debug")


@contextlib.contextmanager
def mode(mode: str) -> Iterator[None]:
    """Context manager of `set_mode`."""
    previous = get_mode()
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(previous)


class Backend:
    """`torch.backends.tpu`."""

    def is_available(self) -> bool:
        """As `torch.tpu.is_available`."""
        return is_available()

    def is_built(self) -> bool:
        """True: the extension is there."""
        return True

    def version(self) -> str:
        """The plugin's PJRT API version, of the started client."""
        return ".".join(map(str, _C.pjrt_api_version()))


__name__ = "torch.tpu"
