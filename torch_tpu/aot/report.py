"""What is known of a program before it has ever run: memory, work, time."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..topology import Topology
from . import instructions, padding
from .chips import Chip, chip_of, topology_name

_SIZE = re.compile(r"([\d.]+)([KMGT]?)(?:i?B)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# libtpu's words, of which there are two kinds.
_TOO_LARGE = (
    re.compile(r"\(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)"),
    re.compile(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm"),
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one device's memory, padding included. aliased: results that lie where arguments were.

    available: what the chip has for a program. total: what it needs. When the compiler refuses a program for its size,
    the categories are unknown (0) and total is what it says it would need.
    """

    arguments: int
    outputs: int
    temporaries: int
    code: int
    aliased: int
    total: int
    available: int

    @property
    def fits(self) -> bool:
        """Whether a device has room for it."""
        return self.total <= self.available

    @property
    def over(self) -> int:
        """Bytes too many, 0 if it fits."""
        return max(0, self.total - self.available)


@dataclass(frozen=True)
class Share:
    """The part of an op at a line in a program: FLOPs, and bytes as if nothing were fused."""

    op: str
    line: str
    flops: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """A program compiled for a chip that need not be here. Figures are those of one device.

    flops, bytes_accessed: as the compiler counts them. intensity: FLOPs a byte. estimated_seconds: the compiler's own
    estimate of one run, less the instructions it knows no time for; None if it gives none. roofline_seconds: what the
    work and the traffic take at the chip's published peak of bfloat16 products and its memory's bandwidth. mfu: the
    share of that peak that is used if a run takes `seconds`.
    arguments, updated, results: see `program.Lowered`. executable: serialised, None if the program does not fit.
    """

    target: str
    chip: Chip
    memory: Memory
    flops: float
    bytes_accessed: float
    estimated_seconds: float | None
    shares: list[Share]
    waste: list[padding.Waste]
    arguments: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    results: int = 0
    executable: bytes | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        """Whether the program fits the memory of one device."""
        return self.memory.fits

    @property
    def intensity(self) -> float:
        """FLOPs per byte of memory traffic."""
        return self.flops / self.bytes_accessed if self.bytes_accessed else 0.0

    @property
    def roofline_seconds(self) -> float:
        """The longer of computing at the peak and of moving the bytes at full bandwidth."""
        return max(self.flops / self.chip.device_flops, self.bytes_accessed / self.chip.device_bandwidth)

    @property
    def bound_by(self) -> str:
        """ "compute" or "memory": which of the two it is."""
        return "compute" if self.intensity > self.chip.device_flops / self.chip.device_bandwidth else "memory"

    @property
    def seconds(self) -> float:
        """The best guess of one run: the compiler's estimate, but never less than the roofline."""
        return max(self.estimated_seconds or 0.0, self.roofline_seconds)

    @property
    def mfu(self) -> float:
        """Estimated model FLOPs utilization, 0 to 1."""
        return self.flops / (self.seconds * self.chip.device_flops) if self.seconds else 0.0

    def save(self, path: str | Path) -> None:
        """Write the executable, for PJRT's `deserialize_and_load` on a TPU host. RuntimeError if there is none."""
        if self.executable is None:
            raise RuntimeError(f"the program does not fit {self.target}: there is no executable")
        Path(path).write_bytes(self.executable)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the executable, as JSON takes it."""
        kept = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "executable"}
        names = ("fits", "intensity", "roofline_seconds", "bound_by", "seconds", "mfu")
        plain = {k: _plain(v) for k, v in kept.items()} | {n: getattr(self, n) for n in names}
        return plain | {"executable_bytes": len(self.executable or b"")}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        from .text import report

        return report(self)


def compile_artifact(artifact: bytes, target: str, serialize: bool = False) -> Report:
    """Compile a portable StableHLO artifact for a target.

    Raises RuntimeError with the compiler's words for what the chip can't do, but not for a program that is too large.
    """
    chip, name = chip_of(target), topology_name(target)
    code, arguments = instructions.read(artifact)
    shares = _shares(code)
    lost = padding.waste(code, arguments, chip.mxu)
    try:
        executable = Topology(name).compile(artifact)
    except RuntimeError as error:
        needed = _too_large(str(error))
        if needed is None:
            raise
        memory = Memory(0, 0, 0, 0, 0, *needed)
        moved = sum(a.bytes for a in arguments)
        return Report(name, chip, memory, sum(i.flops for i in code), moved, None, shares, lost)
    cost = executable.cost_analysis()
    return Report(
        target=name,
        chip=chip,
        memory=_memory(executable.get_compiled_memory_stats(), chip),
        flops=max(cost.get("flops", 0.0), 0.0),
        bytes_accessed=max(cost.get("bytes accessed", 0.0), 0.0),
        estimated_seconds=_estimate(cost.get("optimal_seconds")),
        shares=shares,
        waste=lost,
        executable=executable.serialize() if serialize else None,
    )


def _memory(stats: Any, chip: Chip) -> Memory:
    parts = (
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )
    return Memory(*parts, stats.alias_size_in_bytes, sum(parts) - stats.alias_size_in_bytes, chip.usable)


def _too_large(message: str) -> tuple[int, int] | None:
    """(bytes needed, bytes available) if this is what the compiler complains of."""
    for pattern in _TOO_LARGE:
        found = pattern.search(message)
        if found:
            return _bytes(found[1]), _bytes(found[2])
    return None


def _bytes(text: str) -> int:
    number, unit = _SIZE.fullmatch(text).groups()
    return int(float(number) * _UNITS[unit])


def _shares(code: Sequence[instructions.Instruction]) -> list[Share]:
    flops: dict[tuple[str, str], int] = defaultdict(int)
    moved: dict[tuple[str, str], int] = defaultdict(int)
    for i in code:
        key = i.op, str(i.line or "")
        flops[key] += i.flops
        moved[key] += i.bytes
    return sorted((Share(*k, flops[k], moved[k]) for k in flops), key=lambda s: (-s.flops, -s.bytes))


def _estimate(seconds: float | None) -> float | None:
    """The compiler's sum over instructions without those it has no estimate for, each of which counts as -1."""
    if not seconds:
        return None
    return seconds if seconds > 0 else seconds + math.ceil(-seconds) or None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    return [_plain(v) for v in value] if isinstance(value, list) else value
