"""The kinds of checks. Each takes an op and a dtype, compares the device with the CPU and returns how many samples it
compared, 0 if the CPU itself supports none; it raises for the first sample that is wrong."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import compare
import inputs
import torch
import torch.utils._pytree as pytree
from compare import Wrong
from inputs import SampleInput, copied, to_tpu
from torch._prims_common import check_significant_strides
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.opinfo.core import OpInfo

Run = Callable[[SampleInput], Any]

# What these give is whatever was in the memory.
_UNINITIALIZED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")


def kinds(op: OpInfo, dtype: torch.dtype) -> list[str]:
    """The kinds of checks that apply to an op and a dtype."""
    names = ["forward"]
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        names.append("backward")
    if op.inplace_variant is not None:
        names.append("in-place")
    if op.supports_out:
        names.append("out")
    if dtype == inputs.dtypes(op)[0]:
        # Once an op, mostly in float32: what depends little on the dtype.
        names += ["view", "layout", "errors", "vmap"]
        if op.supports_forward_ad and dtype == torch.float32:
            names.append("jvp")
        if op.supports_autograd and op.supports_gradgrad and dtype == torch.float32:
            names.append("gradgrad")
    return names


def check(op: OpInfo, dtype: torch.dtype, kind: str) -> int:
    """Run one kind of check; the number of samples compared."""
    before = dict(torch.tpu.cpu_fallbacks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = CHECKS[kind](op, dtype)
    after = torch.tpu.cpu_fallbacks()
    if after != before:
        raise Wrong(f"fell back to the CPU: {sorted(set(after) - set(before))}")
    return count


def _forward(op: OpInfo, dtype: torch.dtype) -> int:
    count = 0
    for sample in inputs.samples(op, dtype, inputs.sample_count(dtype)):
        count += _same(op, op, sample, strides=True)
    return count


def _layout(op: OpInfo, dtype: torch.dtype) -> int:
    count = 0
    for sample in inputs.samples(op, dtype, inputs.FEW):
        for name, changed in inputs.laid_out(op, sample):
            if name == "expanded" and op.name in _OF_REGULAR and any(x.dim() == 2 for x in inputs.tensors(changed)):
                continue
            try:
                with _naming(name):
                    count += _same(op, op, changed, strides=name not in ("0-d", "empty"))
            except Wrong as wrong:
                # What the op updates is expanded: some CPU kernels don't refuse that, and leave what the order of their
                # writes gives.
                if name != "expanded" or "more than one element of the written-to tensor" not in str(wrong):
                    raise
    return count


# Equal rows make a matrix singular: rounding decides which row a factorisation takes as pivot, what the directions of
# singular values of 0 are, whether an inverse is large or there is none; and no Cholesky factor exists.
_OF_REGULAR = frozenset((
    "cholesky", "geqrf", "logdet", "lu", "lu_solve", "pca_lowrank", "pinverse", "qr", "svd", "svd_lowrank",
    "triangular_solve",
    *(f"linalg.{n}" for n in (
        "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "inv", "inv_ex", "ldl_factor",
        "ldl_factor_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matrix_rank", "pinv", "qr",
        "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "tensorinv", "tensorsolve",
    )),
))  # fmt: skip


def _backward(op: OpInfo, dtype: torch.dtype) -> int:
    count = 0
    for sample in inputs.samples(op, dtype, inputs.sample_count(dtype), requires_grad=True):
        count += _same(op, lambda s: _gradients(op, s)[0], sample)
    return count


def _gradgrad(op: OpInfo, dtype: torch.dtype) -> int:
    def second(sample: SampleInput) -> Any:
        first, leaves = _gradients(op, sample, create_graph=True)
        first = [g for g in first if g is not None and g.requires_grad]
        return _gradient_of(first, leaves) if first else []

    count = 0
    for sample in inputs.samples(op, dtype, inputs.FEW, requires_grad=True):
        count += _same(op, second, sample)
    return count


def _in_place(op: OpInfo, dtype: torch.dtype) -> int:
    variant = op.inplace_variant

    def run(sample: SampleInput) -> Any:
        result = variant(sample.input, *sample.args, **sample.kwargs)
        if result is not sample.input:
            raise Wrong("the in-place variant returns another tensor than its input")
        return result, inputs.tensors((tuple(sample.args), dict(sample.kwargs)))

    count = 0
    for sample in inputs.samples(op, dtype, inputs.sample_count(dtype)):
        if not sample.broadcasts_input:
            count += _same(op, run, sample)
    return count


def _out(op: OpInfo, dtype: torch.dtype) -> int:
    count = 0
    for sample in inputs.samples(op, dtype, inputs.sample_count(dtype)):
        expected = _attempt(op, copied(sample))[0]
        if expected is not None and all(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(expected)):
            for name, make in _OUTS.items():
                with _naming(name):
                    count += _same(op, functools.partial(_into, op, expected, make), sample)
    return count


def _into(op: OpInfo, like: Any, make: Callable[..., torch.Tensor], sample: SampleInput) -> Any:
    device = next((x.device for x in inputs.tensors(sample)), torch.get_default_device())
    if any(x.dtype in (torch.float64, torch.complex128) for x in inputs.tensors(sample)):
        # The reference, perhaps: its results are in double precision.
        like = pytree.tree_map(lambda x: x.to(inputs.double(x.dtype)), like)
    outs = pytree.tree_map(lambda x: make(x, device), like)
    before = [x.data_ptr() for x in pytree.tree_leaves(outs)]
    result = op(sample.input, *sample.args, **sample.kwargs, out=outs)
    if device.type == "cpu" and op.name in _STRIDES_FORGOTTEN:
        for x, right in zip(pytree.tree_leaves(outs), pytree.tree_leaves(_run(op, sample)), strict=True):
            x.copy_(right)
    kept = [a == x.data_ptr() for a, x in zip(before, pytree.tree_leaves(outs), strict=True)]
    strides = [x.stride() for x in pytree.tree_leaves(outs) if x.numel()]
    if op.name in _TIES:
        result, outs = _values_of_ties(op, sample, result), _values_of_ties(op, sample, outs)
    if op.name in _UP_TO_A_BASIS:
        result, outs = sample.output_process_fn_grad(result), sample.output_process_fn_grad(outs)
    return result, outs, (kept if make is not _resized_out else []), strides


def _like_out(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _strided_out(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype, device=device)
    return wide[..., 1]


def _resized_out(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype, device=device)


# Their CPU kernels write to `out=` as if it were contiguous.
_STRIDES_FORGOTTEN = frozenset({"narrow_copy", "nn.functional.avg_pool3d"})
_OUTS = {"out alike": _like_out, "strided out": _strided_out, "resized out": _resized_out}


def _view(op: OpInfo, dtype: torch.dtype) -> int:
    """Results that share storage with an input share it at the same place, and a write shows on both sides."""

    def run(sample: SampleInput) -> Any:
        given = inputs.tensors(sample)
        results = [x for x in inputs.tensors(op(sample.input, *sample.args, **sample.kwargs)) if _is_strided(x)]
        shared = []
        for result in results:
            for i, x in enumerate(given):
                if _is_strided(x) and x.untyped_storage()._cdata == result.untyped_storage()._cdata:
                    shared.append((i, result.storage_offset(), result.stride(), tuple(result.shape), result._is_view()))
                    if result.dtype == dtype and not result.is_inference():
                        result.zero_()
        return shared, [x for x in given if shared and not hasattr(x, inputs.STAYS)]

    count = 0
    for sample in inputs.samples(op, dtype, inputs.sample_count(dtype)):
        expected, _ = _attempt(run, copied(sample))
        if expected is not None and expected[0]:
            count += _same(op, run, sample)
    return count


def _is_strided(x: torch.Tensor) -> bool:
    return x.layout == torch.strided


def _errors(op: OpInfo, dtype: torch.dtype) -> int:
    count = 0
    for wrong in inputs.error_inputs(op):
        _, expected = _attempt(op, copied(wrong.sample_input))
        if expected is None:
            continue
        _, got = _attempt(op, to_tpu(wrong.sample_input), "tpu")
        if got is None:
            # What only shows in values is checked in debug mode.
            with torch.tpu.mode("debug"):
                _, got = _attempt(op, to_tpu(wrong.sample_input), "tpu")
        if type(got) is not type(expected):
            raise Wrong(f"raises {_brief(got)}, the CPU {_brief(expected)}")
        count += 1
    return count


def _vmap(op: OpInfo, dtype: torch.dtype) -> int:
    """torch.func.vmap over the first tensor."""

    def run(sample: SampleInput) -> Any:
        leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        at = next(i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor))

        def one(x: torch.Tensor) -> Any:
            value, args, kwargs = pytree.tree_unflatten([*leaves[:at], x, *leaves[at + 1 :]], spec)
            out = op(value, *args, **kwargs)
            return sample.output_process_fn_grad(out) if op.name in _UP_TO_A_BASIS else out

        return torch.func.vmap(one, randomness="different")(torch.stack([leaves[at], leaves[at], leaves[at]]))

    return sum(
        _same(op, run, s) for s in inputs.samples(op, dtype, inputs.FEW) if inputs.tensors(s) and _all_strided(s)
    )


def _jvp(op: OpInfo, dtype: torch.dtype) -> int:
    """torch.func.jvp along fixed tangents of all floating-point tensors."""

    def run(sample: SampleInput) -> Any:
        leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        # The reference runs in double precision.
        primal = (dtype, inputs.double(dtype))
        at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.dtype in primal]

        def function(*primals: torch.Tensor) -> Any:
            mixed = list(leaves)
            for i, x in zip(at, primals, strict=True):
                mixed[i] = x
            value, args, kwargs = pytree.tree_unflatten(mixed, spec)
            out = sample.output_process_fn_grad(op(value, *args, **kwargs))
            return [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]

        primals = tuple(leaves[i] for i in at)
        return torch.func.jvp(function, primals, tuple(_weights(x) for x in primals))

    return sum(_same(op, run, s) for s in inputs.samples(op, dtype, inputs.FEW) if _all_strided(s))


def _all_strided(sample: SampleInput) -> bool:
    return all(_is_strided(x) for x in inputs.tensors(sample))


def _compiled(op: OpInfo, dtype: torch.dtype) -> int:
    """torch.compile against eager on the device: results, and gradients where there are any."""
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return sum(_as_eager(op, s) for s in inputs.samples(op, dtype, inputs.FEW, requires_grad=differentiable))


def _as_eager(op: OpInfo, sample: SampleInput) -> int:
    """1 if compiled code gives what the device gives eagerly, 0 if it raises eagerly."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda value, args, kwargs: op(value, *args, **kwargs), dynamic=False)
    run = functools.partial(_with_gradients, lambda value, /, *args, **kwargs: compiled(value, args, kwargs))
    try:
        expected = _run(functools.partial(_with_gradients, op), to_tpu(sample), "tpu")
    except Exception:  # noqa: BLE001 - the other kinds of checks look at that
        return 0
    try:
        got = _run(run, to_tpu(sample), "tpu")
    except Exception as error:
        raise Wrong(f"{_brief(error)}; {_describe(sample)}") from error
    on = next((x.device.type for x in inputs.tensors(expected)), "tpu")
    expected = pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, expected)
    try:
        compare.check(got, expected, op, lambda: _in_double(run, sample), on, values=_determined(op))
    except Wrong as wrong:
        raise Wrong(f"{wrong}; {_describe(sample)}") from None
    return 1


