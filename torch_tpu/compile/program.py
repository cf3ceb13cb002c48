"""A part of a graph as an op of its own: it takes the way of every other op, through signature, caches and launch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ..lowering import interpret
from ..lowering.registry import RULES, Rule
from . import padding
from .sizes import Symbolic, Symbols, concrete, free_symbols, number, specialised
from .stages import Stage

_library = torch.library.Library("torch_tpu", "FRAGMENT")


class Program:
    """The op of a stage: `op(written, inputs, sizes)`, lists of tensors and of integers, gives the list `results`.

    inputs, results: nodes of the graph. written: pairs of an input and the node whose value it takes; these inputs come
    first among the program's. symbols: whose values `sizes` are.
    """

    def __init__(self, graph: GraphModule, stage: Stage, written: Sequence[tuple[Node, Node]]) -> None:
        inside, targets = set(stage.nodes), [to for to, _ in written]
        read = dict.fromkeys(n for node in stage.nodes for n in node.all_input_nodes)
        self.inputs = [n for n in read if is_value(graph, n) and n not in inside and n not in targets]
        self.results = stage.results
        outputs = [*self.results, *(value for _, value in written)]
        self.graph = _part(graph, [*targets, *self.inputs], stage.nodes, outputs)
        self.symbols = sorted(free_symbols(list(self.graph.graph.nodes)), key=str)
        with unset_fake_temporarily():
            digest = _digest(self.graph, len(self.results))
            self.name = f"graph_{digest}"
            ops = _ops(digest, self.graph, len(self.results), self.symbols)
            self.op, self.padded_op = ops[0], ops[-1]
            self.op_names = [op.name() for op in ops]
            self.is_anchored = not targets and not self.inputs
            if self.is_anchored:
                made = pytree.tree_leaves([n.meta["val"] for n in self.results])
                self.op = _anchored(self.op, made[0].device)

    def run(self, written: list[Any], inputs: list[Any], symbols: Symbols) -> list[torch.Tensor]:
        """The results for these sizes, which the program is made for."""
        return self.op(written, inputs, [symbols[s] for s in self.symbols])


def is_value(graph: GraphModule, node: Node) -> bool:
    """A tensor that programs take and give. Constants on the CPU are part of programs, and sizes are numbers."""
    if node.op == "get_attr":
        constant = getattr(graph, node.target)
        return isinstance(constant, torch.Tensor) and constant.device.type == "tpu"
    return isinstance(node.meta.get("val"), torch.Tensor)


def _part(graph: GraphModule, inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]) -> GraphModule:
    new, mapped = Graph(), {}

    def put(node: Node) -> Any:
        """The node under a name that is the same in every part that is alike; sizes go by their symbols."""
        value = node.meta.get("val")
        if node not in mapped and isinstance(value, Symbolic):
            if not value.node.expr.free_symbols:
                return number(value, {})
            mapped[node] = new.placeholder(f"v{len(mapped)}")
            mapped[node].meta = {"val": value}
        elif node not in mapped:
            args, kwargs = map_arg((node.args, node.kwargs), put)
            mapped[node] = new.create_node(node.op, node.target, args, kwargs, f"v{len(mapped)}")
            mapped[node].meta = dict(node.meta)
        return mapped[node]

    for i, node in enumerate(inputs):
        mapped[node] = new.placeholder(f"v{i}")
        mapped[node].meta = {"val": getattr(graph, node.target)} if node.op == "get_attr" else dict(node.meta)
    for node in nodes:
        put(node)
    new.output(tuple(mapped[n] for n in outputs))
    return GraphModule(graph, new)


def _ops(digest: str, program: GraphModule, results: int, symbols: Sequence[Any]) -> list[Callable[..., Any]]:
    """The op of a program for exact sizes and, if it has symbols, the one for bounds; alike programs are one.

    That for bounds takes padded inputs, then the true values of the symbols as 0-d tensors; its sizes are the bounds.
    """
    promised = [n.meta["val"] for n in program.graph.output_node().args[0]]

    def with_sizes(sizes: list[int]) -> GraphModule:
        return specialised(program, dict(zip(symbols, sizes, strict=True)))

    def exact(written: list[Any], inputs: list[Any], sizes: list[int]) -> list[Any]:
        return interpret.interpret(with_sizes(sizes), [*written, *inputs])

    def padded(written: list[Any], inputs: list[Any], sizes: list[int]) -> list[Any]:
        counts = (n.astype(np.int32) for n in inputs[len(inputs) - len(symbols) :])
        arrays = [*written, *inputs[: len(inputs) - len(symbols)]]
        try:
            return padding.run(with_sizes(sizes), arrays, dict(zip(symbols, counts, strict=True)))
        except NotImplementedError:
            raise
        except Exception as error:  # what fits the sizes may not fit the bounds, as a slice of a table
            raise padding.Unpadded(str(error)) from error

    def promise(sizes: list[int]) -> list[torch.Tensor]:
        return concrete(promised, dict(zip(symbols, sizes, strict=True)), "meta")

    def promise_padded(sizes: list[int]) -> list[torch.Tensor]:
        try:
            return promise(sizes)
        except RuntimeError as error:  # a difference of sizes may be negative at their bounds
            raise padding.Unpadded(str(error)) from error

    bodies = {"graph": (exact, promise)} | ({"padded": (padded, promise_padded)} if symbols else {})
    return [define(f"{kind}_{digest}", *body, results) for kind, body in bodies.items()]


def _anchored(op: Callable[..., Any], device: torch.device) -> Callable[..., list[torch.Tensor]]:
    """The op of a program that takes no tensors: one that it doesn't read says where it runs."""
    anchor = torch.empty(0, device=device)
    return lambda written, inputs, sizes: op(written, [anchor], sizes)


