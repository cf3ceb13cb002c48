"""From what the user has, a module, a function or an exported program, to a functional graph of aten ops on "tpu"."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta, set_stack_trace
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode

from .. import lines
from ..lowering import load_rules

Program = ExportedProgram | nn.Module | Callable[..., Any]
_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default,)


@dataclass(frozen=True)
class Traced:
    """graph: its placeholders are the arguments, its outputs the results, then the new values of arguments it updates.

    arguments: their names: those of parameters and buffers, then "inputs[0]" and so on. updated: for each of the last
    outputs, the position of the argument it replaces.
    """

    graph: GraphModule
    arguments: list[str]
    updated: list[int]


def trace(program: Program, example_inputs: Sequence[Any] | None) -> Traced:
    """Trace on fake tensors on "tpu", whatever device, fake or meta included, parameters and inputs are on.

    Parameters and buffers, also those of modules that a function refers to, are arguments. What is no tensor among the
    inputs is a constant, and so are tensors that the program makes of numbers or refers to. TypeError for wrong inputs,
    NotImplementedError for what depends on values, and what the program itself raises.
    """
    load_rules()
    torch.tpu.init()
    exported = isinstance(program, ExportedProgram)
    program, example_inputs, modules = _callable(program, example_inputs)
    state = {(prefix, name): t for prefix, module in modules.items() for name, t in _state(module).items()}
    leaves, spec = pytree.tree_flatten(tuple(example_inputs))
    positions = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]

    def run(*tensors: Tensor) -> list[Any]:
        values = dict(zip(state, tensors, strict=False))
        filled = list(leaves)
        for i, tensor in zip(positions, tensors[len(state) :], strict=True):
            filled[i] = tensor
        with contextlib.ExitStack() as stack:
            for prefix, module in modules.items():
                mine = {name: t for (p, name), t in values.items() if p == prefix}
                stack.enter_context(_reparametrize_module(module, mine, tie_weights=True))
            if not exported:  # whose nodes have lines
                stack.enter_context(_Lines())
            return [x for x in pytree.tree_leaves(program(*pytree.tree_unflatten(filled, spec))) if _is_tensor(x)]

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_fake(t, mode) for t in (*state.values(), *(leaves[i] for i in positions))]
    updated: list[int] = []
    # Libraries ask whether they are being exported, and look at no values then.
    with mode, enable_python_dispatcher(), preserve_node_meta(), _compiling_state_context():
        try:
            graph = make_fx(_functional(run, updated))(*fakes)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            where = lines.of_traceback(error.__traceback__)
            raise NotImplementedError(
                f"{error.func.name()} at {where}: what depends on values can't be compiled ahead of time"
            ) from error
    for node in graph.graph.find_nodes(op="get_attr"):
        setattr(graph, node.target, getattr(graph, node.target).detach().cpu())
    graph.graph.eliminate_dead_code()
    graph.recompile()
    names = [".".join(filter(None, key)) for key in state]
    return Traced(graph, [*names, *(f"inputs[{i}]" for i in range(len(positions)))], updated)


class _Lines(TorchDispatchMode):
    """Notes for each node where it is called from: the tracer itself keeps the lines below functions named forward."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place = lines.current()
        line = place.inside or place.line
        set_stack_trace([line.as_frame()] if line else [])
        return func(*args, **(kwargs or {}))


def _functional(run: Callable[..., list[Tensor]], updated: list[int]) -> Callable[..., list[Tensor]]:
    """`run` without updates in place: the new values of the arguments that it updates follow its results.

    updated: filled with these arguments' positions.
    """

    def functional(*tensors: Tensor) -> list[Tensor]:
        above = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
        with above, FunctionalTensorMode():
            wrapped = [FunctionalTensor.to_functional(t) for t in tensors]
            results = [_unwrapped(x) for x in run(*wrapped)]
            after = [_unwrapped(w) for w in wrapped]
        updated[:] = [i for i, (old, new) in enumerate(zip(tensors, after, strict=True)) if old is not new]
        return [*results, *(after[i] for i in updated)]

    return functional


def _unwrapped(x: Tensor) -> Tensor:
    if not isinstance(x, FunctionalTensor):
        return x
    torch._sync(x)
    return torch._from_functional_tensor(x.elem)


def _callable(
    program: Program, inputs: Sequence[Any] | None
) -> tuple[Callable[..., Any], Sequence[Any], dict[str, nn.Module]]:
    """The program as a function of positional inputs, these, and the modules it reads."""
    if isinstance(program, ExportedProgram):
        args, kwargs = program.example_inputs if inputs is None else (inputs, {})
        module = _moved(program.module())
        # Run node by node, so that each keeps the line it came from.
        run = functools.partial(Interpreter(module).run, enable_io_processing=False)
        return run, pytree.tree_leaves((tuple(args), kwargs)), {"": module}
    if not callable(program):
        raise TypeError(f"expected an ExportedProgram, a module or a function, not {type(program).__name__}")
    if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
        raise TypeError("example_inputs must be a tuple of the program's arguments")
    return program, inputs, _modules(program)


def _moved(module: GraphModule) -> GraphModule:
    """An exported module that makes its tensors on "tpu" and no longer asks where its inputs are."""
    for node in list(module.graph.nodes):
        if node.target in _ASSERTIONS:
            module.graph.erase_node(node)
        else:
            move = functools.partial(pytree.tree_map_only, torch.device, lambda _: torch.device("tpu"))
            node.args, node.kwargs = move(node.args), move(node.kwargs)
    module.recompile()
    return module


def _modules(program: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules whose parameters the program reads, by the names it has for them; "" is the program itself."""
    if isinstance(program, nn.Module):
        return {"": program}
    if isinstance(program, functools.partial):
        return _modules(program.func)
    owner = getattr(program, "__self__", None)
    if isinstance(owner, nn.Module):
        return {"": owner}
    function = inspect.unwrap(program)
    if not inspect.isfunction(function):
        return {}
    known = inspect.getclosurevars(function)
    found = {name: x for name, x in {**known.globals, **known.nonlocals}.items() if isinstance(x, nn.Module)}
    return {
        name: x
        for name, x in found.items()
        if not any(x in other.modules() for other in found.values() if other is not x)
    }


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _fake(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="tpu")
    return made.requires_grad_(tensor.requires_grad)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)
