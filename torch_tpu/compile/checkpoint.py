"""Activation checkpointing: random ops that backward computes again with the numbers of forward.

AOTAutograd's partitioner wraps them, `run_and_save_rng_state` in forward and `run_with_rng_state` in backward. It makes
these nodes without values, and takes the generator's state for one of the CPU; on the device it is 16 bytes there.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

STATE_BYTES = 16


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
