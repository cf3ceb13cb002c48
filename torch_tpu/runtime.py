"""Finding the PJRT plugin, starting the client, and what the C++ core needs to know before."""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from . import _C

CPU_PLUGIN = "xla_plugins.xla_cpu_pjrt"
CPU_PLUGIN_FILE = "xla_cpu_pjrt.so"


def plugin_path() -> str:
    """The plugin to load: TORCH_TPU_PJRT_PLUGIN, else libtpu if a TPU is attached to this host, else XLA's CPU plugin.

    RuntimeError, saying what to install, if it is not there.
    """
    chosen = os.environ.get("TORCH_TPU_PJRT_PLUGIN")
    if chosen:
        if not Path(chosen).is_file():
            raise RuntimeError(
                f"TORCH_TPU_PJRT_PLUGIN={chosen} is not a file: set it to a PJRT plugin's shared object, or unset it"
            )
        return chosen
    if tpu_attached():
        path = _package_file("libtpu", "libtpu.so")
        if path is None:
            raise RuntimeError("a TPU is attached but libtpu is not installed: pip install 'torch-tpu[tpu]'")
        return path
    path = _package_file(CPU_PLUGIN, CPU_PLUGIN_FILE)
    if path is None:
        raise RuntimeError("XLA's CPU plugin is not installed: pip install xla-cpu-pjrt")
    return path


def tpu_attached() -> bool:
    """True if this host has TPU chips (device files of the TPU driver, or VFIO with a Google device)."""
    if glob.glob("/dev/accel[0-9]*"):
        return True
    return any(_is_google_accelerator(path) for path in glob.glob("/sys/bus/pci/devices/*/vendor")) and bool(
        glob.glob("/dev/vfio/[0-9]*")
    )


def is_emulated() -> bool:
    """True if the device is not a TPU chip but a plugin for another processor."""
    return "libtpu" not in Path(plugin_path()).name


def device_count() -> int:
    """How many devices there will be, without starting the client. 0 if there is no plugin."""
    try:
        emulated = is_emulated()
    except RuntimeError:
        return 0
    if emulated:
        return _virtual_devices()
    visible = os.environ.get("TPU_VISIBLE_CHIPS") or os.environ.get("TPU_VISIBLE_DEVICES")
    if visible:
        return len(visible.split(","))
    return max(1, len(glob.glob("/dev/accel[0-9]*")) or len(glob.glob("/dev/vfio/[0-9]*")))


def start() -> None:
    """Make the process's PJRT client and register the kernels. Called at first use of the device; may be retried."""
    if _C.started():
        return
    path = plugin_path()
    options = [("cpu_device_count", _virtual_devices())] if is_emulated() else []
    # Not set for longer: JAX sets the same variable for its own libraries when it is imported.
    with environment(TF_CPP_MIN_LOG_LEVEL=os.environ.get("TORCH_TPU_LOG_LEVEL", "3")):
        _C.start(path, options)
    _C.set_most_programs(_most_programs())
    _C.set_device_count(_C.runtime_device_count())
    from . import eager

    _C.register_ops(eager.ops_to_register())


def _most_programs() -> int:
    """How many programs the process may hold, if the user says."""
    return int(os.environ.get("TORCH_TPU_MAX_PROGRAMS") or 1 << 62)


_results = 0  # of programs since memory maps were last counted


def keep_maps(results: int) -> None:
    """Drop all programs before the process runs out of memory maps, of which Linux allows 65,530: it would die.

    On the CPU plugin a program takes three for each of its kernels. results: of the program that was just made.
    """
    global _results
    _results += 1 + results
    if _results < 256 or not is_emulated():
        return
    _results = 0
    most = _most_maps()
    if most is not None and Path("/proc/self/maps").read_bytes().count(b"\n") > most * 3 // 4:
        _C.clear_programs()


def _most_maps() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    return None  # not Linux


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Environment variables that are set for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def total_memory() -> int:
    """Bytes a device may hold: TORCH_TPU_MEMORY_LIMIT, else for the CPU plugin 80% of the host's memory, shared out."""
    limit = os.environ.get("TORCH_TPU_MEMORY_LIMIT")
    if limit:
        if not limit.isdigit():
            raise RuntimeError(f"TORCH_TPU_MEMORY_LIMIT={limit} must be a number of bytes")
        return int(limit)
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(host * 0.8) // max(1, _virtual_devices())


@functools.cache
def plugin_fingerprint() -> str:
    """Tells builds of the plugin apart without reading it whole: size and modification time of its file."""
    status = os.stat(plugin_path())
    return f"{Path(plugin_path()).name}:{status.st_size}:{status.st_mtime_ns}"


def _virtual_devices() -> int:
    text = os.environ.get("TORCH_TPU_NUM_DEVICES", "1")
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise RuntimeError(f"TORCH_TPU_NUM_DEVICES={text} must be a number from 1 to 64")
    return int(text)


def _is_google_accelerator(vendor_file: str) -> bool:
    folder = Path(vendor_file).parent
    try:
        vendor = Path(vendor_file).read_text().strip()
        kind = (folder / "class").read_text().strip()
    except OSError:
        return False
    return vendor == "0x1ae0" and kind.startswith("0x1200")


def _package_file(package: str, name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return str(path) if path.is_file() else None
