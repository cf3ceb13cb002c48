"""Ops whose output size depends on values, and operands with padded rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from check import _to_jax, _to_torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_tpu.lowering import interpret, registry
from torch_tpu.lowering._jax import jax, jnp
from torch_tpu.lowering.context import Context, using
from torch_tpu.lowering.rows import Specialise

aten = torch.ops.aten
NAN = float("nan")


def run(program: Any, *tensors: torch.Tensor) -> Any:
    with jax.enable_x64(True):
        arrays = [_to_jax(t) for t in tensors]
        lowered = jax.jit(program, keep_unused=True).trace(*arrays).lower(lowering_platforms=("tpu",))
        return lowered.compile()(*arrays)


def compacted(op: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The results of an op of data-dependent size, cut to their true size as a runtime would."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    assert registry.is_dynamic(op.name(), args, kwargs)
    dims = []

    def filled(arrays: Any) -> Any:
        new = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            new[i] = a
        return pytree.tree_unflatten(new, spec)

    def program(*arrays: Any) -> Any:
        with using(Context()):
            result = interpret.lower_dynamic(op, *filled(arrays))
        dims.append(result.dim)
        return result.outputs, result.counts

    outputs, counts = run(program, *[leaves[i] for i in places])
    assert all(c is None or c.dtype == jnp.int32 for c in counts)
    pairs = [(_to_torch(o), c) for o, c in zip(outputs, counts, strict=True)]
    cut = [o if c is None else o[: int(c)] for o, c in pairs]
    return [cut[0].movedim(0, dims[0]) if dims[0] else cut[0], *cut[1:]]


def check_dynamic(op: Any, *args: Any, **kwargs: Any) -> None:
    expected = op(*args, **kwargs)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for g, e in zip(compacted(op, *args, **kwargs), expected, strict=True):
        torch.testing.assert_close(g, e, equal_nan=True)


def pad(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x with rows of garbage behind it."""
    garbage = {torch.bool: True}.get(x.dtype, 77 if not x.is_floating_point() else NAN)
    return torch.cat([x, torch.full((rows - len(x), *x.shape[1:]), garbage, dtype=x.dtype)])


def check_rows(op: Any, *args: Any, padded: tuple[int, ...], **kwargs: Any) -> None:
    """The lowering with some tensor arguments padded gives what the op gives without."""
    expected = pytree.tree_leaves(op(*args, **kwargs))
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    n = leaves[places[padded[0]]].shape[0]
    bucket = 2 << n.bit_length()
    for p in padded:
        assert len(leaves[places[p]]) == n
        leaves[places[p]] = pad(leaves[places[p]], bucket)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = pytree.tree_map_only(torch.Tensor, mode.from_tensor, pytree.tree_unflatten(leaves, spec))
    with mode:
        out = op(*fakes[0], **fakes[1])
    row_outputs: list[Any] = []

    def program(rows: Any, *arrays: Any) -> Any:
        new = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            new[i] = a
        a, k = pytree.tree_unflatten(new, spec)
        ctx = Context(rows=rows, row_operands=tuple(arrays[p] for p in padded))
        with using(ctx):
            values = interpret.lower(op, a, k, fakes, out)
        row_outputs[:] = [ctx.row_outputs]
        return values

    values = run(program, torch.tensor(n, dtype=torch.int32), *[leaves[i] for i in places])
    for i, (v, e) in enumerate(zip(values, expected, strict=True)):
        v = _to_torch(v)
        torch.testing.assert_close(v[:n] if i in row_outputs[0] else v, e, equal_nan=True)


# --- sizes


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[1, 0, 3], [0, 0, 2]]),
        torch.tensor([0.0, -0.0, NAN, 1.0]),
        torch.zeros(4, dtype=torch.bool),
        torch.tensor(3),
        torch.tensor(0),
        torch.zeros(0, 3),
        (torch.arange(24) % 3 == 1).reshape(2, 3, 4),
    ],
)
def test_nonzero(x: torch.Tensor) -> None:
    check_dynamic(aten.nonzero.default, x)