def _with_gradients(fn: Callable[..., Any], sample: SampleInput) -> Any:
    out = sample.output_process_fn_grad(fn(sample.input, *sample.args, **sample.kwargs))
    outs = [x for x in inputs.tensors(out) if x.requires_grad]
    leaves = [x for x in inputs.tensors(sample) if x.requires_grad]
    return out, _gradient_of(outs, leaves) if outs and leaves else []


CHECKS: dict[str, Callable[[OpInfo, torch.dtype], int]] = {
    "forward": _forward,
    "backward": _backward,
    "in-place": _in_place,
    "out": _out,
    "view": _view,
    "layout": _layout,
    "errors": _errors,
    "vmap": _vmap,
    "jvp": _jvp,
    "gradgrad": _gradgrad,
    # Not in the table (`kinds`): test_compiled.py asks for it.
    "compiled": _compiled,
}


# -- how one sample is compared ----------------------------------------------------------------------------------


def _same(op: OpInfo, run: Run | OpInfo, sample: SampleInput, strides: bool = False) -> int:
    """1 if the device gives what the CPU gives, 0 if the CPU raises."""
    host = copied(sample)
    expected, error = _attempt(run, host)
    if error is not None:
        if isinstance(error, Wrong):
            raise error
        return 0
    there = to_tpu(sample)
    try:
        got = _run(run, there, "tpu")
    except Exception as error:
        raise Wrong(f"{_brief(error)}; {_describe(sample)}") from error
    try:
        compared = _comparable(op, run, sample, got, expected)
        compare.check(*compared, op, lambda: _in_double(run, sample), values=_determined(op))
    except Wrong as wrong:
        if not _is_random(run, sample, expected):
            raise Wrong(f"{wrong}; {_describe(sample)}") from None
        compare.check(got, expected, op, lambda: None, values=False)
    if strides:
        _check_strides(op, sample, got)
    return 1