def define(
    name: str,
    lower: Callable[..., list[Any]],
    promise: Callable[[list[int]], list[torch.Tensor]],
    results: int,
    replace: bool = True,
) -> Callable[..., list[torch.Tensor]]:
    """An op `torch_tpu::name(written, inputs, sizes)` of lists of tensors and of integers.

    lower: takes arrays for tensors; returns the results, then the new values of `written`. promise: the same as meta
    tensors, from the sizes. results: how many the op returns. replace: whether these are taken if there is such an op.
    """
    known = name in _bodies
    if replace or not known:
        _bodies[name] = lower, promise
    if not known:

        def functional(written: list[Any], inputs: list[Any], sizes: list[int]) -> Any:
            made = promised_as(name)(sizes)
            return made[:results], made[results:]

        # Two forms, as all ops have that write to arguments.
        _library.define(f"{name}(Tensor[] written, Tensor[] inputs, int[] sizes) -> (Tensor[], Tensor[])")
        _library.define(f"{name}_(Tensor(a!)[] written, Tensor[] inputs, int[] sizes) -> Tensor[]")
        _library.impl(name, functional, "Meta")
        _library.impl(f"{name}_", lambda *call: functional(*call)[0], "Meta")
        RULES[f"torch_tpu::{name}"] = Rule(lambda *call: lowered_as(name)(*call), random=True)
    return getattr(torch.ops.torch_tpu, f"{name}_").default


_bodies: dict[str, tuple[Callable[..., list[Any]], Callable[[list[int]], list[torch.Tensor]]]] = {}


def lowered_as(name: str) -> Callable[..., list[Any]]:
    """The `lower` of a defined op."""
    return _bodies[name][0]


def promised_as(name: str) -> Callable[[list[int]], list[torch.Tensor]]:
    """The `promise` of a defined op."""
    return _bodies[name][1]


def _digest(program: GraphModule, results: int) -> str:
    """What decides the results: the nodes with their shapes, and the constants."""
    return hashlib.sha256(repr((results, _description(program))).encode()).hexdigest()[:24]


def _description(program: GraphModule) -> list[Any]:
    parts: list[Any] = []
    for node in program.graph.nodes:
        parts.append((node.op, node.name, str(node.target), str(node.args), str(node.kwargs)))
        leaves = pytree.tree_leaves(node.meta.get("val"))
        parts += [(tuple(x.shape), x.stride(), x.dtype) for x in leaves if isinstance(x, torch.Tensor)]
        parts += [str(x) for x in leaves if isinstance(x, Symbolic)]
        if node.op == "get_attr":
            value = getattr(program, node.target)
            if isinstance(value, GraphModule):
                parts += _description(value)
            else:
                parts.append(value.detach().cpu().view(torch.uint8).numpy().tobytes() if value.ndim else value.item())
    return parts
