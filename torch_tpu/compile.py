"""torch.compile's backend "tpu": each graph that AOTAutograd makes, forward or backward, becomes one XLA program.

A graph becomes an op of its own, whose lowering is that of its nodes: it takes the way of every other op, through
signature, caches and launch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from . import errors
from .lowering import interpret, load_rules
from .lowering.registry import RULES, Rule

_library = torch.library.Library("torch_tpu", "FRAGMENT")


def backend(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, backend="tpu", dynamic=False)`. NotImplementedError for options and for dynamic shapes."""
    from torch._dynamo.backends.common import aot_autograd

    if any(options.values()):
        raise NotImplementedError(f"torch.compile's mode and options are not supported by backend 'tpu': {options}")
    load_rules()
    return aot_autograd(fw_compiler=compile_graph)(graph, inputs)


def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    """A functional graph of aten ops as a function of a list of its inputs, which it empties, to a list of its outputs.

    The program is made at the first call. NotImplementedError for symbolic sizes and nodes that are no ops.
    """
    from functorch.compile import make_boxed_func

    _refuse(graph, inputs)
    outputs = pytree.tree_leaves(graph.graph.output_node().args[0], is_leaf=lambda x: x is None)
    computed = list(dict.fromkeys(n for n in outputs if isinstance(n, Node) and n.op != "placeholder"))
    for node in computed:
        if node.meta["val"].device.type != "tpu":
            raise NotImplementedError(f"a result of a graph compiled by backend 'tpu' is on the CPU: {node}")
    op = _op(graph, computed) if computed else None
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]

    def run(*arguments: Any) -> list[Any]:
        values = dict(zip(placeholders, arguments, strict=True))
        if op is not None:
            values.update(zip(computed, op(_on_device(arguments)), strict=True))
        return [values[x] if isinstance(x, Node) else x for x in outputs]

    return make_boxed_func(run)


def _on_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors on the CPU that a graph moves are moved before; those of no dimension go with any program."""
    device = next((x.device for x in tensors if x.device.type == "tpu"), torch.device("tpu"))
    return [x if x.device.type == "tpu" or x.ndim == 0 else x.to(device) for x in tensors]


def _refuse(graph: GraphModule, inputs: Sequence[Any]) -> None:
    if not all(isinstance(x, torch.Tensor) for x in inputs) or any(
        isinstance(n, torch.SymInt) for x in inputs for n in x.shape
    ):
        raise NotImplementedError("backend 'tpu' compiles for fixed shapes: torch.compile(..., dynamic=False)")
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            raise NotImplementedError(f"{node.target} is not supported by backend 'tpu'")


def _op(graph: GraphModule, computed: list[Node]) -> Callable[[list[Any]], list[torch.Tensor]]:
    """The graph as an op of the inputs that gives the values of the `computed` nodes. Alike graphs are one op."""
    program = GraphModule(graph, _with_outputs(graph.graph, computed))
    with unset_fake_temporarily():
        name = f"graph_{_digest(program)}"
    qualified = f"torch_tpu::{name}"
    if qualified not in RULES:
        promised = [n.meta["val"] for n in computed]
        _library.define(f"{name}(Tensor[] inputs) -> Tensor[]")
        _library.impl(name, lambda inputs: errors.to_meta(promised), "Meta")
        RULES[qualified] = Rule(lambda inputs: interpret.interpret(program, inputs), random=True)
    return getattr(torch.ops.torch_tpu, name).default


def _with_outputs(graph: torch.fx.Graph, computed: list[Node]) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    nodes: dict[Node, Node] = {}
    copied.graph_copy(graph, nodes)
    copied.output(tuple(nodes[n] for n in computed))
    return copied


def _digest(program: GraphModule) -> str:
    """What decides the results: the nodes with their shapes, and the constants."""
    parts: list[Any] = [program.code]
    for node in program.graph.nodes:
        leaves = pytree.tree_leaves(node.meta.get("val"))
        parts += [(tuple(x.shape), x.stride(), x.dtype) for x in leaves if isinstance(x, torch.Tensor)]
        if node.op == "get_attr":
            value = getattr(program, node.target)
            parts.append(value.detach().cpu().view(torch.uint8).numpy().tobytes() if value.ndim else value.item())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
