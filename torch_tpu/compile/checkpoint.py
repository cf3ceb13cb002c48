"""Activation checkpointing: what backward computes again stays apart from forward, with the same random numbers.

AOTAutograd's partitioner wraps random ops, `run_and_save_rng_state` in forward and `run_with_rng_state` in backward. It
makes these nodes without values, and takes the generator's state for one of the CPU; on the device it is 16 bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch.partitioners import must_recompute
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

STATE_BYTES = 16

_library = torch.library.Library("torch_tpu", "FRAGMENT")
_library.define("barrier(Tensor[] values) -> Tensor[]")
_library.impl("barrier", lambda values: [torch.empty_like(x) for x in values], "Meta")


def give_values(graph: GraphModule) -> None:
    """Values for the nodes of random ops that are computed again, and for the generator's states."""
    for node in graph.graph.find_nodes(op="call_function", target=run_and_save_rng_state):
        results = {n.args[1]: n for n in node.users if n.target is operator.getitem}
        value = results[1].meta["val"]
        if device := _device(value):
            results[0].meta["val"] = _state(graph, device)
        node.meta["val"] = (results[0].meta["val"], value)
    for node in graph.graph.find_nodes(op="call_function", target=run_with_rng_state):
        state, op, *args = node.args
        value = node.meta["val"] = _value(graph, op, args, node.kwargs)
        if device := _device(value):
            state.meta["val"] = _state(graph, device)


def hold_back(graph: GraphModule) -> None:
    """Let nodes that are computed again wait for the gradient that needs them.

    XLA would find them equal to those of forward in the same program and keep the latter, or compute them all at once.
    """
    nodes = list(graph.graph.nodes)
    # In a graph of backward, all that is marked is a copy; in one of both passes, what is backward's.
    is_backward = any(n.op == "placeholder" and n.name.startswith("tangents") for n in nodes)
    again = {n for n in nodes if must_recompute(n) and (is_backward or n.meta.get("autograd_backward"))}
    for run, reader in _runs(nodes, again):
        values = dict.fromkeys(n for x in run for n in x.all_input_nodes if n not in run and _is_on_device(n))
        gradients = [n for n in reader.all_input_nodes if n not in again and n not in values and _is_on_device(n)]
        if values and gradients:
            _insert_barrier(graph, run, list(values), gradients)


def _runs(nodes: Sequence[Node], again: set[Node]) -> Iterator[tuple[list[Node], Node]]:
    """Stretches of nodes that are computed again, and the node after each, which is why they are."""
    run: list[Node] = []
    for node in nodes:
        if node in again:
            run.append(node)
        elif run:
            yield run, node
            run = []


def _is_on_device(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _insert_barrier(graph: GraphModule, run: list[Node], values: list[Node], gradients: list[Node]) -> None:
    with graph.graph.inserting_before(run[0]):
        operands = [*values, *gradients]
        barrier = graph.graph.call_function(torch.ops.torch_tpu.barrier.default, (operands,))
        barrier.meta["val"] = [n.meta["val"] for n in operands]
        for i, value in enumerate(values):
            held = graph.graph.call_function(operator.getitem, (barrier, i))
            held.meta["val"] = value.meta["val"]
            for node in run:
                node.replace_input_with(value, held)


def _device(value: Any) -> torch.device | None:
    return next((x.device for x in tree_leaves(value) if x.device.type == "tpu"), None)


def _state(graph: GraphModule, device: torch.device) -> FakeTensor:
    with _mode(graph):
        return torch.empty(STATE_BYTES, dtype=torch.uint8, device=device)


def _value(graph: GraphModule, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    fake_args, fake_kwargs = map_arg((args, kwargs), lambda n: n.meta["val"])
    with _mode(graph):
        return op(*fake_args, **fake_kwargs)


def _mode(graph: GraphModule) -> Any:
    return detect_fake_mode([n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")])


def wrapped_op(node: Node) -> Any:
    """The op inside a node of either kind, None for other nodes."""
    return {run_and_save_rng_state: node.args[:1], run_with_rng_state: node.args[1:2]}.get(node.target, (None,))[0]
