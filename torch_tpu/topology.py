"""TPU chips that are not here: libtpu compiles programs for them on any machine."""

from __future__ import annotations

import functools
import os
from typing import Any

from . import compiler, runtime

# libtpu asks a metadata server for minutes which chips there are, unless it is told. Not for hosts that have some.
_NO_CHIPS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nobody holds a chip, so several processes may
}
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3"}


class Topology:
    """Chips by name, as libtpu names them: "v5e:2x2", "v6e:4x4", "v5p:2x2x1". ImportError without libtpu, ValueError
    for a name it does not know."""

    def __init__(self, name: str) -> None:
        self.name = name
        unset = {name: value for name, value in {**_NO_CHIPS, **_QUIET}.items() if name not in os.environ}
        with runtime.environment(**unset):
            self._device = _devices(name)[0]

    def compile(self, artifact: bytes) -> Any:
        """The executable for one of the chips of a portable StableHLO artifact, as `compiler.stablehlo` makes it.

        Raises RuntimeError with the compiler's message.
        """
        from jax._src.interpreters import mlir
        from jax._src.lib import _jax, xla_client
        from jaxlib.mlir.dialects import stablehlo

        module = stablehlo.deserialize_portable_artifact(mlir.make_ir_context(), artifact)
        options = xla_client.CompileOptions.ParseFromString(compiler.compile_options())
        return self._device.client.compile(module, _jax.DeviceList((self._device,)), options)


@functools.cache
def _devices(name: str) -> list[Any]:
    require_libtpu()
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(name, platform="tpu").devices
    except RuntimeError as error:
        raise ValueError(f"unknown target {name!r}: {error}") from error


def require_libtpu() -> None:
    """ImportError that says what to install, if libtpu can't be imported."""
    try:
        import libtpu  # noqa: F401
    except ImportError as error:
        raise ImportError("the compiler for TPUs is missing, which needs no TPU: pip install libtpu") from error
