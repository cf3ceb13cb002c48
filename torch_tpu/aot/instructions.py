"""What a StableHLO program computes, instruction by instruction: FLOPs, bytes, tiles, and the lines they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..lines import Line, of_origin

# The two last dimensions of an array lie in tiles of (8, 128) numbers of 32 bits, more rows for narrower ones.
LANES = 128
SUBLANES = {8: 8, 4: 8, 2: 16, 1: 32}
_FREE = {
    "func.call",
    "func.return",
    "constant",
    "reshape",
    "broadcast_in_dim",
    "return",
    "iota",
    "bitcast_convert",
    "get_tuple_element",
    "tuple",
}


@dataclass(frozen=True)
class Array:
    """An array in a program. itemsize: bytes of an element."""

    shape: tuple[int, ...]
    itemsize: int
    dtype: str

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size without padding."""
        return self.elements * self.itemsize

    @property
    def padded_bytes(self) -> int:
        """Its size in memory, if its last dimensions are those that are tiled."""
        if not self.shape:
            return self.bytes
        rows = self.shape[-2] if len(self.shape) > 1 else 1
        tile_rows = SUBLANES.get(self.itemsize, 8) if rows > 1 else 1
        outer = math.prod(self.shape[:-2])
        return outer * _up(rows, tile_rows) * _up(self.shape[-1], LANES) * self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction. op: the aten op it belongs to, or its own name. flops: 0 for what only moves data.

    product: (m, n, k) of a product of matrices, with its batch dimensions in m.
    """

    kind: str
    op: str
    line: Line | None
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    flops: int
    product: tuple[int, int, int] | None = None

    @property
    def bytes(self) -> int:
        """What it reads and writes if it is not fused with others."""
        return sum(x.bytes for x in (*self.operands, *self.results))


def read(artifact: bytes) -> tuple[list[Instruction], list[Array]]:
    """The instructions of a portable artifact, those in loops and functions once, and the arguments."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    module = stablehlo.deserialize_portable_artifact(mlir.make_ir_context(), artifact)
    functions = {str(op.operation.attributes["sym_name"]).strip('"'): op for op in module.body.operations}
    arguments = [_array(a.type) for a in functions["main"].regions[0].blocks[0].arguments]
    code = [_instruction(op) for function in functions.values() for op in _walk(function)]
    return [i for i in code if i.kind not in _FREE], arguments


def _walk(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region:
            for inner in block:
                yield inner
                # A reduction's body is a number's, not an instruction's.
                if inner.operation.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
                    yield from _walk(inner)


def _instruction(op: Any) -> Instruction:
    kind = op.operation.name.removeprefix("stablehlo.")
    operands = tuple(_array(v.type) for v in op.operands)
    results = tuple(_array(v.type) for v in op.results)
    product = _product(kind, op, operands, results)
    flops = 2 * math.prod(product) if product else _flops(kind, operands, results)
    origin = of_origin(str(op.location))
    return Instruction(
        kind, origin[0] if origin else kind, origin[1] if origin else None, operands, results, flops, product
    )


def _product(
    kind: str, op: Any, operands: tuple[Array, ...], results: tuple[Array, ...]
) -> tuple[int, int, int] | None:
    if kind == "dot_general":
        from jaxlib.mlir.dialects import stablehlo

        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        left, right = operands[0].shape, operands[1].shape
        k = math.prod(left[d] for d in numbers.lhs_contracting_dimensions)
        taken = {*numbers.rhs_contracting_dimensions, *numbers.rhs_batching_dimensions}
        n = math.prod(size for d, size in enumerate(right) if d not in taken)
        return results[0].elements // max(n, 1), n, k
    if kind == "convolution":
        from jaxlib.mlir.dialects import stablehlo

        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        n = operands[1].shape[numbers.kernel_output_feature_dimension]
        return results[0].elements // max(n, 1), n, operands[1].elements // max(n, 1)
    return None


def _flops(kind: str, operands: tuple[Array, ...], results: tuple[Array, ...]) -> int:
    if kind in _MOVES:
        return 0
    return (operands if kind.startswith("reduce") and operands else results or operands)[0].elements if results else 0


_MOVES = _FREE | {
    *("transpose", "slice", "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "concatenate", "pad"),
    *("reverse", "convert", "while", "case", "if", "sort", "custom_call", "optimization_barrier", "select_and_scatter"),
}


def _array(kind: Any) -> Array:
    from jaxlib.mlir import ir

    if not isinstance(kind, ir.RankedTensorType):
        return Array((0,), 1, str(kind))
    ranked = ir.RankedTensorType(kind)
    name = str(ranked.element_type)
    bits = "".join(c for c in name.split("E")[0] if c.isdigit())
    itemsize = 2 * int(bits) // 8 if name.startswith("complex") else max(int(bits or 8) // 8, 1)
    return Array(tuple(ranked.shape), itemsize, name)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
