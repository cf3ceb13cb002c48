"""The miss: a call of an op becomes a compiled program.

The C++ core calls `build` when it has no program for a call's signature. Nothing here runs on a hit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes

from . import _C, arguments, bounds, cache, compile_log, compiler, errors, layouts, runtime
from .lowering import dtypes, interpret, load_rules, rows, variants
from .lowering._jax import jax, jnp, lax
from .lowering.context import Context, using
from .lowering.dtypes import to_jax
from .lowering.registry import DYNAMIC_RULES, RULES, is_dynamic
from .views import WHOLE, ScalarOperand, Storage, TensorOperand, read, storage_order, write

__all__ = ["OpInfo", "ScalarOperand", "Storage", "TensorOperand", "build", "op_info", "ops_to_register"]

# Composite ops that stay as PyTorch composes them: they make storages or follow a `device` argument.
_COMPOSED = frozenset(
    f"aten::{n}"
    for n in (
        *("empty_like", "empty_permuted", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
        *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "randint_like.low_dtype"),
        *("lift", "lift_fresh"),
        "full",  # composed, its number is checked as `fill_` does
        # These share storage with their input although their schemas don't say so, or copy what is no view.
        *("_unsafe_view", "unsafe_split.Tensor", "unsafe_split_with_sizes", "view_copy"),
    )
)
_INDEXING = frozenset(
    {
        "aten::index.Tensor",
        "aten::index.Tensor_out",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index.Tensor",
        "aten::_unsafe_index_put",
    }
)

# Storages from this size on (bytes) are updated in their own memory. Below, copying costs less than what the CPU plugin
# does to hand a buffer over (25 us against 3 for 64x64 floats).
DONATE_FROM = 1 << 18

# Writing the same value to every place: overlapping destinations are no question of order.
_MAY_OVERLAP = frozenset({"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_"})


# Reductions that compute in the dtype of an `out=` tensor, and so take integers there for floats.
_OUT_SAYS_DTYPE = frozenset(f"aten::{n}" for n in ("sum", "nansum", "prod", "cumsum", "cumprod"))


@dataclass(frozen=True)
class OpInfo:
    """What the core must know of an op before it has a program.

    runtime: names of numeric arguments that are runtime values. rows: operands with padded rows may enter whole.
    host_indices: index tensors may lie on the CPU. random: draws from the generator.
    """

    runtime: tuple[str, ...]
    rows: bool
    host_indices: bool
    random: bool


def op_info(name: str) -> OpInfo:
    """The OpInfo of an op's qualified name."""
    load_rules()
    functional = _functional_name(name)
    rule = RULES.get(functional)
    takes_rows = functional in DYNAMIC_RULES or (rule is not None and rule.rows is not None)
    random = rule is not None and rule.random
    return OpInfo(rule.runtime if rule else (), takes_rows, name in _INDEXING, random)


# Composite `out=` forms that ask which device it is, or write through helpers that have no functional form.
_OUT_FORMS = ("cummax.out", "cummin.out", "mode.values")

# Composite ops with a gradient formula of their own, which a kernel therefore doesn't lose: one program, not several.
_WITH_GRADIENT = frozenset({"aten::silu_backward", "aten::mish_backward"})


def ops_to_register() -> list[str]:
    """The ops whose kernel must be ours although PyTorch has a composite or structured one."""
    load_rules()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = []
    for name in torch._C._dispatch_get_all_op_names():
        # The core has kernels of its own for what is no program (csrc/ops.cpp).
        if not name.startswith("aten::") or name in _COMPOSED or has(name, "PrivateUse1"):
            continue
        if has(name, "CompositeImplicitAutograd") and name not in _WITH_GRADIENT:
            continue
        composite = has(name, "CompositeExplicitAutograd") and not has(name, "CPU")
        if composite and _stripped(name) not in RULES:
            continue
        if has(name, "CPU") or composite or has(name, "CompositeExplicitAutogradNonFunctional"):
            op = variants.find(name)
            views = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
            if not views and torch.Tag.inplace_view not in op.tags:
                names.append(name)
    return [*(n.removeprefix("aten::") for n in names), *_OUT_FORMS]


