"""From a traced graph to one StableHLO program for a chip, by the same rules that eager ops are lowered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import compiler
from ..lowering import interpret
from ..lowering._jax import jax, jnp
from ..lowering.context import Context, using
from ..lowering.dtypes import to_jax
from . import trace


@dataclass(frozen=True)
class Lowered:
    """artifact: portable StableHLO bytecode. arguments: names of the arguments it takes, in order; "random" is the
    generator's seed and offset, uint32[4]. results: how many it has; those after are new values of `updated` arguments.
    """

    artifact: bytes
    arguments: list[str]
    results: int
    updated: list[str]


def lower(program: trace.Program, example_inputs: Sequence[Any] | None) -> Lowered:
    """The program as StableHLO; what it updates in place is donated. NotImplementedError names what has no lowering."""
    traced = trace.trace(program, example_inputs)
    placeholders = traced.graph.graph.find_nodes(op="placeholder")
    _refuse(traced)

    def run(*arrays: Any) -> list[Any]:
        *values, rng = arrays
        context = Context(
            rng=rng,
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        with using(context):
            return interpret.interpret(traced.graph, values)

    with jax.enable_x64(True):
        fakes = [node.meta["val"] for node in placeholders]
        specs = [jax.ShapeDtypeStruct(tuple(f.shape), to_jax(f.dtype)) for f in fakes]
        artifact, kept, count = compiler.stablehlo(
            run, [*specs, jax.ShapeDtypeStruct((4,), jnp.uint32)], traced.updated
        )
    names = [*traced.arguments, "random"]
    updated = [names[i] for i in traced.updated]
    return Lowered(artifact, [names[i] for i in kept], count - len(updated), updated)


def _refuse(traced: trace.Traced) -> None:
    for node in traced.graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotImplementedError(f"{node.target}: a size or number that depends on values can't be compiled ahead")
