"""Ahead of time: programs compiled for TPU chips that need not be here, and what is known of them before they run.

`compile` and `stablehlo` take a module, a function or an exported program; `check` a whole script.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .program import lower
from .report import Memory, Report, Share, compile_artifact
from .trace import Program

__all__ = ["Memory", "Report", "Share", "compile", "stablehlo"]


def compile(program: Program, example_inputs: Sequence[Any] | None = None, target: str = "v5e") -> Report:
    """Compile a program for a chip.

    program: a `torch.export.ExportedProgram`, a module, or a function, that reads its modules' parameters as it likes.
    example_inputs: a tuple of its arguments, on any device, fake or meta tensors included; an exported program has its
        own. Parameters and inputs are arguments of the executable, in the order of `Report.arguments`; what is no
        tensor is a constant. Results are the tensors in what the program returns, in containers that PyTorch knows.
    target: a chip ("v5e", "v6e", "tpu7x", "v5p", "v4") or a slice ("v6e:2x2"); the program is for one of its devices.

    A program that is too large gives a report that says so. Raises NotImplementedError for what has no lowering,
    RuntimeError for what the chip's compiler refuses, ValueError for an unknown target, ImportError without libtpu.
    """
    lowered = lower(program, example_inputs)
    report = compile_artifact(lowered.artifact, target, serialize=True)
    return dataclasses.replace(report, arguments=lowered.arguments, updated=lowered.updated, results=lowered.results)


def stablehlo(
    program: Program, example_inputs: Sequence[Any] | None = None, path: str | Path | None = None
) -> str | bytes:
    """The program as StableHLO: text with the lines it comes from, or, if `path` has another suffix than ".mlir",
    versioned portable bytecode, which later versions of StableHLO's tools read.

    path: where to write it; None: only return the text.
    """
    lowered = lower(program, example_inputs)
    if path is not None and Path(path).suffix != ".mlir":
        Path(path).write_bytes(lowered.artifact)
        return lowered.artifact
    text = _text(lowered.artifact)
    if path is not None:
        Path(path).write_text(text)
    return text


def _text(artifact: bytes) -> str:
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    module = stablehlo.deserialize_portable_artifact(mlir.make_ir_context(), artifact)
    return module.operation.get_asm(enable_debug_info=True)
