"""TPU chips: what Google publishes of them, and how targets are named.

Peaks, capacities and bandwidths are those of https://cloud.google.com/tpu/docs (pages "TPU v4", "v5e", "v5p", "v6e",
"TPU7x", "System architecture"), per chip. `usable` is what libtpu 0.0.52 lets a program have of one device's memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """One kind of chip.

    name: as libtpu has it. flops: peak of bfloat16 products, per second. bandwidth: of its memory, bytes per second.
    hbm: its memory, bytes. devices: that PyTorch and libtpu see of one chip. usable: bytes of memory a program may have
    on one device. mxu: rows and columns of a matrix unit. smallest: the smallest slice, as a topology.
    """

    name: str
    flops: float
    bandwidth: float
    hbm: int
    devices: int
    usable: int
    mxu: int
    smallest: str

    @property
    def device_flops(self) -> float:
        """Peak bfloat16 FLOP per second of one device."""
        return self.flops / self.devices

    @property
    def device_bandwidth(self) -> float:
        """Bytes per second of one device's memory."""
        return self.bandwidth / self.devices


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 1228e9, 32 * GIB, 2, int(15.25 * GIB), 128, "1x1x1"),
        Chip("v5e", 197e12, 819e9, 16 * GIB, 1, int(15.75 * GIB), 128, "1x1"),
        Chip("v5p", 459e12, 2765e9, 95 * GIB, 1, 95 * GIB, 128, "1x1x1"),
        Chip("v6e", 918e12, 1640e9, 32 * GIB, 1, int(31.24 * GIB), 256, "1x1"),
        Chip("tpu7x", 2307e12, 7380e9, 192 * GIB, 2, int(94.74 * GIB), 256, "1x1x1"),
    )
}


def topology_name(target: str) -> str:
    """A target as libtpu names it: "v5e" is its smallest slice, "v5e:1x1"; "v6e:2x2" stays.

    ValueError for a chip whose figures are not known.
    """
    name, _, shape = target.partition(":")
    return f"{name}:{shape or chip_of(target).smallest}"


def chip_of(target: str) -> Chip:
    """The chip of a target such as "v5e" or "v6e:2x2"; ValueError names those that are known."""
    name, colon, shape = target.partition(":")
    if name not in CHIPS:
        raise ValueError(
            f"unknown target {target!r}: the chips are {', '.join(CHIPS)}, a slice is named like 'v6e:2x2'"
        )
    if colon and not all(n.isdigit() and int(n) for n in shape.split("x")):
        raise ValueError(f"unknown target {target!r}: a slice is named like '{name}:{CHIPS[name].smallest}'")
    return CHIPS[name]


def chips_in(target: str) -> int:
    """How many chips a target has."""
    return math.prod(int(n) for n in topology_name(target).partition(":")[2].split("x"))
