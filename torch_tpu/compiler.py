"""From a function on JAX arrays to an executable of the PJRT client."""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _C, compile_log, runtime
from .lowering._jax import jax


@dataclass(frozen=True)
class Compiled:
    """kept: which arguments the program takes, the others were not used. executable: None if it has no outputs."""

    kept: list[int]
    executable: _C.Executable | None


# Called with the portable StableHLO artifact of every program before it is compiled, in the thread that compiles it: as
# it is for a chip, also where the CPU plugin gets another one.
observers: list[Callable[[bytes], None]] = []
_state = threading.local()


def emulated() -> bool:
    """Whether what this thread lowers is for the CPU plugin."""
    return runtime.is_emulated() and not getattr(_state, "for_chip", False)


def compile(fn: Callable[..., Sequence[Any]], specs: Sequence[Any], donated: Sequence[int]) -> Compiled:
    """Trace `fn` on `specs` (jax.ShapeDtypeStruct), lower and compile.

    donated: arguments whose memory results may take.
    """
    began = time.perf_counter()
    code, kept, outputs = stablehlo(fn, specs, donated)
    if outputs == 0:
        return Compiled(kept, None)
    compile_log.compiling()
    if observers:
        for_chip = _for_chip(fn, specs, donated) if emulated() else code
        for observer in observers:
            observer(for_chip)
    executable = _C.Executable.compile(code, compile_options())
    _C.count_compile(time.perf_counter() - began)
    return Compiled(kept, executable)


def _for_chip(fn: Callable[..., Sequence[Any]], specs: Sequence[Any], donated: Sequence[int]) -> bytes:
    _state.for_chip = True
    try:
        return stablehlo(lambda *arrays: fn(*arrays), specs, donated)[0]  # JAX would take what it traced of fn itself
    finally:
        _state.for_chip = False


def stablehlo(
    fn: Callable[..., Sequence[Any]], specs: Sequence[Any], donated: Sequence[int]
) -> tuple[bytes, list[int], int]:
    """(portable StableHLO artifact, indices of the arguments it takes, number of its results)."""
    _configure_jax()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        traced = jax.jit(fn, donate_argnums=tuple(donated)).trace(*specs)
        lowered = traced.lower(lowering_platforms=("tpu",))
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
    module = lowered.compiler_ir("stablehlo")
    return portable(module), kept, len(lowered.out_info)


def portable(module: Any) -> bytes:
    """A StableHLO module as the artifact the plugin reads: calls inlined, chlo legalized, at `target_version`."""
    from jax._src.lib.mlir.dialects import hlo
    from jaxlib.mlir.passmanager import PassManager

    _register_passes()
    with module.context:
        PassManager.parse(_PASSES).run(module.operation)
        return hlo.serialize_portable_artifact(module, target_version())


# One CPU plugin dies on a call inside a fusion; libtpu and the other don't know chlo's operations in bytecode.
_PASSES = "builtin.module(inline,symbol-dce,func.func(chlo-legalize-to-stablehlo))"


@functools.cache
def _register_passes() -> None:
    from jaxlib.mlir.dialects import stablehlo

    stablehlo.register_stablehlo_passes()


@functools.cache
def target_version() -> str:
    """The StableHLO version programs are handed over in."""
    from jax._src.lib.mlir.dialects import hlo

    ours, theirs = hlo.get_current_version(), _C.stablehlo_version()
    return min((v for v in (ours, theirs) if v), key=lambda v: tuple(map(int, v.split("."))))


@functools.cache
def compile_options() -> bytes:
    """A serialized CompileOptionsProto: one device, named at execution."""
    from jax._src.lib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.compile_portable_executable = True
    return options.SerializeAsString()


@functools.cache
def _configure_jax() -> None:
    # Lowering starts no threads that a fork would lose.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    jax.config.update("jax_use_shardy_partitioner", False)