def _comparable(op: OpInfo, run: Run | OpInfo, sample: SampleInput, got: Any, expected: Any) -> tuple[Any, Any]:
    """Results that are determined up to a sign, a phase or a basis, brought to what is determined."""
    if run is op and op.name in _SAVED_STATISTICS:
        # The CPU saves them in the dtype of the input, and none when it evaluates; all other devices, and fake tensors,
        # promise them in that of the computation, those given when it evaluates.
        if not expected[1].numel():
            return got[:1], expected[:1]
        return [got[0], *(x.to(e.dtype) for x, e in zip(got[1:], expected[1:], strict=True))], expected
    if run is op and op.name in _TIES:
        return _values_of_ties(op, to_tpu(sample), got), _values_of_ties(op, sample, expected)
    if run is not op or op.name not in _UP_TO_A_BASIS:
        return got, expected
    return sample.output_process_fn_grad(got), sample.output_process_fn_grad(expected)


# Which of equal elements they give the index of is not determined; where their dimension is among the arguments.
_TIES = {"kthvalue": 1, "mode": 0, "median": 0, "nanmedian": 0, "topk": 1, "sort": 0, "argsort": 0}


def _values_of_ties(op: OpInfo, sample: SampleInput, result: Any) -> Any:
    """(values, the elements at the indices) for (values, indices)."""
    if sample.kwargs.get("stable") or (isinstance(result, torch.Tensor) and op.name != "argsort"):
        return result
    values, indices = (result, result) if op.name == "argsort" else result
    position = _TIES[op.name]
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)
    at = indices if indices.dim() == sample.input.dim() else indices.unsqueeze(dim)
    found = sample.input.gather(dim, at).view(indices.shape)
    return found if op.name == "argsort" else (values, found)