def build(name: str, values: list[Any], storages: list[Storage], with_rows: bool, fallback: bool) -> _C.Program:
    """The program of a call.

    values: the op's arguments in schema order, with TensorOperand and ScalarOperand for what is not static.
    with_rows: some operand has padded rows. fallback: run on the CPU what has no lowering.
    Raises what PyTorch raises for wrong arguments, NotImplementedError for ops without a lowering, CompileForbidden
    under `torch.tpu.forbid_compiles`.
    """
    # What is no part of the key under which programs are kept on disk.
    errors.raise_if_overlapping(variants.find(name), values)
    if any(isinstance(x, ScalarOperand) and x.is_number for x in values):
        _refuse_numbers(name, values)
    described = arguments.describe(name, values, storages, with_rows)
    with compile_log.making(name, described, arguments.difference) as made:
        return _load_or_compile(name, values, storages, with_rows, fallback, made)


def _load_or_compile(
    name: str, values: list[Any], storages: list[Storage], with_rows: bool, fallback: bool, made: compile_log.making
) -> _C.Program:
    key = cache.key(name, values, storages, with_rows)
    stored = cache.load(key)
    if stored is not None:
        if stored[1] is not None:
            made.loaded()
        return _program(name, *stored)
    try:
        with ExitStack() as stack:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(unset_fake_temporarily())
            plan, executable = _Build(variants.find(name), values, storages, with_rows).compile()
    except rows.Specialise:
        return _C.Program.specialise(name)
    except NotImplementedError as error:
        if fallback:
            return _C.Program.fallback(name)
        raise type(error)(str(error)) from None  # without the tracer's frames and notes
    cache.store(key, plan, executable)
    return _program(name, plan, executable)


def _refuse_numbers(name: str, values: list[Any]) -> None:
    """Raise the CPU's error for numbers that an elementwise op doesn't take, such as 300 for uint8 or a negative rate.

    Numbers are no part of a call's signature; how they stand to each other and the dtype is (`put_standing`, call.cpp).
    """
    rule = RULES.get(_functional_name(name))
    if rule is not None and (rule.random or rule.rows == "pointwise"):
        errors.raise_if_refused(variants.find(name), values, rule.random)


def _program(name: str, plan: dict[str, Any], executable: _C.Executable | None) -> _C.Program:
    runtime.keep_maps(len(plan["tensors"]) + len(plan["writes"]))
    return _C.Program(name, executable, *(plan[k] for k in _PLAN))


_PLAN = ("inputs", "tensors", "writes", "resizes", "returns", "random_numbers", "checks")
# A call with `out=` tensors of another shape is read again once they are resized.
_NOTHING = {"inputs": [], "tensors": [], "writes": [], "returns": [], "random_numbers": 0, "checks": []}


