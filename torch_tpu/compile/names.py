"""What the graphs of torch.compile are called in the compile log: `loss_of (train.py:12), backward`."""

from __future__ import annotations

import re
from pathlib import Path

from torch.fx import GraphModule

from .. import lines

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def name_of(graph: GraphModule, is_backward: bool) -> str:
    """The function that was compiled, as its first node's stack trace tells, and which of its graphs it is."""
    direction = "backward" if is_backward else "forward"
    traces = (node.meta.get("stack_trace") for node in graph.graph.nodes)
    frames = next((found for trace in traces if trace and (found := _FRAME.findall(trace))), None)
    if frames is None:
        return f"a graph, {direction}"
    file, line, function = next((f for f in frames if lines.is_users(f[0])), frames[0])
    return f"{function} ({Path(file).name}:{line}), {direction}"
