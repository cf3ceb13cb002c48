"""Results of a graph that are views: they share the storage of what they are views of, as eagerly.

For views of inputs AOTAutograd sees to that, but where sizes are symbolic it takes offset and strides from what the
graph gives. For views of one tensor of the graph it does where a gradient is needed.
"""

from __future__ import annotations

import operator
from collections import defaultdict

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from .sizes import free_symbols

# Nodes with this in their meta run op by op: they are views of what a program gives.
VIEW = "torch_tpu_view"


def share_inputs(graph: GraphModule, results: int | None) -> None:
    """Make the first results, or all, that are views of inputs of symbolic sizes such views, also of written inputs."""
    if not free_symbols(graph.graph.find_nodes(op="placeholder")):
        return
    output = graph.graph.output_node()
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written = {value: to for to, value in (n.args[:2] for n in copies)}
    made = list(output.args[0])
    with graph.graph.inserting_before(output):
        for i, node in enumerate(made[:results]):
            if isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor):
                base = base_of(node)
                of = written.get(base, base)
                if node is not base and of.op == "placeholder":
                    made[i] = _view(graph, base, node, of)
    output.args = (type(output.args[0])(made),)


def is_of_input(node: Node) -> bool:
    """Whether a node is an input, or a view of one that is made as such."""
    return node.op == "placeholder" or (VIEW in node.meta and base_of(node).op == "placeholder")


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
                copies |= {x: _view(graph, base, x, base) for x in results if x is not base}
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


def _view(graph: GraphModule, base: Node, node: Node, of: Node) -> Node:
    """The views between a base and a node, of another base."""
    if node is base:
        return of
    source = _view(graph, base, node.args[0], of)
    made = graph.graph.node_copy(node, lambda n: source if n is node.args[0] else n)
    made.meta = {**node.meta, VIEW: True}
    return made
