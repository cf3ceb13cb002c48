"""Lower one functional op, or a graph of them, with the table of rules; what has none goes through decompositions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from .. import lines
from . import dtypes, rows
from ._jax import jax, jnp
from .context import context
from .registry import DYNAMIC_RULES, HIGHER_ORDER, RULES, Rule

DROPPED = frozenset({"generator", "layout", "device", "pin_memory", "memory_format", "non_blocking"})


def lower(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], fakes: Sequence[Any], out: Any) -> list[Any]:
    """Arrays of a functional op's returns, flat.

    args, kwargs: as the op is called, with arrays for tensors. fakes: (args, kwargs) with fake tensors for tensors.
    out: the fake result of that call.
    """
    flat_out = pytree.tree_leaves(out)
    rule = RULES.get(op.name())
    operands = [x for x in pytree.tree_leaves((args, kwargs)) if is_array(x)]
    rows.admit(rule.rows if rule else None, operands, flat_out)
    if rule is not None:
        values = _call(op, rule, args, kwargs, flat_out, fakes)
    else:
        graph = decompose(op, *fakes)
        values = interpret(graph, operands)
    _check(op, values, flat_out)
    return values


def lower_dynamic(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> rows.Compacted:
    """The results, padded, and their true sizes, of an op whose output size depends on values (`is_dynamic`)."""
    positional, named = bind(op, args, kwargs)
    return DYNAMIC_RULES[op.name()].fn(*positional, **named)


def interpret(graph: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Arrays of a graph's outputs, flat. inputs: one array a placeholder."""

    def lowered(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return pytree.tree_unflatten(call(node, args, kwargs), pytree.tree_structure(node.meta.get("val")))

    return walk(graph, inputs, constant, lowered)


def walk(
    graph: GraphModule, inputs: Sequence[Any], constant: Callable[[torch.Tensor], Any], call: Callable[..., Any]
) -> list[Any]:
    """The values of a graph's outputs, flat.

    inputs: those of its placeholders. constant: gives that of a tensor the graph holds. call: takes a node with the
    values of its arguments, and gives its own.
    """
    values: dict[Node, Any] = {}
    queue = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(queue)
        elif node.op == "get_attr":
            found = functools.reduce(getattr, node.target.split("."), graph)
            values[node] = found if isinstance(found, GraphModule) else constant(found)
        elif node.op == "output":
            leaves = pytree.tree_leaves(node.args[0], is_leaf=_is_none)
            return [values[x] if isinstance(x, Node) else x for x in leaves]
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        else:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
            values[node] = call(node, args, kwargs)
    raise RuntimeError("the graph has no output")


def decompose(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> GraphModule:
    """The op as a graph of ops that have rules, traced on fake tensors. NotImplementedError if that can't be had."""
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    positions = [i for i, x in enumerate(leaves) if isinstance(x, FakeTensor)]

    def run(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for i, t in zip(positions, tensors, strict=True):
            filled[i] = t
        a, k = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(_implementation(op)(*a, **k), is_leaf=_is_none)

    # Tensors that the decomposition makes must be fake as well.
    with leaves[positions[0]].fake_mode if positions else nullcontext():
        trace = make_fx(torch.func.functionalize(run), decomposition_table=decompositions())
        traced = trace(*[leaves[i] for i in positions])
    if any(n.op == "call_function" and n.target is op for n in traced.graph.nodes):
        raise not_implemented(op)
    return traced


def is_decomposed(op: OpOverload) -> bool:
    """Whether an op without a rule is one of PyTorch's own that it composes of others."""
    try:
        return op.namespace in ("aten", "prims") and _implementation(op) is not None
    except NotImplementedError:
        return False


def not_implemented(op: OpOverload) -> NotImplementedError:
    """The error of an op that has neither a rule nor a decomposition."""
    return NotImplementedError(
        f"{op.name()} is not implemented on device 'tpu' yet. Set TORCH_TPU_FALLBACK=cpu (or call "
        "torch.tpu.set_fallback('cpu')) to run such ops on the CPU, with one warning per op, or move the tensors: "
        "x.cpu()"
    )


@functools.cache
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """PyTorch's decompositions of the ops that have no rule."""
    from torch._decomp import global_decomposition_table

    table = global_decomposition_table["post_autograd"]
    return {op: fn for op, fn in table.items() if isinstance(op, OpOverload) and op.name() not in RULES}


def _implementation(op: OpOverload) -> Callable[..., Any]:
    if op in decompositions():
        return decompositions()[op]
    # The composite kernels of prims call the aten op they stand for, past the tracer.
    keys = () if op.namespace == "prims" else ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    for key in keys:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
            return functools.partial(op._op_dk, getattr(torch._C.DispatchKey, key))
    raise not_implemented(op)


def call(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Arrays of the results, flat, of a graph's node for these arguments."""
    op, out = node.target, node.meta.get("val")
    if isinstance(op, HigherOrderOperator) and op.name() in HIGHER_ORDER:
        with _promising(pytree.tree_leaves(out)):
            return HIGHER_ORDER[op.name()](*args, **kwargs)
    if isinstance(op, OpOverload):
        fakes = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        # Reports name the op and the user's line by what the program says of where its instructions come from.
        with jax.named_scope(lines.origin(op.name(), node.meta.get("stack_trace"))):
            return lower(op, args, kwargs, fakes, out)
    raise NotImplementedError(f"{op} inside a program is not implemented on device 'tpu'")


@contextmanager
def _promising(outs: list[Any], ins: Sequence[Any] = ()) -> Iterator[None]:
    """What `context()` says of the op that is lowered now."""
    ctx = context()
    previous = ctx.outs, ctx.ins
    ctx.outs, ctx.ins = outs, ins
    try:
        yield
    finally:
        ctx.outs, ctx.ins = previous


def _call(
    op: OpOverload,
    rule: Rule,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outs: list[Any],
    fakes: Sequence[Any] | None,
) -> list[Any]:
    positional, named = bind(op, args, kwargs)
    with _promising(outs, () if fakes is None else fakes[0]):
        return pytree.tree_leaves(rule.fn(*positional, **named), is_leaf=_is_none)


def bind(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments a lowering gets, defaults filled in."""
    positional, named = [], {}
    for i, argument in enumerate(op._schema.arguments):
        if argument.name in DROPPED:
            continue
        if i < len(args):
            value = args[i]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        else:
            value = argument.default_value
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def _check(op: OpOverload, values: list[Any], outs: list[Any]) -> None:
    # to_jax says which dtypes there are not.
    promised = [(tuple(o.shape), dtypes.to_jax(o.dtype)) if isinstance(o, torch.Tensor) else None for o in outs]
    got = [(tuple(v.shape), v.dtype) if is_array(v) else None for v in values]
    for i in context().grown:
        promised[i] = got[i]  # the room of the padded operands, not theirs and more
    if promised != got and any(p is not None for p in promised):
        raise RuntimeError(
            f"internal error: {op.name()} was lowered to {got}, PyTorch promises {promised}: please report it"
        )


def is_array(x: Any) -> bool:
    """True for a JAX array or tracer (and numpy arrays)."""
    return hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, torch.Tensor)


def constant(tensor: torch.Tensor) -> Any:
    """The array of a tensor on the CPU."""
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy(), dtypes.to_jax(tensor.dtype))
    return jnp.asarray(tensor.detach().numpy())


def _is_none(x: Any) -> bool:
    return x is None