def test_masked_select() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    check_dynamic(aten.masked_select.default, x, x % 3 == 0)
    check_dynamic(aten.masked_select.default, x, torch.tensor([True, False, True, False]))
    check_dynamic(aten.masked_select.default, torch.arange(3.0), torch.tensor([[True], [False]]))
    check_dynamic(aten.masked_select.default, x, torch.tensor(False))


MASK = torch.tensor([True, False, True, True])
X = torch.arange(4.0 * 3 * 5).reshape(4, 3, 5)


@pytest.mark.parametrize(
    ("x", "indices"),
    [
        (X, [MASK]),
        (X, [MASK.to(torch.uint8)]),
        (X, [X[..., 0] % 2 == 0]),
        (X, [X % 7 < 3]),
        (X, [None, torch.tensor([True, False, True])]),
        (X, [None, X[0] % 2 == 0]),
        (X, [MASK, torch.tensor([1])]),
        (X, [MASK, torch.tensor(2)]),
        (X, [MASK, torch.tensor([[0], [2]])]),
        (X, [MASK, torch.tensor([True, True, True])]),
        (X, [MASK, torch.tensor([False, True, False])]),
        (X, [MASK, None, torch.tensor([True, False, False, True, True])]),
        (X, [None, torch.tensor([True, False, True]), torch.tensor([[-1], [0]])]),
        (X, [MASK, torch.tensor([2, 0, 1])]),
        (X, [torch.tensor([True, False, False, False]), torch.tensor([2, 0])]),
        (X, [torch.tensor([0, 2]), torch.tensor([[True] + [False] * 4, [False] * 5, [False, True] + [False] * 3])]),
        (X, [torch.zeros(4, dtype=torch.bool)]),
        (X.to(torch.bfloat16), [MASK]),
        (torch.zeros(0, 3), [torch.zeros(0, dtype=torch.bool)]),
    ],
)
def test_index_with_masks(x: torch.Tensor, indices: list[Any]) -> None:
    check_dynamic(aten.index.Tensor, x, indices)


def test_index_of_static_size_is_not_dynamic() -> None:
    assert not registry.is_dynamic("aten::index.Tensor", [X, [torch.tensor([1, 2])]])
    assert not registry.is_dynamic("aten::repeat_interleave.Tensor", [torch.tensor([1, 2])], {"output_size": 3})


@pytest.mark.parametrize("x", [[3, 1, 2, 3, 1], [], [7], [[2, 2], [1, 2]], 5])
def test_unique(x: Any) -> None:
    for flags in ((False, False), (True, False), (False, True), (True, True)):
        check_dynamic(aten._unique2.default, torch.tensor(x), True, *flags)
        check_dynamic(aten.unique_consecutive.default, torch.tensor(x), *flags)
    check_dynamic(aten._unique.default, torch.tensor(x), True, True)


def test_unique_floats_and_bools() -> None:
    check_dynamic(aten._unique2.default, torch.tensor([NAN, 1.0, NAN, 2.0, 1.0, float("inf")]), True, True, True)
    check_dynamic(aten._unique2.default, torch.tensor([True, False, True]), True, True, True)
    check_dynamic(aten.unique_consecutive.default, torch.tensor([NAN, NAN, 1.0, 1.0]), True, True)


def test_unique_rows_of_none() -> None:
    check_dynamic(aten.unique_dim.default, torch.zeros(0, 3), 0, True, True, True)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_dim(dim: int) -> None:
    x = torch.tensor([[1, 2, 1], [1, 2, 1], [0, 3, 0]])
    check_dynamic(aten.unique_dim.default, x, dim, True, True, True)
    check_dynamic(aten.unique_dim_consecutive.default, x, dim, True, True)
    check_dynamic(aten.unique_consecutive.default, x, True, True, dim)
    many = torch.randint(0, 2, (9, 5, 2), generator=torch.Generator().manual_seed(0))
    check_dynamic(aten.unique_dim.default, many, dim)