_SAVED_STATISTICS = frozenset(
    {"_batch_norm_with_update", "native_batch_norm", "_native_batch_norm_legit", "native_layer_norm"}
)
_UP_TO_A_BASIS = frozenset(
    {"svd", "linalg.svd", "svd_lowrank", "pca_lowrank", "linalg.eigh", "linalg.eig", "symeig", "lobpcg"}
)


def _determined(op: OpInfo) -> bool:
    return op.name not in _UNINITIALIZED


def _is_random(run: Run | OpInfo, sample: SampleInput, expected: Any) -> bool:
    """Whether the CPU, with another seed, doesn't give its own result again."""
    other, error = _attempt(run, copied(sample), seed=1)
    if error is not None:
        return False
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(other), strict=True):
        if isinstance(a, torch.Tensor) and (a.shape != b.shape or not torch.equal(_plain(a), _plain(b))):
            return True
        if isinstance(a, float) and a != b:
            return True
    return False


def _plain(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return torch.nan_to_num(x.to_dense() if x.layout != torch.strided else x)


def _check_strides(op: OpInfo, sample: SampleInput, got: Any) -> None:
    """The strides that PyTorch's fake tensors promise on this device, which compiled code relies on."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        fakes = inputs.with_tensors(to_tpu(sample), mode.from_tensor)
        with mode:
            promised = _run(op, fakes, "tpu")
    except Exception:  # noqa: BLE001 - an op that has no fake rule, or whose shapes depend on data
        return
    for i, (g, p) in enumerate(zip(inputs.tensors(got), inputs.tensors(promised), strict=True)):
        if g.layout == torch.strided and g.shape == p.shape and not check_significant_strides(g, p)[0]:
            raise Wrong(f"result {i} has strides {g.stride()}, fake tensors promise {p.stride()}; {_describe(sample)}")


def _run(run: Run | OpInfo, sample: SampleInput, device: str = "cpu") -> Any:
    """Run on a device, which is also where ops make tensors from nothing."""
    torch.manual_seed(0)
    if (
        device != "cpu"
        and torch.get_default_device().type == "cpu"
        and not any(x.dim() for x in inputs.tensors(sample))
    ):
        with torch.device(device):
            return _run(run, sample, device)
    return run(sample.input, *sample.args, **sample.kwargs) if isinstance(run, OpInfo) else run(sample)


def _attempt(
    run: Run | OpInfo, sample: SampleInput, device: str = "cpu", seed: int = 0
) -> tuple[Any, Exception | None]:
    seeded = torch.manual_seed
    try:
        # Entries of the database that are random set a seed themselves.
        with mock.patch("torch.manual_seed", lambda given: seeded(given + seed)):
            return _run(run, sample, device), None
    except Exception as error:  # noqa: BLE001 - whatever the op raises is what is compared
        return None, error


def _in_double(run: Run | OpInfo, sample: SampleInput) -> Any:
    leaves = iter(inputs.tensors(sample))
    double = inputs.with_tensors(inputs.in_double(sample), lambda x: x.requires_grad_(next(leaves).requires_grad))
    return _attempt(run, double)[0]


def _gradients(op: OpInfo, sample: SampleInput, create_graph: bool = False) -> tuple[list[Any], list[torch.Tensor]]:
    out = sample.output_process_fn_grad(op(sample.input, *sample.args, **sample.kwargs))
    outs = [x for x in inputs.tensors(out) if x.requires_grad]
    leaves = [x for x in inputs.tensors(sample) if x.requires_grad]
    return _gradient_of(outs, leaves, create_graph), leaves


def _gradient_of(outs: list[torch.Tensor], leaves: list[torch.Tensor], create_graph: bool = False) -> list[Any]:
    weights = [_weights(x) for x in outs]
    return list(torch.autograd.grad(outs, leaves, weights, allow_unused=True, create_graph=create_graph))


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Distinct factors, so that a gradient that reaches the wrong element shows."""
    values = torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype)
    if x.layout != torch.strided:
        return torch.ones_like(x)
    return values.to(x.device)


class _naming:
    """Names a layout in what is raised under it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Wrong):
            raise Wrong(f"[{self.name}] {error}") from None


def _brief(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _describe(sample: SampleInput) -> str:
    def leaf(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            dense = x.layout == torch.strided and x.is_contiguous()
            extra = "" if dense or x.layout != torch.strided else f", strides {tuple(x.stride())}"
            return f"{inputs.dtype_name(x.dtype)}{list(x.shape)}{extra}"
        return repr(x)

    args = [leaf(x) for x in pytree.tree_leaves((sample.input, tuple(sample.args)))]
    named = [f"{k}={pytree.tree_map(leaf, v)}" for k, v in sample.kwargs.items()]
    return f"({', '.join([*args, *named])})"[:300]


def jobs(ops: list[OpInfo]) -> Iterator[inputs.Case]:
    """Every case of some ops."""
    for op in ops:
        for dtype in inputs.dtypes(op):
            for kind in kinds(op, dtype):
                yield inputs.Case(op.full_name, inputs.dtype_name(dtype), kind)
