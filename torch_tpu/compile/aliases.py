"""Results of a graph that are views of one tensor of it: they share its storage, as eagerly.

AOTAutograd sees to that where a gradient is needed and for views of inputs; in other graphs it is the backend's part.
"""

from __future__ import annotations

import operator
from collections import defaultdict

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

# Nodes with this in their meta run op by op: they are views of what a program gives.
VIEW = "torch_tpu_view"


def share_storage(graph: GraphModule) -> None:
    """Make results with a common base views of it, taken after the programs. What is inside programs stays there."""
    output = graph.graph.output_node()
    by_base: dict[Node, set[Node]] = defaultdict(set)
    for result in output.args[0]:
        if isinstance(result, Node) and isinstance(result.meta.get("val"), torch.Tensor):
            by_base[base_of(result)].add(result)
    copies: dict[Node, Node] = {}
    with graph.graph.inserting_before(output):
        for base, results in by_base.items():
            if len(results) > 1 and base.op == "call_function":
                copies |= {x: _view(graph, base, x) for x in results if x is not base}
    output.args = (type(output.args[0])(copies.get(x, x) for x in output.args[0]),)


def base_of(node: Node) -> Node:
    """The node that a chain of views starts from."""
    while (source := _source(node)) is not None:
        node = source
    return node


def _source(node: Node) -> Node | None:
    """What a node is a view of."""
    if node.target is operator.getitem:
        return node.args[0] if _source(node.args[0]) is not None else None
    if not isinstance(node.target, OpOverload) or not node.target._schema.returns:
        return None
    alias = node.target._schema.returns[0].alias_info
    return node.args[0] if alias is not None and not alias.is_write else None


def _view(graph: GraphModule, base: Node, node: Node) -> Node:
    if node is base:
        return base
    of = _view(graph, base, node.args[0])
    made = graph.graph.node_copy(node, lambda n: of if n is node.args[0] else n)
    made.meta = {**node.meta, VIEW: True}
    return made