# --- rows

Y = torch.tensor([3.0, -1.0, 2.0, 5.0, -4.0])
Y2 = torch.arange(15.0).reshape(5, 3) - 6
IDX = torch.tensor([2, 0, 3, 3, 1])


def test_pointwise_rows() -> None:
    check_rows(aten.mul.Tensor, Y, 2.0, padded=(0,))
    check_rows(aten.add.Tensor, Y2, Y2, padded=(0, 1))
    check_rows(aten.add.Tensor, Y2, torch.arange(3.0), padded=(0,))
    with pytest.raises(Specialise):
        check_rows(aten.add.Tensor, torch.arange(3.0), Y2[:3, :1], padded=(0,))


@pytest.mark.parametrize("x", [Y, Y2, (Y2 > 0), Y2.to(torch.int8), Y2.bfloat16(), -Y2 - 30, Y2[:0]])
def test_reductions_of_padded_rows(x: torch.Tensor) -> None:
    floating, empty = x.is_floating_point(), x.numel() == 0
    for dims in (None, [0], [-1], [0, -1][: x.ndim]):
        keepdim = {"keepdim": dims == [0]} if dims else {}
        check_rows(aten.sum.dim_IntList, x, dims, padded=(0,), **keepdim)
        if floating:
            check_rows(aten.mean.dim, x, dims, padded=(0,), **keepdim)
            check_rows(aten.var_mean.correction, x, dims, correction=1, padded=(0,), **keepdim)
            check_rows(aten.linalg_vector_norm.default, x, 2, dims, padded=(0,), **keepdim)
            check_rows(aten.logsumexp.default, x, dims or list(range(x.ndim)), padded=(0,), **keepdim)
        check_rows(aten.any.dims, x, dims, padded=(0,), **keepdim)
        check_rows(aten.all.dims, x, dims, padded=(0,), **keepdim)
        if not empty:
            check_rows(aten.amax.default, x, dims or [], padded=(0,), **keepdim)
            check_rows(aten.amin.default, x, dims or [], padded=(0,), **keepdim)
    for dim in (0, -1):
        check_rows(aten.prod.dim_int, x, dim, padded=(0,))
        if not empty:
            check_rows(aten.max.dim, x, dim, padded=(0,))
            check_rows(aten.min.dim, x, dim, padded=(0,))
            check_rows(aten.aminmax.default, x, dim=dim, padded=(0,))
    check_rows(aten.sum.default, x, padded=(0,))
    check_rows(aten.count_nonzero.default, x, padded=(0,))
    if not empty and x.dtype != torch.bool:
        check_rows(aten.argmax.default, x, padded=(0,))
        check_rows(aten.argmin.default, x, 0, padded=(0,))
        check_rows(aten.max.default, x, padded=(0,))


def test_each_row_for_itself() -> None:
    w, b = torch.arange(6.0).reshape(3, 2), torch.ones(2)
    check_rows(aten._softmax.default, Y2, 1, False, padded=(0,))
    check_rows(aten.mm.default, Y2, w, padded=(0,))
    check_rows(aten.addmm.default, b, Y2, w, padded=(1,))
    check_rows(aten.bmm.default, Y2[:, None], Y2[..., None], padded=(0, 1))
    check_rows(aten.native_layer_norm.default, Y2, [3], torch.ones(3), None, 1e-5, padded=(0,))
    check_rows(aten.topk.default, Y2, 2, padded=(0,))
    check_rows(aten.sort.default, Y2, -1, True, padded=(0,))
    check_rows(aten.ones_like.default, Y2, padded=(0,))
    check_rows(aten._log_softmax_backward_data.default, Y2, Y2, -1, torch.float32, padded=(0, 1))
    for op, args, padded in (
        (aten._softmax.default, (Y2, 0, False), (0,)),
        (aten.sort.default, (Y2, 0), (0,)),
        (aten.cumsum.default, (Y2, 0), (0,)),
    ):
        with pytest.raises(Specialise):
            check_rows(op, *args, padded=padded)


