"""Programs compiled for chips that are not here."""

from __future__ import annotations

import pytest
import torch

from torch_tpu import _C, compiler, runtime
from torch_tpu.lowering._jax import jax, jnp

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install libtpu")
from torch_tpu.topology import Topology


def program(fn, *specs):
    with jax.enable_x64(True):
        return compiler.stablehlo(lambda *xs: [fn(*xs)], specs, ())[0]


@pytest.mark.parametrize("name", ["v5e:2x2", "v6e:2x2"])
def test_compiles(name: str) -> None:
    torch.tpu.init()
    x = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    executable = Topology(name).compile(program(lambda x: x @ x, x))
    assert executable.get_compiled_memory_stats().argument_size_in_bytes == 128 * 128 * 4


def test_what_a_chip_cannot_do_is_said() -> None:
    torch.tpu.init()
    x, y = (jax.ShapeDtypeStruct((4, 4), d) for d in (jnp.float32, jnp.int64))
    with pytest.raises(RuntimeError, match="dot"):
        Topology("v5e:2x2").compile(program(lambda x, y: jnp.matmul(x, y), x, y))


def test_unknown_chip() -> None:
    with pytest.raises(ValueError, match="v9"):
        Topology("v9:2x2")


def test_observers_see_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", "")
    torch.tpu.init()
    _C.clear_programs()
    seen: list[bytes] = []
    observers = [*compiler.observers, seen.append]
    monkeypatch.setattr(compiler, "observers", observers)
    x = torch.zeros(3, 7, device="tpu").cosh().sum(1)
    assert len(seen) == 3 and all(code.startswith(b"ML\xefR") for code in seen)
    x.cosh()
    torch.zeros(3, 7, device="tpu").cosh()
    assert len(seen) == 4


def test_libtpu_without_a_chip_leaves_the_device_alone() -> None:
    assert runtime.is_emulated() != runtime.tpu_attached()
