"""Compiled programs on disk: ~/.cache/torch_tpu, or TORCH_TPU_CACHE_DIR.

An entry holds the executable and what is needed to run it (shapes, strides, aliasing): a hit needs neither JAX nor XLA.
Writes are atomic; entries that can't be read are ignored and rewritten; the oldest go when the folder grows too large.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import pickle
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import torch

from . import _C, runtime

MAGIC = b"torch-tpu-program-1\n"
_UNFINISHED = ".new-"
_writes = 0
_lock = threading.Lock()


def folder() -> Path | None:
    """Where programs are kept; None if TORCH_TPU_CACHE_DIR is set empty, which turns the disk cache off."""
    chosen = os.environ.get("TORCH_TPU_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_tpu"


def max_bytes() -> int:
    """How large the folder may grow: TORCH_TPU_CACHE_MAX_BYTES, 4 GiB if not set."""
    return int(os.environ.get("TORCH_TPU_CACHE_MAX_BYTES", 4 << 30))


def key(*parts: Any) -> str:
    """The name of an entry: a hash of a call's signature and of everything else that shapes its program."""
    modes = (
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _C.debug_mode(),
    )
    return hashlib.sha256(repr((parts, modes, _environment())).encode()).hexdigest()


def version() -> str:
    """A hash of everything but the call that shapes programs: versions, our sources, plugin, flags, processor."""
    return hashlib.sha256(repr(_environment()).encode()).hexdigest()


def load(name: str) -> tuple[dict[str, Any], _C.Executable | None] | None:
    """The plan and executable of an entry, None if there is no readable one."""
    path = _path(name)
    if path is None:
        return None
    try:
        data = path.read_bytes()
        head, body = data[: len(MAGIC) + 4], data[len(MAGIC) + 4 :]
        if not head.startswith(MAGIC) or int.from_bytes(head[-4:], "little") != zlib.crc32(body):
            return None
        plan, blob = pickle.loads(body)
        executable = None if blob is None else _C.Executable.deserialize(blob)
    except Exception:  # noqa: BLE001 - whatever is wrong with an entry, it is compiled again
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    _C.count_disk_hit()
    return plan, executable


def store(name: str, plan: dict[str, Any], executable: _C.Executable | None) -> None:
    """Write an entry. A disk that is full or read-only costs the entry, not the program."""
    path = _path(name)
    if path is None:
        return
    body = pickle.dumps((plan, None if executable is None else executable.serialize()))
    data = MAGIC + zlib.crc32(body).to_bytes(4, "little") + body
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _trim_sometimes()


def clear() -> int:
    """Delete all entries; returns how many."""
    count = 0
    for path in files():
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    return count


def size() -> tuple[int, int]:
    """(entries, bytes) on disk."""
    sizes = []
    for path in files():
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


def _path(name: str) -> Path | None:
    root = folder()
    return None if root is None else root / name[:2] / name


def files() -> list[Path]:
    """The files of all programs on disk."""
    root = folder()
    return [] if root is None else [p for p in root.glob("??/*") if not p.name.startswith(_UNFINISHED)]


def _drop_unfinished() -> None:
    """Delete what processes that were killed while they wrote have left, once it is a day old."""
    root = folder()
    for path in [] if root is None else root.glob(f"??/{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 86400:
                path.unlink()


def _trim_sometimes() -> None:
    """Every 256 writes, delete what was used longest ago until three quarters of the limit are left."""
    global _writes
    with _lock:
        _writes += 1
        if _writes % 256 != 1:
            return
    _drop_unfinished()
    entries = []
    for path in files():
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(e[1] for e in entries)
    if total <= max_bytes():
        return
    for _, bytes_, path in sorted(entries):
        if total <= max_bytes() * 3 // 4:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= bytes_


@functools.cache
def _environment() -> tuple[Any, ...]:
    versions = [importlib.metadata.version(p) for p in ("torch", "jax", "jaxlib")]
    flags = [os.environ.get(f, "") for f in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    processor = _processor() if runtime.is_emulated() else _C.device_kind(0)
    return (*versions, _sources(), runtime.plugin_fingerprint(), *flags, processor)


@functools.cache
def _sources() -> str:
    """A hash of this package's lowering code: another version of it may lower otherwise."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """The processor's features: executables of the CPU plugin are machine code."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()
    import platform

    return f"{platform.machine()} {platform.processor()}"
