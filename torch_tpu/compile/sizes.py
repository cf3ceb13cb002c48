"""The symbolic sizes of a graph: their values at a call, and graphs with the values put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import resolve_unbacked_bindings
from torch.utils._sympy.symbol import SymT, symbol_is_type

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
Symbols = dict[Any, int | float]


class Sizes:
    """Where the symbols of a graph take their values from: its inputs, and results of ops that depend on values."""

    def __init__(self, placeholders: Sequence[Node], graph: GraphModule) -> None:
        self._sources: list[tuple[Any, int, int]] = []  # (symbol, input, dimension or -1 for a number)
        _resolve_unbacked(graph)
        found = set()
        for i, node in enumerate(placeholders):
            for dim, size in _sizes(node.meta["val"]):
                symbol = size.node.expr
                if symbol.is_Symbol and symbol not in found:
                    found.add(symbol)
                    self._sources.append((symbol, i, dim))
        self.symbolic = bool(self._sources) or any(n.meta.get("unbacked_bindings") for n in graph.graph.nodes)

    def bind(self, inputs: Sequence[Any]) -> Symbols:
        """The values of the symbols in a call with these inputs."""
        return {s: inputs[i] if dim < 0 else inputs[i].shape[dim] for s, i, dim in self._sources}

    def bind_unbacked(self, node: Node, value: Any, symbols: Symbols) -> None:
        """Adds the symbols that a node's value defines."""
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            found = pytree.key_get(value, path)
            symbols[symbol] = found if isinstance(found, float) else int(found)


def _resolve_unbacked(graph: GraphModule) -> None:
    """The symbols that nodes define, by the names that later nodes know them by: tracing makes some twice."""
    for node in graph.graph.nodes:
        if bindings := node.meta.get("unbacked_bindings"):
            mode = detect_fake_mode(node.meta["val"])
            shape_env = mode.shape_env if mode else node.meta["val"].node.shape_env
            node.meta["unbacked_bindings"] = resolve_unbacked_bindings(shape_env, bindings)


def _sizes(value: Any) -> list[tuple[int, torch.SymInt]]:
    if isinstance(value, torch.SymInt):
        return [(-1, value)]
    if isinstance(value, torch.Tensor):
        return [(d, n) for d, n in enumerate(value.shape) if isinstance(n, torch.SymInt)]
    return []


def number(value: Any, symbols: Symbols) -> Any:
    """A number, or a symbolic one as a number."""
    if not isinstance(value, Symbolic):
        return value
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    return kind(value.node.expr.xreplace(symbols))


def free_symbols(nodes: Sequence[Node]) -> set[Any]:
    """The symbols in the values of nodes, and of the graphs inside them."""
    found: set[Any] = set()
    for node in nodes:
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            is_tensor = isinstance(leaf, torch.Tensor)
            numbers = [*leaf.shape, *leaf.stride()] if is_tensor else [leaf]
            for n in numbers:
                if isinstance(n, Symbolic):
                    found |= n.node.expr.free_symbols
    return found


def is_float(symbol: Any) -> bool:
    """Whether a symbol is for a float, as of `item()`: no size of a program's."""
    return symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT))


def concrete(value: Any, symbols: Symbols, device: str | None = None) -> Any:
    """A fake value with its symbolic sizes put in: tensors of the mode under way."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return number(x, symbols)
        sizes, strides = ([number(n, symbols) for n in of] for of in (x.shape, x.stride()))
        return torch.empty_strided(sizes, strides, dtype=x.dtype, device=device or x.device)

    return pytree.tree_map(leaf, value)


def specialised(graph: GraphModule, symbols: Symbols) -> GraphModule:
    """The graph with numbers for symbolic sizes, in its nodes' arguments and values, and so in the graphs inside it.

    Nodes' values and arguments as they were are in `meta["symbolic"]` and `meta["symbolic_args"]`.
    """
    if not symbols:
        return graph
    new, mapped = Graph(), {}
    root: dict[str, Any] = {}

    def argument(node: Node) -> Any:
        return mapped[node]

    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, Symbolic):
                mapped[node] = number(value, symbols)
                continue
            if node.op == "get_attr":
                inner = getattr(graph, node.target)
                root[node.target] = specialised(inner, symbols) if isinstance(inner, GraphModule) else inner
            if node.op == "placeholder":
                made = new.placeholder(node.name)
            else:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), argument)
                made = new.create_node(node.op, node.target, args, kwargs, node.name)
            given = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            made.meta = {**node.meta, "val": concrete(value, symbols), "symbolic": value, "symbolic_args": given}
            mapped[node] = made
    return GraphModule(root, new)


def bucket(size: int) -> int:
    """The bound of the program for a size: the next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())
