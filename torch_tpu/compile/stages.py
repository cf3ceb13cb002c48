"""A graph in stages: parts that are one XLA program each, and between them what runs op by op.

Op by op run: work on CPU tensors, ops without a lowering (custom ops, those of host.py), ops whose result sizes depend
on values, and ops that take floats of `item()`.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from .. import host
from ..lowering import interpret
from ..lowering.registry import HIGHER_ORDER, RULES
from . import aliases, checkpoint
from .repeats import split, token
from .sizes import Symbolic, free_symbols, is_float

Copies = list[tuple[Node, Node]]


@dataclass
class Stage:
    """Nodes in their order.

    is_program: they are one XLA program. results: the nodes whose values others may read, the same in alike stages.
    later: what the stages after this one read.
    """

    nodes: list[Node]
    is_program: bool
    results: list[Node] = field(default_factory=list)
    later: set[Node] = field(default_factory=set)

    def may_write(self, to: Node, value: Node) -> bool:
        """Whether the program of this stage may give an input of the graph its new value."""
        return to.meta["val"].device.type == "tpu" and value in self.nodes and to not in self.later


def divided(graph: GraphModule) -> tuple[list[Stage], Copies]:
    """The stages of a graph, in order, and what is copied to its inputs at its end: (input, its new value)."""
    copies: Copies = []
    number: dict[Node, int] = {}
    known: dict[Node, int] = {}  # the stage after which a size is
    has_floats = any(map(is_float, free_symbols(list(graph.graph.nodes))))
    kinds = {n: _is_program(n, has_floats) for n in graph.graph.nodes if _computes(n)}
    random_stage = 0
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
            to, value = node.args[:2]
            node.replace_all_uses_with(to)
            copies.append((to, value))
        elif node in kinds:
            # Programs have odd numbers. A node comes no earlier than what it reads, and random ones keep their order.
            least = max((number.get(n, known.get(n, 0)) for n in node.all_input_nodes), default=0)
            if _is_random(node):
                least = random_stage = max(least, random_stage)
            number[node] = least + (least % 2 != kinds[node])
            if _is_random(node):
                random_stage = number[node]
        else:
            known[node] = max((number.get(n, known.get(n, 0)) for n in node.all_input_nodes), default=0)
    numbered: dict[int, list[Node]] = defaultdict(list)
    for node, n in number.items():
        numbered[n].append(node)
    found: list[Stage] = []
    for n, nodes in sorted(numbered.items()):
        found += _programs(split(nodes)) if n % 2 else [Stage(nodes, False)]
    read: set[Node] = set()
    for stage in reversed(found):
        stage.later = set(read)
        read.update(x for node in stage.nodes for x in node.all_input_nodes)
    return found, copies


def _programs(parts: Sequence[list[Node]]) -> list[Stage]:
    """A stage for each part. Which values are read outside may differ between layers: alike ones give all of them."""
    read: dict[Any, set[int]] = defaultdict(set)
    kinds = [tuple(map(token, part)) for part in parts]
    for part, kind in zip(parts, kinds, strict=True):
        inside = set(part)
        read[kind].update(i for i, node in enumerate(part) if _is_read_outside(node, inside))
    return [Stage(part, True, [part[i] for i in sorted(read[kind])]) for part, kind in zip(parts, kinds, strict=True)]


def _is_read_outside(node: Node, inside: set[Node]) -> bool:
    is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
    return is_tensor and any(u not in inside and u.target is not torch.ops.aten.copy_.default for u in node.users)


def _computes(node: Node) -> bool:
    is_size = isinstance(node.meta.get("val"), Symbolic) and not node.meta.get("unbacked_bindings")
    return node.op == "call_function" and node.target is not torch.ops.aten.copy_.default and not is_size


def _is_program(node: Node, has_floats: bool) -> bool:
    if node.meta.get("unbacked_bindings") or aliases.VIEW in node.meta:
        return False
    if has_floats and any(map(is_float, free_symbols([node, *node.all_input_nodes]))):
        return False
    if node.target in _OF_STORAGE and aliases.base_of(node.args[0]).op == "placeholder":
        return False  # reaches what an input that is a view doesn't show
    if node.target is operator.getitem:
        return _is_program(node.args[0], has_floats)
    if isinstance(node.target, HigherOrderOperator):
        op = checkpoint.wrapped_op(node)
        inside = all(_is_lowered(g, node.target.name() in _CONTROL_FLOW) for g in _graphs_inside(node))
        if node.target.name() not in HIGHER_ORDER or not inside or (op is not None and op.name() not in RULES):
            return False
    elif not (isinstance(node.target, OpOverload) and _has_lowering(node.target)):
        return False
    made = [x for x in pytree.tree_leaves(node.meta.get("val")) if isinstance(x, torch.Tensor)]
    read = [n.meta.get("val") for n in node.all_input_nodes if n.op != "get_attr"]
    read = [x for x in read if isinstance(x, torch.Tensor) and x.ndim]
    on_device = all(x.device.type == "tpu" for x in (*made, *read))
    return bool(made) and on_device and not _is_strided_view(node, made)


# How often what is inside runs is only known at run time, and so how many random numbers it draws.
_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "associative_scan", "map_impl"})


def _graphs_inside(node: Node) -> list[GraphModule]:
    found = [getattr(node.graph.owning_module, n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    return [g for g in found if isinstance(g, GraphModule)]


def _is_lowered(graph: GraphModule, is_control_flow: bool) -> bool:
    """Whether the graph of a higher-order op can be part of a program."""
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or isinstance(node.meta.get("val"), Symbolic):
            lowered = not node.meta.get("unbacked_bindings") and node.target not in _READS_VALUES
        elif isinstance(node.target, HigherOrderOperator):
            lowered = node.target.name() in HIGHER_ORDER and all(
                _is_lowered(g, is_control_flow) for g in _graphs_inside(node)
            )
        else:
            lowered = isinstance(node.target, OpOverload) and _has_lowering(node.target)
        if not lowered or (is_control_flow and _is_random(node)):
            return False
    return True


_READS_VALUES = frozenset({torch.ops.aten._local_scalar_dense.default})


def _has_lowering(op: OpOverload) -> bool:
    if op.name().removeprefix("aten::").removesuffix(".default") in host.OPS:
        return False
    return op.name() in RULES or interpret.is_decomposed(op)


def _is_strided_view(node: Node, made: Sequence[torch.Tensor]) -> bool:
    """Whether a result of the graph has gaps or repeats in memory, as of `expand`: no program gives it, a view does."""
    is_result = any(user.op == "output" for user in node.users)
    return is_result and node.target in _VIEWS and any(not _is_dense(x) for x in made)


_OF_STORAGE = frozenset(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
_VIEWS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("expand", "as_strided", "permute", "view", "unsqueeze", "squeeze", "diagonal", "t", "detach", "alias")
)


def _is_dense(x: torch.Tensor) -> bool:
    return torch._prims_common.is_non_overlapping_and_dense_or_false(x)


def _is_random(node: Node) -> Any:
    op = checkpoint.wrapped_op(node) or node.target
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags
