"""What is read out of StableHLO programs: FLOPs, bytes, tiles."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_tpu import compiler
from torch_tpu.aot.chips import CHIPS, chip_of, chips_in, topology_name
from torch_tpu.aot.instructions import Array, Instruction, read
from torch_tpu.aot.padding import waste
from torch_tpu.aot.program import lower
from torch_tpu.lowering._jax import jax, jnp, lax


def of(fn, *inputs: torch.Tensor) -> tuple[list[Instruction], list[Array]]:
    return read(lower(fn, inputs).artifact)


def test_products() -> None:
    code, arguments = of(torch.bmm, torch.ones(3, 4, 5), torch.ones(3, 5, 7))
    (product,) = [i for i in code if i.kind == "dot_general"]
    assert product.product == (3 * 4, 7, 5) and product.flops == 2 * 3 * 4 * 5 * 7
    assert [str(a) for a in arguments] == ["f32[3,4,5]", "f32[3,5,7]"]
    assert product.bytes == 4 * (60 + 105 + 84)


def test_convolutions() -> None:
    code, _ = of(nn.Conv2d(3, 8, 5, bias=False), torch.ones(2, 3, 12, 12))
    (product,) = [i for i in code if i.kind == "convolution"]
    assert product.flops == 2 * (2 * 8 * 8 * 8) * (3 * 5 * 5)
    assert product.op == "aten::convolution"


def test_the_work_of_other_instructions() -> None:
    code, _ = of(lambda x: torch.sin(x).sum().view(1), torch.ones(32, 8))
    flops = {i.kind: i.flops for i in code}
    assert flops["sine"] == 256 and flops["reduce"] == 256
    assert all(i.flops == 0 for i in of(lambda x: x.t().contiguous(), torch.ones(3, 4))[0])


def test_bodies_of_loops_count_once() -> None:
    def loop(x):
        return [lax.fori_loop(0, 10, lambda _, y: y @ y, x)]

    code, _ = read(compiler.stablehlo(loop, [jax.ShapeDtypeStruct((16, 16), jnp.float32)], ())[0])
    assert sum(i.flops for i in code if i.product) == 2 * 16**3


@pytest.mark.parametrize(
    ("shape", "itemsize", "padded"),
    [
        ((8, 128), 4, 4096),
        ((9, 129), 4, 16 * 256 * 4),
        ((8, 128), 2, 16 * 128 * 2),
        ((3, 5, 5), 4, 3 * 8 * 128 * 4),
        ((5,), 4, 128 * 4),
        ((), 4, 4),
    ],
)
def test_tiles(shape: tuple[int, ...], itemsize: int, padded: int) -> None:
    assert Array(shape, itemsize, "x").padded_bytes == padded


def test_dtypes() -> None:
    for dtype, name, size in [
        (torch.bfloat16, "bf16", 2),
        (torch.bool, "i1", 1),
        (torch.complex64, "complex<f32>", 8),
        (torch.float8_e4m3fn, "f8E4M3FN", 1),
        (torch.uint8, "ui8", 1),
    ]:
        _, (array,) = of(lambda x: x.clone(), torch.zeros(4).to(dtype))
        assert (array.dtype, array.itemsize) == (name, size)


def test_waste() -> None:
    code, arguments = of(torch.matmul, torch.ones(1024, 32), torch.ones(32, 1024))
    found = waste(code, arguments, mxu=128)
    assert {(w.shape, w.used, w.lost) for w in found} == {
        ("f32[1024,32]", 0.25, 1024 * 96 * 4),
        ("1024x32 @ 32x1024", 0.25, 2 * 1024 * 1024 * 96),
    }
    code, arguments = of(torch.matmul, torch.ones(256, 256), torch.ones(256, 256))
    assert waste(code, arguments, mxu=256) == []


def test_either_factor_streams() -> None:
    for left, right in ((1, 256), (256, 1)):
        code, _ = of(torch.matmul, torch.ones(left, 256), torch.ones(256, right))
        assert [w.used for w in waste(code, [], mxu=128)] == [1 / 8]


def test_chips() -> None:
    assert topology_name("v5e") == "v5e:1x1" and topology_name("tpu7x:2x2x1") == "tpu7x:2x2x1"
    assert chips_in("v6e:4x4") == 16 and chip_of("v6e:2x2") is CHIPS["v6e"]
    half = CHIPS["tpu7x"]
    assert half.device_flops == half.flops / 2 and half.device_bandwidth == half.bandwidth / 2
    assert all(c.usable <= c.hbm / c.devices for c in CHIPS.values())


def test_usable_memory_is_what_libtpu_says() -> None:
    pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install libtpu")
    from torch_tpu.aot.report import compile_artifact

    artifact = lower(torch.neg, (torch.empty(1 << 38, device="meta"),)).artifact
    for name, chip in CHIPS.items():
        memory = compile_artifact(artifact, name).memory
        assert not memory.fits and memory.total >= 1 << 40
        assert memory.available == pytest.approx(chip.usable, rel=0.01)
