"""PyTorch's higher-order ops on XLA's control flow: conditions, loops, scans, and subgraphs of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from . import interpret
from ._jax import jax, jnp, lax
from .context import context
from .registry import RULES, lowers, lowers_higher_order


def body(graph: GraphModule, what: str) -> Callable[..., list[Any]]:
    """A graph as a function of arrays for use inside XLA's control flow, where how often it runs isn't known.

    NotImplementedError if it draws random numbers: their count must be known.
    """

    def run(*operands: Any) -> list[Any]:
        before = context().rng_used
        values = interpret.interpret(graph, operands)
        if context().rng_used != before:
            raise NotImplementedError(
                f"random numbers inside {what} are not implemented on device 'tpu': draw them outside"
            )
        return values

    return run


@lowers_higher_order("cond")
def cond(pred: Any, true_graph: GraphModule, false_graph: GraphModule, operands: Sequence[Any]) -> list[Any]:
    if isinstance(pred, bool):
        return interpret.interpret(true_graph if pred else false_graph, operands)
    branches = [body(g, "torch.cond") for g in (true_graph, false_graph)]
    return lax.cond(pred.reshape(()).astype(bool), *branches, *operands)


@lowers_higher_order("while_loop")
def while_loop(
    condition: GraphModule,
    step: GraphModule,
    carried: Sequence[Any],
    more: Sequence[Any],
    mutated_arg_indices: str = "",
) -> list[Any]:
    test, advance = body(condition, "while_loop"), body(step, "while_loop")
    start = _arrays(carried)
    return lax.while_loop(
        lambda state: jnp.asarray(test(*state, *more)[0]).reshape(()).astype(bool),
        lambda state: _like(advance(*state, *more), state),
        start,
    )


@lowers_higher_order("scan")
def scan(combine: GraphModule, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    run, carry = body(combine, "scan"), len(init)

    def step(state: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        values = run(*state, *x, *more)
        return _like(values[:carry], state), values[carry:]

    last, ys = lax.scan(step, _arrays(init), list(xs))
    return [*last, *ys]


@lowers_higher_order("associative_scan")
def associative_scan(combine: GraphModule, xs: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    run = body(combine, "associative_scan")

    # JAX combines whole stretches at once, the graph takes elements.
    def step(left: list[Any], right: list[Any]) -> list[Any]:
        return jax.vmap(lambda a, b: run(*a, *b, *more))(left, right)

    return lax.associative_scan(step, list(xs))


@lowers_higher_order("map_impl")
def map_(fn: GraphModule, xs: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    run = body(fn, "map")
    return lax.map(lambda x: run(*x, *more), list(xs))


@lowers_higher_order("invoke_subgraph")
def invoke_subgraph(graph: GraphModule, identifier: str, *operands: Any) -> list[Any]:
    return interpret.interpret(graph, operands)


@lowers_higher_order("wrap_with_set_grad_enabled", "wrap_with_autocast", "hints_wrapper", "tag_activation_checkpoint")
def wrapped(*args: Any, **kwargs: Any) -> list[Any]:
    at = next(i for i, x in enumerate(args) if isinstance(x, GraphModule))
    return interpret.interpret(args[at], args[at + 1 :])


@lowers("torch_tpu::barrier")
def barrier(values: Sequence[Any]) -> list[Any]:
    """The values, none of which is there before all are computed."""
    return list(lax.optimization_barrier(tuple(values)))


@lowers_higher_order("run_and_save_rng_state")
def run_and_save_rng_state(op: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The generator's state before the op, 16 bytes, and the op's result."""
    ctx = context()
    state = lax.bitcast_convert_type(_advanced(ctx.rng, ctx.rng_used), jnp.uint8).reshape(16)
    ctx.outs = ctx.outs[1:]
    return [state, *_random(op, args, kwargs)]


@lowers_higher_order("run_with_rng_state")
def run_with_rng_state(state: Any, op: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The op once more, from a state of the generator, which is left where it is."""
    ctx = context()
    before = ctx.rng, ctx.rng_used
    ctx.rng = lax.bitcast_convert_type(state.reshape(4, 4), jnp.uint32)
    ctx.rng_used = 0
    try:
        return _random(op, args, kwargs)
    finally:
        ctx.rng, ctx.rng_used = before


def _random(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    positional, named = interpret.bind(op, args, kwargs)
    return RULES[op.name()].fn(*positional, **named)


def _advanced(rng: Any, drawn: int) -> Any:
    """uint32[4]: seed and offset, low words first, the offset `drawn` elements further."""
    low = rng[2] + jnp.uint32(drawn & 0xFFFFFFFF)
    carry = (low < rng[2]).astype(jnp.uint32)
    return jnp.stack([rng[0], rng[1], low, rng[3] + jnp.uint32(drawn >> 32) + carry])


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(v) for v in values]


def _like(values: Sequence[Any], state: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(v).astype(s.dtype) for v, s in zip(values, state, strict=True)]
