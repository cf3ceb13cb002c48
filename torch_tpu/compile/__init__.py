"""torch.compile's backend "tpu": each graph that AOTAutograd makes, forward or backward, becomes one XLA program.

stages.py says which nodes of a graph are programs, program.py makes such a part an op, and here is what calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from .. import compile_log
from ..lowering import load_rules
from . import aliases, checkpoint, dynamo
from .buckets import Padded, compact
from .names import name_of
from .plan import Output, Plan, ProgramCall
from .program import Program, is_value
from .sizes import Sizes, Symbolic, number
from .stages import Stage, divided

dynamo.register()


def backend(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, backend="tpu")`; the default for graphs on device "tpu".

    NotImplementedError for options, and for modes other than "default" and "reduce-overhead" (a graph is one launch).
    """
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    if options.pop("mode", None) not in (None, "default", "reduce-overhead") or any(options.values()):
        raise NotImplementedError(
            f"backend 'tpu' of torch.compile takes mode='default' or 'reduce-overhead' and no options, not {options}"
        )
    load_rules()
    from . import saved

    made = aot_autograd(
        **saved.compilers(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with saved.cached(graph):
        return made(graph, inputs)


def is_on_device(graph: GraphModule) -> bool:
    """Whether a graph of Dynamo's has a tensor on device "tpu"."""
    values = (n.meta.get("example_value") for n in graph.graph.nodes)
    return any(x.device.type == "tpu" for v in values for x in tree_leaves(v) if isinstance(x, torch.Tensor))


def compile_graph(
    graph: GraphModule, inputs: Sequence[Any], is_backward: bool = False
) -> Callable[[list[Any]], list[Any]]:
    """A functional graph of aten ops, with `copy_` to its inputs at the end, as a function of a list of its inputs,
    which it empties, to a list of its outputs. Programs are made at the first call.
    """
    checkpoint.give_values(graph)
    checkpoint.hold_back(graph)
    from .saved import CompiledGraph

    kept = torch._guards.TracingContext.try_get()
    leaving = None if is_backward or kept is None or kept.fw_metadata is None else kept.fw_metadata.num_forward
    if not is_backward:
        aliases.share_inputs(graph, leaving)
    return CompiledGraph(graph, name_of(graph, is_backward), leaving)


def compile_inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    """`compile_graph` for a graph that no backward follows."""
    aliases.share_storage(graph)
    return compile_graph(graph, inputs)


class _Runner:
    """The calls of a graph, in order. Values live in a list, at a place each."""

    def __init__(self, graph: GraphModule, name: str) -> None:
        self.graph, self.name = graph, name
        self.place = {n: i for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
        self.inputs = len(self.place)
        self.constants = []
        for node in graph.graph.nodes:
            if node.op == "get_attr" and is_value(graph, node):
                self._new_place(node)
                self.constants.append(getattr(graph, node.target))
        parts, self.copies = divided(graph)
        self.sizes = Sizes(list(self.place)[: self.inputs], graph)
        self.calls: list[ProgramCall] = []
        self.steps = [self._program(s) if s.is_program else self._eager(s) for s in parts]
        self.steps += [self._copy(to, value) for to, value in self.copies]

    def function(self, leaving: int | None) -> Callable[[list[Any]], list[Any]]:
        """The graph as a function, of whose outputs the first `leaving`, or all, are not only for a backward graph."""
        inputs, steps, bind, constants = self.inputs, self.steps, self.sizes.bind, self.constants
        more = len(self.place) - inputs - len(constants)
        results = self.graph.graph.output_node().args[0]
        outputs = [self._reader(x) for x in results]
        symbolic = self.sizes.symbolic
        made = [i for i, x in enumerate(results[:leaving]) if isinstance(x, Node) and not aliases.is_of_input(x)]

        def run(arguments: list[Any]) -> list[Any]:
            values = [*arguments, *constants, *[None] * more]
            arguments.clear()
            symbols = bind(values[:inputs]) if symbolic else {}
            for step in steps:
                step(values, symbols)
            results = [read(values, symbols) for read in outputs]
            if symbolic:
                for i in made:
                    results[i] = compact(results[i])
            return results

        run._boxed_call = True
        return run

    def plan(self) -> Plan | None:
        """What runs the graph without it; None if it is more than programs of fixed sizes."""
        if self.sizes.symbolic or self.constants or len(self.calls) < len(self.steps):
            return None
        results = self.graph.graph.output_node().args[0]
        if any(isinstance(x, Node) and x not in self.place for x in results):
            return None
        outputs = [Output(self.place[x]) if isinstance(x, Node) else Output(None, x) for x in results]
        return Plan(self.name, len(self.place), self.calls, outputs)

    def _new_place(self, node: Node) -> int:
        return self.place.setdefault(node, len(self.place))

    def _reader(self, x: Any) -> Callable[[list[Any], dict[Any, int]], Any]:
        """What gives an argument of a node, or an output, of a call."""
        if isinstance(x, Node) and x in self.place:
            at = self.place[x]
            return lambda values, symbols: values[at]
        if isinstance(x, Node) and isinstance(x.meta.get("val"), Symbolic):
            return lambda values, symbols: number(x.meta["val"], symbols)
        if isinstance(x, Node):  # a constant
            constant = getattr(self.graph, x.target)
            return lambda values, symbols: constant
        return lambda values, symbols: x

    def _program(self, stage: Stage) -> Callable[[list[Any], dict[Any, int]], None]:
        written = [(to, value) for to, value in self.copies if stage.may_write(to, value)]
        self.copies = [c for c in self.copies if c not in written]
        program = Program(self.graph, stage, written)
        for op in program.op_names:
            compile_log.label(op, self.name)
        write_from = [self.place[n] for n, _ in written]
        read_from = [self.place[n] for n in program.inputs]
        results = [self._new_place(n) for n in program.results]
        if not program.is_anchored:
            self.calls.append(ProgramCall(program.name, write_from, read_from, results))
        run = Padded(program) if program.symbols and program.inputs and not written else program.run

        def step(values: list[Any], symbols: dict[Any, int]) -> None:
            got = run([values[i] for i in write_from], [values[i] for i in read_from], symbols)
            for i, value in zip(results, got, strict=True):
                values[i] = value

        return step

    def _eager(self, stage: Stage) -> Callable[[list[Any], dict[Any, int]], None]:
        calls = [self._call(node) for node in stage.nodes]

        def step(values: list[Any], symbols: dict[Any, int]) -> None:
            for call in calls:
                call(values, symbols)

        return step

    def _call(self, node: Node) -> Callable[[list[Any], dict[Any, int]], None]:
        readers = {n: self._reader(n) for n in node.all_input_nodes}
        at, target, sizes = self._new_place(node), node.target, self.sizes

        def call(values: list[Any], symbols: dict[Any, int]) -> None:
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: readers[n](values, symbols))
            values[at] = target(*args, **kwargs)
            sizes.bind_unbacked(node, values[at], symbols)

        return call

    def _copy(self, to: Node, value: Node) -> Callable[[list[Any], dict[Any, int]], None]:
        at, read = self.place[to], self._reader(value)

        def step(values: list[Any], symbols: dict[Any, int]) -> None:
            values[at].copy_(read(values, symbols))

        return step
