"""Creation, sequences, triangles and conversions against torch on CPU."""

import math

import pytest
import torch
from check import check, lowered

aten = torch.ops.aten


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_filled(dtype):
    x = torch.zeros(2, 3, dtype=dtype)
    check(aten.full.default, [2, 3], 1, dtype=dtype)
    check(aten.full_like.default, x, 1)
    check(aten.new_full.default, x, [3], 1)
    check(aten.ones.default, [0, 2], dtype=dtype)
    check(aten.zeros_like.default, x, dtype=torch.float64)
    check(aten.fill.Scalar, x, 2)
    check(aten.fill.Tensor, x, torch.tensor(1.0))
    check(aten.scalar_tensor.default, 1, dtype=dtype)


def test_fill_values():
    check(aten.full.default, [], 2**53 + 1)
    check(aten.full.default, [2], -1, dtype=torch.uint8)
    check(aten.full.default, [2], 1.5)
    check(aten.full.default, [2], True)
    check(aten.full.default, [2], 1 + 2j)


RANGES = [(0, 5, 1), (2**33, 2**33 + 3, 1), (5, -5, -3), (0.0, 1.0, 0.1), (1, 1, 1), (-1.5, 2, 0.25), (0, 7, 2.5)]


@pytest.mark.parametrize("args", RANGES)
def test_arange(args):
    check(aten.arange.start_step, *args)
    check(aten.arange.start_step, *args, dtype=torch.float64)
    check(aten.arange.default, 6, dtype=torch.int32)
    check(aten.arange.start, 2, 6, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_spaces(dtype):
    for steps in (0, 1, 2, 7):
        check(aten.linspace.default, -3, 10, steps, dtype=dtype)
    check(aten.logspace.default, 0, 3, 4, dtype=dtype)
    check(aten.linspace.Tensor_Scalar, torch.tensor(1.0), 2.0, 5)
    assert lowered(aten.linspace.default, 0.1, 0.7, 50)[-1] == torch.tensor(0.7)


def test_matrices():
    check(aten.eye.default, 3, dtype=torch.int64)
    check(aten.eye.m, 2, 4)
    x = torch.randn(2, 4, 5)
    for diagonal in (-5, -1, 0, 2, 9):
        check(aten.tril.default, x, diagonal)
        check(aten.triu.default, x > 0, diagonal)
        for rows, columns in ((4, 5), (5, 3), (0, 3)):
            check(aten.tril_indices.default, rows, columns, diagonal)
            check(aten.triu_indices.default, rows, columns, diagonal)


FLOAT_VALUES = torch.tensor([0.0, -0.0, 1.9, -1.9, 200.0, -200.0, 70000.0])


TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("to", [*TYPES, torch.float64, torch.complex64, torch.float8_e5m2])
def test_conversions(to):
    check(aten._to_copy.default, FLOAT_VALUES, dtype=to)
    if to != torch.float8_e5m2:
        check(aten._to_copy.default, torch.tensor([300, -1, 2**40 + 5, 0]), dtype=to)
        check(aten._to_copy.default, torch.tensor([True, False]), dtype=to)
        check(aten.copy.default, torch.zeros(2, 7, dtype=to), FLOAT_VALUES)


def test_conversions_of_edges():
    x = torch.tensor([math.nan, math.inf, 0.0])
    check(aten._to_copy.default, x, dtype=torch.bool)
    check(aten._to_copy.default, x, dtype=torch.float16)
    check(aten._to_copy.default, torch.tensor([1 + 2j, 0, 2j]), dtype=torch.float32)
    check(aten._to_copy.default, torch.tensor([1 + 2j, 0, 2j]), dtype=torch.bool)
    check(aten._to_copy.default, torch.tensor([2**32 - 1], dtype=torch.uint32), dtype=torch.int64)


@pytest.mark.parametrize("name", ["bartlett", "hann", "hamming", "blackman", "kaiser"])
def test_windows(name):
    packet = getattr(aten, f"{name}_window")
    for length in (0, 1, 2, 9):
        check(packet.default, length)
        check(packet.periodic, length, False, dtype=torch.float64)


def test_even_integers_run_between_whole_ends():
    check(aten.linspace.default, 0.9, 2.9, 3, dtype=torch.int64)
    check(aten.logspace.default, -1.5, 2.5, 4, dtype=torch.int64)
    check(aten.logspace.default, 0, 1.9, 2, 2.0, dtype=torch.int32)
