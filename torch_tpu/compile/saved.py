"""Compiled graphs that PyTorch can keep: AOTAutograd's cache and Dynamo's `caching_precompile` store them.

What is kept is the graph. A process that loads it makes the graph's ops and traces nothing; the programs come from the
disk cache. PyTorch knows such objects by Inductor's base class for what its compilers give, which imports no compiler.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import detect_fake_mode
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .. import cache
from . import _Runner, compile_graph, compile_inference

# What programs are made from; the rest of what nodes carry may hold anything.
_KEPT = frozenset({"val", "stack_trace", "unbacked_bindings"})


class CompiledGraph(OutputCode):
    """A graph as `compile_graph` makes it runnable: takes a list of inputs, which it empties, gives a list of outputs.

    leaving: as of `_Runner.function`. Pickled, it is the graph and, if there is one, its plan; `post_compile` makes it
    runnable again, from the plan alone if it can.
    """

    def __init__(self, graph: GraphModule, name: str, leaving: int | None) -> None:
        super().__init__()
        self._boxed_call = True  # of the object, as PyTorch's wrappers copy what an object has
        runner = _Runner(graph, name)
        self.graph, self.name, self.leaving, self.plan, self.content = graph, name, leaving, runner.plan(), b""
        self.run = runner.function(leaving)

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the graph."""
        return self.run(inputs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "version": cache.version()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Dynamo's entries have no key to put it in. They are made anew if they can't be unpickled.
        if state.pop("version") != cache.version():
            raise RuntimeError("the graph was kept by another version of torch_tpu, or for another device")
        self.__dict__.update(state)

    def prepare_for_serialization(self) -> None:
        """Make it picklable, and no longer runnable. PyTorch calls it on a copy."""
        try:
            # Stages are found again in a graph that they were found in: copies to inputs stay where they are.
            self.content = GraphPickler.dumps(
                self.graph, Options(ops_filter=None, node_metadata_key_filter=_KEPT.__contains__)
            )
        except Exception as error:
            raise BypassAOTAutogradCache(f"backend 'tpu': the graph can't be pickled: {error}") from error
        self.graph = self.run = None

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Make it runnable after it was unpickled."""
        if self.run is None and self.plan is not None:
            self.run = self.plan.function(self._define_programs)
        elif self.run is None:
            self.run = self._runner(detect_fake_mode(example_inputs)).function(self.leaving)

    def _runner(self, mode: FakeTensorMode) -> _Runner:
        return _Runner(GraphPickler.loads(self.content, mode), self.name)

    def _define_programs(self) -> None:
        """The graph's programs are ops from now on that can be lowered."""
        self._runner(FakeTensorMode(shape_env=ShapeEnv()))

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing to set: there is no Triton."""


def compilers() -> dict[str, Any]:
    """The compilers for AOTAutograd, whose results it caches."""
    backward = functools.partial(compile_graph, is_backward=True)
    return {
        "fw_compiler": SerializableAOTDispatchCompiler(CompiledGraph, compile_graph),
        "bw_compiler": SerializableAOTDispatchCompiler(CompiledGraph, backward),
        "inference_compiler": SerializableAOTDispatchCompiler(CompiledGraph, compile_inference),
    }


@contextlib.contextmanager
def cached(graph: GraphModule) -> Iterator[None]:
    """Context manager in which AOTAutograd looks for Dynamo's graph in its cache, and stores it there.

    The key has this package's version as an attribute of the graph. The backward graph is made at once, as that is when
    the entry is stored.
    """
    graph.torch_tpu = cache.version()
    kept = torch._functorch.config.enable_autograd_cache
    with torch._functorch.config.patch(bundled_autograd_cache=kept, force_non_lazy_backward_lowering=kept):
        yield