def test_gathers_by_padded_rows() -> None:
    check_rows(aten.index.Tensor, X, [IDX], padded=(1,))
    check_rows(aten.index.Tensor, X, [IDX, -IDX.clamp(max=2)], padded=(1, 2))
    check_rows(aten.index.Tensor, Y2, [torch.tensor([-1, 0, -5])], padded=(0,))
    check_rows(aten.index_select.default, X, 0, IDX, padded=(1,))
    check_rows(aten.index_select.default, Y2, 1, torch.tensor([2, 1]), padded=(0,))
    check_rows(aten.gather.default, Y, 0, IDX, padded=(1,))
    check_rows(aten.take.default, X, IDX, padded=(1,))
    with pytest.raises(Specialise):
        check_rows(aten.index.Tensor, X.expand(4, 4, 3, 5), [None, IDX], padded=(1,))


def test_writes_of_padded_rows() -> None:
    mask = torch.tensor([True, False, True, True, False, True, True, False])
    x, x2 = torch.zeros(8), torch.zeros(8, 3)
    check_rows(aten.index_put.default, x, [mask], Y, padded=(2,))
    check_rows(aten.index_put.default, x2, [mask], Y2, True, padded=(2,))
    check_rows(aten.index_put.default, x2, [mask], Y2[:1], padded=(2,))
    check_rows(aten.index_put.default, x, [IDX], Y, True, padded=(1, 2))
    check_rows(aten.index_put.default, x, [IDX], torch.tensor(2.0), padded=(1,))
    check_rows(aten.index_put.default, x2, [IDX], torch.arange(3.0), padded=(1,))
    check_rows(aten.index_put.default, Y, [Y > 0], torch.tensor(0.0), padded=(0, 1))
    check_rows(aten.index_add.default, x2, 0, IDX, Y2, padded=(1, 2))
    check_rows(aten.index_copy.default, x2, 0, IDX.unique(), Y2[:4], padded=(1, 2))
    check_rows(aten.index_fill.int_Scalar, x2, 0, -IDX, 3.0, padded=(1,))
    check_rows(aten.scatter.src, x, 0, IDX.clamp(max=2).unique(), Y[:3], padded=(1, 2))
    check_rows(aten.scatter.value, x, 0, IDX, 3.0, padded=(1,))
    check_rows(aten.scatter_add.default, x, 0, IDX, Y, padded=(1, 2))
    check_rows(aten.put.default, x2, IDX, Y, True, padded=(1, 2))
    with pytest.raises(Specialise):
        check_rows(aten.index_put.default, x, [IDX], Y, padded=(2,))


def test_compaction_of_padded_rows() -> None:
    for op, args, padded in (
        (aten.nonzero.default, (Y2 > 0,), (0,)),
        (aten.masked_select.default, (Y2, Y2 > 0), (0, 1)),
        (aten.masked_select.default, (Y2, torch.tensor([True, False, True])), (0,)),
        (aten.index.Tensor, (Y2, [Y > 0]), (0, 1)),
    ):
        leaves, spec = pytree.tree_flatten(args)
        tensors = [pad(t, 8) if i in padded else t for i, t in enumerate(leaves)]

        def program(rows: Any, *arrays: Any, op: Any = op, spec: Any = spec, padded: Any = padded) -> Any:
            with using(Context(rows=rows, row_operands=tuple(arrays[p] for p in padded))):
                result = interpret.lower_dynamic(op, pytree.tree_unflatten(arrays, spec), {})
            return result.outputs[0], result.counts[0]

        got, count = run(program, torch.tensor(5, dtype=torch.int32), *tensors)
        torch.testing.assert_close(_to_torch(got)[: int(count)], op(*args))