class _Build:
    """One call on its way to a program."""

    def __init__(self, op: OpOverload, values: list[Any], storages: list[Storage], with_rows: bool) -> None:
        self.op, self.values, self.storages, self.with_rows = op, values, storages, with_rows
        self.names = [a.name for a in op._schema.arguments]
        if op._schema.name in _OUT_SAYS_DTYPE:
            self.values = self._dtype_of_out()
        self.operands = [x for x in pytree.tree_leaves(values) if isinstance(x, TensorOperand)]
        self.scalars = [x for x in pytree.tree_leaves(values) if isinstance(x, ScalarOperand)]
        self.mode = FakeTensorMode(allow_fallback_kernels=False)

    def compile(self) -> tuple[dict[str, Any], _C.Executable | None]:
        """The plan (what the core needs to run it) and the executable."""
        self._read_schema()
        try:
            errors.raise_if_doubtful(self.op, *self._call(self.op, self.metas))
            self.meta()
            self.plan()
            return ({**_NOTHING, "resizes": self.resizes}, None) if self.resizes else self.lower()
        except (NotImplementedError, rows.Specialise, torch.OutOfMemoryError, compile_log.CompileForbidden):
            raise
        except Exception as error:
            if self.with_rows:
                raise rows.Specialise from error  # with all rows the shapes don't fit
            errors.raise_as_on_cpu(error, self.op, *self._call(self.op, self.metas))

    def _dtype_of_out(self) -> list[Any]:
        """The arguments, with the dtype of `out=` for a `dtype` that isn't given."""
        named = dict(zip(self.names, self.values, strict=True))
        if named["dtype"] is None and isinstance(named.get("out"), TensorOperand):
            named["dtype"] = named["out"].dtype
        return list(named.values())

    def _read_schema(self) -> None:
        self.functional = variants.functional(self.op) if variants.mutates(self.op) else None
        if variants.mutates(self.op) and self.functional is None:
            raise interpret.not_implemented(self.op)
        self.pure = self.functional.op if self.functional else self.op
        self.metas = self._stand_ins(self._meta, "meta")
        call = interpret.bind(self.op, *self._call(self.op, self.metas))
        self.dynamic = is_dynamic(self.op.name(), *call)

    def meta(self) -> None:
        """Run the op, and its functional form, without data: PyTorch's errors, shapes, dtypes, strides, aliasing."""
        if self.dynamic:
            return
        if self.op.name() in layouts.SHAPED_BY_THE_LOWERING:
            self.out = self.pure_out = self._out_from_lowering()
            return
        try:
            self._meta_from_metas()
        except (NotImplementedError, rows.Specialise):
            raise
        except Exception as error:
            if self.with_rows:
                raise
            self._meta_from_cpu(error)
        made = self.pure_out if self.functional else self.out
        self.pure_out = layouts.as_promised(self.pure, self.metas, made)
        if self.functional is None:
            self.out = self.pure_out

    def _meta_from_metas(self) -> None:
        try:
            # Meta tensors run the C++ that CPU and CUDA run, and give its errors.
            if self.functional is not None:
                # Before the op itself, which may resize what it writes to.
                self.pure_out = self._run(self.pure, self.metas)
            self.out = self._run(self.op, self.metas)
        except NotImplementedError:
            self._meta_from_fakes()

    def _meta_from_cpu(self, error: Exception) -> None:
        """Shape functions written in Python refuse some calls that the CPU takes: its results' shapes, or its error."""
        host = errors.to_host(self.metas)
        if host is None:
            raise error
        try:
            with torch.random.fork_rng(devices=[]):
                if self.functional is not None:
                    self.pure_out = errors.to_meta(self._run(self.pure, host))
                self.out = errors.to_meta(self._run(self.op, host))
        except NotImplementedError:
            raise error from None
        self.metas = errors.to_meta(host)

    def _meta_from_fakes(self) -> None:
        """Ops without a C++ shape function: PyTorch's fake rules and decompositions, or else our lowering."""
        metas = self._stand_ins(self._fake, "tpu")
        try:
            with self.mode:
                if self.functional is not None:
                    self.pure_out = self._run(self.pure, metas)
                self.out = self._run(self.op, metas)
        except (NotImplementedError, UnsupportedOperatorException, DynamicOutputShapeException):
            if self.pure.name() not in RULES:
                raise interpret.not_implemented(self.op) from None
            self.pure_out = self._out_from_lowering()
            self.out = self.pure_out
        else:
            self.metas = metas

    def _out_from_lowering(self) -> Any:
        """The functional op's results, as meta tensors, by tracing its rule."""
        with jax.enable_x64(True), using(Context(rng=jnp.zeros(4, jnp.uint32))):
            specs = {id(x): _spec(x, self.storages) for x in (*self.operands, *self.scalars)}
            order = list(specs)

            def run(*arrays: Any) -> list[Any]:
                values = dict(zip(order, arrays, strict=True))
                arguments = [pytree.tree_map(lambda x: values.get(id(x), x), v) for v in self.values]
                args, kwargs = self._call(self.pure, arguments)
                return interpret.lower(self.pure, args, kwargs, None, [])

            shapes = jax.eval_shape(run, *specs.values())
        metas = [
            None if s is None else torch.empty(s.shape, dtype=dtypes.to_torch(s.dtype), device="meta") for s in shapes
        ]
        returns = self.pure._schema.returns
        if len(returns) == 1:
            return metas if str(returns[0].type).startswith("List") else metas[0]
        if self.functional is None:
            return tuple(metas)
        # Lists among the results are as long as the lists they are the new values of.
        by_name, queue = dict(zip(self.names, self.metas, strict=True)), iter(metas)
        lengths = {i: len(by_name[n]) for n, i in self.functional.writes if isinstance(by_name[n], list)}
        return tuple(
            [next(queue) for _ in range(lengths[i])] if i in lengths else next(queue) for i in range(len(returns))
        )

    def _stand_ins(self, make: Callable[[Any], Any], device: str) -> list[Any]:
        made = {id(x): make(x) for x in (*self.operands, *self.scalars)}
        tensor = next((t for t in made.values() if isinstance(t, torch.Tensor)), None)
        for x in self._numbers_as_tensors() if tensor is not None else ():
            made[id(x)] = tensor.new_empty((), dtype=torch.result_type(tensor, x.value))
        return [
            torch.device(device) if n == "device" else pytree.tree_map(lambda x: made.get(id(x), x), v)
            for n, v in zip(self.names, self.values, strict=True)
        ]

    def _refuse_overlap(self, operand: TensorOperand) -> None:
        overlaps = any(n > 1 and s == 0 for n, s in zip(operand.sizes, operand.strides, strict=True))
        if overlaps and self.op.name() not in _MAY_OVERLAP:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )

    def _numbers_as_tensors(self) -> list[ScalarOperand]:
        """Numbers that C++ wrapped as tensors and that Python can't pass to this op as such."""
        return [
            v
            for v, argument in zip(self.values, self.op._schema.arguments, strict=True)
            if isinstance(v, ScalarOperand) and v.is_number and variants.wants_tensor(self.op, argument)
        ]

    def plan(self) -> None:
        """Where results go: new tensors, updated storages, resized outputs."""
        by_name = dict(zip(self.names, zip(self.values, self.metas, strict=True), strict=True))
        self.tensors: list[Any] = []  # (fake, position among the functional op's results)
        self.writes: list[tuple[TensorOperand, torch.Tensor, int]] = []
        self.resizes = []
        flat_positions = [] if self.dynamic else self._positions(self.pure_out)
        outs = {a.name for a in self.op._schema.arguments if a.is_out}
        if self.functional is not None:
            for argument, result in self.functional.writes:
                operands, fakes = by_name[argument]
                pairs = [(operands, fakes)] if not isinstance(operands, list) else zip(operands, fakes, strict=True)
                for (operand, fake), position in zip(pairs, flat_positions[result], strict=True):
                    if operand is None:
                        continue
                    promised = self._flat_out(position)
                    errors.check_cast(promised.dtype, operand.dtype)
                    before = operand.sizes_in(self.storages[operand.storage])
                    if argument in outs and tuple(promised.shape) != before:
                        fake = layouts.resized(self.op, fake, promised)
                    if tuple(fake.shape) != before:
                        if self.with_rows:
                            raise rows.Specialise
                        self._refuse_overlap(operand)
                        self.resizes.append((operand.index, list(fake.shape), list(fake.stride())))
                    self.writes.append((operand, fake, position))
        self.returns = self._returns(by_name, flat_positions)

    def lower(self) -> tuple[dict[str, Any], _C.Executable | None]:
        """Lower, compile, and say which inputs the program takes."""
        with jax.enable_x64(True):
            buffers = [jax.ShapeDtypeStruct(s.dims, to_jax(s.dtype)) for s in self.storages if s.written]
            positions = [i for i, s in enumerate(self.storages) if s.written]
            starts = sum(x.starts for x in self.operands) + self.with_rows
            scalars = [jax.ShapeDtypeStruct((), to_jax(x.dtype), weak_type=x.is_number) for x in self.scalars]
            specs = [
                *buffers,
                jax.ShapeDtypeStruct((starts,), jnp.int64),
                *scalars,
                jax.ShapeDtypeStruct((4,), jnp.uint32),
            ]
            inputs = [("storage", i) for i in positions]
            inputs += [("starts", 0), *(("scalar", i) for i in range(len(scalars))), ("random", 0)]
            written = {o.storage for o, _, _ in self.writes}
            donated = [i for i, s in enumerate(positions) if s in written and _bytes(self.storages[s]) >= DONATE_FROM]
            compiled = compiler.compile(self._trace, specs, donated)
        kept = [inputs[i] for i in compiled.kept]
        taken = {positions[i] for i in donated if ("storage", positions[i]) in kept}
        self.write_specs = [(*spec, spec[0] in taken) for spec in self.write_specs]
        plan = {
            "inputs": kept,
            "tensors": self.specs,
            "writes": self.write_specs,
            "resizes": [],
            "returns": self.returns,
            "random_numbers": self.random_numbers,
            "checks": self.checks,
        }
        return plan, compiled.executable

    def _trace(self, *arrays: Any) -> list[Any]:
        """The program: buffers in, buffers out."""
        queue = iter(arrays)
        buffers = [next(queue) if s.written else None for s in self.storages]
        starts, *scalars, rng = queue
        values: dict[int, Any] = {id(s): v for s, v in zip(self.scalars, scalars, strict=True)}
        begin, at = 0, {}
        for x in self.operands:
            at[x.index] = starts[begin : begin + x.starts]
            begin += x.starts
            values[id(x)] = read(buffers[x.storage], self.storages[x.storage], x, at[x.index])
        arguments = [pytree.tree_map(lambda x: values.get(id(x), x), v) for v in self.values]
        context = Context(
            rng=rng,
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            emulated=compiler.emulated(),
            rows=starts[-1].astype(jnp.int32) if self.with_rows else None,
            row_operands=tuple(values[id(x)] for x in self.operands if x.row_dim >= 0),
            row_dims=tuple(x.row_dim for x in self.operands if x.row_dim >= 0),
        )
        with using(context):
            results, counts = self._results(arguments, context)
        self.random_numbers = context.rng_used
        outputs: list[Any] = []
        self.specs = [self._new_tensor(f, results[p], counts.get(p), outputs, context) for f, p in self.tensors]
        updated: dict[int, Any] = {}
        for operand, fake, position in self.writes:
            if results[position] is values.get(id(operand)):
                continue  # not updated this time, as the statistics of a batch norm that evaluates
            self._refuse_overlap(operand)
            value = self._cast(results[position], fake)
            storage = self.storages[operand.storage]
            current = updated.get(operand.storage, buffers[operand.storage])
            view = at.get(operand.index) if operand.starts else starts
            updated[operand.storage] = write(current, storage, operand, view, value)
        self.write_specs = []
        for index, array in updated.items():
            if array is not None:
                self.write_specs.append((index, len(outputs), self._storage_dtype(index), list(array.shape)))
                outputs.append(array)
        self.checks = self._bounds(arguments, outputs) if _C.debug_mode() else []
        return outputs

    def _bounds(self, arguments: list[Any], outputs: list[Any]) -> list[tuple[int, str, str]]:
        """Debug mode's checks: (output that tells, exception, its words)."""
        told = []
        for check in bounds.checks(self.pure.name(), dict(zip(self.names, arguments, strict=True))):
            told.append((len(outputs), check.error, check.text))
            outputs.append(bounds.worst(check))
        return told

    def _flat_out(self, position: int) -> torch.Tensor:
        return pytree.tree_leaves(self.pure_out, is_leaf=lambda x: x is None)[position]

    def _results(self, arguments: list[Any], context: Context) -> tuple[list[Any], dict[int, Any]]:
        """The functional op's results, flat, and the true row counts of those of unknown size."""
        if self.dynamic:
            compacted = interpret.lower_dynamic(self.op, *self._call(self.op, arguments))
            self._plan_dynamic(compacted)
            return list(compacted.outputs), {i: c for i, c in enumerate(compacted.counts) if c is not None}
        args, kwargs = self._call(self.pure, arguments)
        # Decompositions are traced on fake tensors; rules only look at them.
        stand_ins = self.metas if self.pure.name() in RULES else self._stand_ins(self._fake, "tpu")
        fakes = self._call(self.pure, stand_ins)
        return interpret.lower(self.pure, args, kwargs, fakes, self.pure_out), {}

    def _new_tensor(self, fake: Any, value: Any, count: Any, outputs: list[Any], context: Context) -> tuple[Any, ...]:
        sizes, strides, dtype = list(fake.shape), list(fake.stride()), fake.dtype
        if not _is_dense(sizes, strides):
            strides = list(torch.empty(sizes, device="meta").stride())
        if count is not None:
            return self._counted(fake, value, count, outputs)
        has_rows = self.with_rows and id(fake) in self._row_outputs(context)
        if has_rows and not sizes:
            raise rows.Specialise  # a 0-d result has no rows to leave room in
        dim, grown = context.grown.get(self._position(fake), (0, 0)) if has_rows else (0, 0)
        if value is None or value.size == 0:
            return (-1, dtype, [-1, *sizes[1:]] if has_rows else sizes, strides, [0], -1, grown)
        if dim:
            return self._grown(dtype, value, dim, grown, outputs)
        order = storage_order(tuple(sizes), tuple(strides))
        array = lax.transpose(value, order) if order != sorted(order) else value
        outputs.append(array)
        if has_rows:
            if order and order[0] != 0:
                raise rows.Specialise
            sizes = [-1, *value.shape[1:]]
        return (len(outputs) - 1, dtype, sizes, strides, list(array.shape), -1, grown)

    def _grown(self, dtype: torch.dtype, value: Any, dim: int, grown: int, outputs: list[Any]) -> tuple[Any, ...]:
        """A result whose padded rows lie behind dimensions of one element: the rows come first in the buffer."""
        if any(n != 1 for n in value.shape[:dim]):
            raise rows.Specialise
        strides = list(torch.empty(value.shape, device="meta").stride())
        sizes = [-1 if i == dim else n for i, n in enumerate(value.shape)]
        outputs.append(value.reshape(value.shape[dim:]))
        return (len(outputs) - 1, dtype, sizes, strides, list(value.shape[dim:]), -1, grown)

    def _counted(self, fake: Any, value: Any, count: Any, outputs: list[Any]) -> tuple[Any, ...]:
        outputs += [value, count.astype(jnp.int32)]
        return (
            len(outputs) - 2,
            fake.dtype,
            list(fake.shape),
            list(fake.stride()),
            list(value.shape),
            len(outputs) - 1,
            0,
        )

    def _row_outputs(self, context: Context) -> set[int]:
        flat = pytree.tree_leaves(self.pure_out)
        return {id(flat[i]) for i in (*context.row_outputs, *context.grown)}

    def _position(self, fake: Any) -> int:
        return next(i for i, f in enumerate(pytree.tree_leaves(self.pure_out)) if f is fake)

    def _plan_dynamic(self, compacted: rows.Compacted) -> None:
        """The results of a data-dependent op are known once it is lowered."""
        fakes = [
            None if o is None else torch.empty(o.shape, dtype=dtypes.to_torch(o.dtype), device="meta")
            for o in compacted.outputs
        ]
        if compacted.dim:
            fakes[0] = fakes[0].movedim(0, compacted.dim)  # the rows stay outermost in memory
        self.tensors = [(f, i) for i, f in enumerate(fakes) if f is not None]
        place = {p: k for k, (_, p) in enumerate(self.tensors)}
        self.returns = [("none",) if f is None else ("new", place[i]) for i, f in enumerate(fakes)]

    def _storage_dtype(self, index: int) -> torch.dtype:
        operands = [o for o, _, _ in self.writes if o.storage == index]
        whole = any(o.kind == WHOLE for o in operands)
        storage = self.storages[index]
        return operands[-1].dtype if whole or not storage.written else storage.dtype

    def _cast(self, value: Any, fake: torch.Tensor) -> Any:
        value = value.astype(to_jax(fake.dtype)) if value.dtype != to_jax(fake.dtype) else value
        shape = tuple(fake.shape)
        return value if value.shape == shape else jnp.broadcast_to(value, shape)

    def _meta(self, x: TensorOperand | ScalarOperand) -> Any:
        if isinstance(x, ScalarOperand):
            return x.value if x.is_number else torch.empty((), dtype=x.dtype, device="meta")
        sizes = x.sizes_in(self.storages[x.storage])
        made = torch.empty_strided(sizes, x.strides, dtype=x.dtype, device="meta")
        made = torch._conj(made) if x.conj else made
        return torch._neg_view(made) if x.neg else made

    def _fake(self, x: TensorOperand | ScalarOperand) -> Any:
        if isinstance(x, ScalarOperand) and x.is_number:
            return x.value
        meta = self._meta(x)
        with self.mode:
            if isinstance(x, ScalarOperand):
                return torch.empty((), dtype=x.dtype)
            fake = torch.empty_strided(meta.shape, meta.stride(), dtype=x.dtype, device="tpu")
        fake = torch._conj(fake) if x.conj else fake
        return torch._neg_view(fake) if x.neg else fake

    def _call(self, op: OpOverload, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of `op`, which has those of this call or fewer, by name, and those of factories."""
        named = dict(zip(self.names, values, strict=True))
        if op is self.pure and op is not self.op:
            position = self.names.index(self.functional.writes[0][0])
            written, given = self.values[position], values[position]
            device = given.device if isinstance(given, torch.Tensor) else None
            named = {
                "dtype": getattr(written, "dtype", None),
                "layout": None,
                "device": device,
                "pin_memory": None,
                **named,
            }
        args = [named[a.name] for a in op._schema.arguments if not a.kwarg_only]
        kwargs = {a.name: named[a.name] for a in op._schema.arguments if a.kwarg_only}
        return args, kwargs

    def _run(self, op: OpOverload, fakes: Sequence[Any]) -> Any:
        args, kwargs = self._call(op, fakes)
        return op(*args, **kwargs)

    def _positions(self, out: Any) -> list[list[int]]:
        """For each return of the functional op, the positions of its tensors in the flat results."""
        returns = out if isinstance(out, (tuple, list)) and len(self.pure._schema.returns) > 1 else [out]
        result, at = [], 0
        for r in returns:
            count = len(pytree.tree_leaves(r, is_leaf=lambda x: x is None))
            result.append(list(range(at, at + count)))
            at += count
        return result

    def _returns(self, by_name: dict[str, Any], positions: list[list[int]]) -> list[Any]:
        if self.dynamic:
            return []
        schema_returns = self.op._schema.returns
        if not schema_returns:
            return []
        outs = self.out if isinstance(self.out, (tuple, list)) and len(schema_returns) > 1 else [self.out]
        sources = self.functional.returns if self.functional else tuple(range(len(schema_returns)))
        result = []
        for out, source in zip(outs, sources, strict=True):
            if isinstance(source, str):
                operand = by_name[source][0]
                result.append(
                    ("list", [("argument", o.index) for o in operand])
                    if isinstance(operand, list)
                    else ("argument", operand.index)
                )
            elif isinstance(out, (list, tuple)):
                result.append(("list", [self._new(o, p) for o, p in zip(out, positions[source], strict=True)]))
            else:
                result.append(self._new(out, positions[source][0]))
        return result

    def _new(self, fake: Any, position: int) -> tuple[Any, ...]:
        if fake is None:
            return ("none",)
        if isinstance(fake, int):
            return ("int", fake)
        self.tensors.append((fake, position))
        return ("new", len(self.tensors) - 1)


def _spec(x: TensorOperand | ScalarOperand, storages: list[Storage]) -> Any:
    if isinstance(x, ScalarOperand):
        return jax.ShapeDtypeStruct((), to_jax(x.dtype), weak_type=x.is_number)
    return jax.ShapeDtypeStruct(x.sizes_in(storages[x.storage]), to_jax(x.dtype))


def _bytes(storage: Storage) -> int:
    return math.prod(storage.dims) * storage.dtype.itemsize


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in sorted(zip(sizes, strides, strict=True), key=operator.itemgetter(1)):
        if size > 1 and stride != expected:
            return False
        expected *= size if size > 1 else 1
    return math.prod(sizes) > 0


def _stripped(name: str) -> str:
    """The functional name an in-place foreach or composite op most likely has."""
    packet, dot, overload = name.partition(".")
    if packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    return packet + dot + overload


def _functional_name(name: str) -> str:
    op = variants.find(name)
    if not variants.mutates(op):
        return name
    functional = variants.functional(op)
    return functional.op.name() if functional else name
