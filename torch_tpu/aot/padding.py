"""What is lost where shapes don't fill the tiles of a TPU's memory and the rows and columns of its matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .instructions import Array, Instruction, _up

# Arrays below this size (bytes, padded) are no waste worth a word.
_WORTH = 1 << 16


@dataclass(frozen=True)
class Waste:
    """One shape that fills its tiles badly.

    where: the op and its line. shape: of the array, or (m, n, k) of a product. used: the share of the memory or of the
    matrix units' work that is not padding. lost: padding, in bytes, or in FLOPs for products.
    """

    where: str
    shape: str
    unit: str
    used: float
    lost: int


def waste(instructions: Sequence[Instruction], arguments: Sequence[Array], mxu: int, most: int = 10) -> list[Waste]:
    """The worst of a program's arguments and products, the greatest loss first; `mxu`: rows of a matrix unit.

    Arrays are taken to be tiled along their last two dimensions; the compiler may choose others, so of the arguments it
    is at most this much.
    """
    found = [_of_array(x) for x in arguments if x.padded_bytes >= _WORTH]
    found += [_of_product(i, mxu) for i in instructions if i.product]
    unique = dict.fromkeys(w for w in found if w.used < 0.9)
    arrays = sorted((w for w in unique if w.unit == "bytes"), key=lambda w: -w.lost)[:most]
    products = sorted((w for w in unique if w.unit == "FLOPs"), key=lambda w: -w.lost)[:most]
    return [*arrays, *products]


def _of_array(x: Array) -> Waste:
    return Waste("argument", str(x), "bytes", x.bytes / x.padded_bytes, x.padded_bytes - x.bytes)


def _of_product(i: Instruction, mxu: int) -> Waste:
    m, n, k = i.product or (1, 1, 1)
    # Either factor may be the one whose rows stream through the unit, eight at a time.
    padded = min(_up(m, 8) * _up(n, mxu), _up(n, 8) * _up(m, mxu)) * _up(k, mxu)
    where = f"{i.op} at {i.line}" if i.line else i.op
    return Waste(where, f"{m}x{k} @ {k}x{n}", "FLOPs", i.flops / (2 * padded) if padded else 1.0, 2 * padded - i.flops)
