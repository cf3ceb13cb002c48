"""In-place and `out=` variants, derived from the functional op through the schemas: nobody writes them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch._ops import OpOverload


@dataclass(frozen=True)
class Functional:
    """A mutating op in terms of its functional form.

    op: the functional overload; its arguments are the mutating op's less the `out` ones, and those of factories.
    writes: (name of a mutated argument, index of the functional return that is its new value), in schema order.
    returns: for each return of the mutating op, the index of the functional return it is, or the name of the argument.
    """

    op: OpOverload
    writes: tuple[tuple[str, int], ...]
    returns: tuple[int | str, ...]


def find(qualified: str) -> OpOverload:
    """The overload of a name such as `aten::add.Tensor`."""
    namespace, _, rest = qualified.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def mutates(op: OpOverload) -> bool:
    """True if the schema writes to an argument."""
    return op._schema.is_mutable


def wants_tensor(op: OpOverload, argument: torch._C.Argument) -> bool:
    """True for an argument of type Tensor for which Python can't pass a number, as C++ can by wrapping it."""
    return "Tensor" in str(argument.type) and not torch._C._should_allow_numbers_as_tensors(op._opname)


# What functions that make tensors take and their `out=` forms, which have the tensor, do not.
_FACTORY = frozenset({"dtype", "layout", "device", "pin_memory"})


@functools.cache
def functional(op: OpOverload) -> Functional | None:
    """The functional form of a mutating op, None if PyTorch has none."""
    schema = op._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    # The functional op returns what is returned anew first, then the new values of what is updated.
    written.sort(key=lambda a: not a.is_out)
    # As a set: polygamma(n, self) is in place polygamma_(self, n).
    kept = {(a.name, str(a.type)) for a in schema.arguments if not a.is_out}
    had = {n for n, _ in kept}
    for candidate in _candidates(op):
        c = candidate._schema
        if c.is_mutable or {(a.name, str(a.type)) for a in c.arguments if a.name not in _FACTORY - had} != kept:
            continue
        fresh = [r for r in schema.returns if r.alias_info is None]
        # The schemas of in-place foreach ops return nothing; the functional ones return the new lists.
        first = len(c.returns) - len(written)
        if first < 0 or (first != len(fresh) and schema.returns):
            continue
        writes = tuple((a.name, first + i) for i, a in enumerate(written))
        return Functional(candidate, writes, _returns(schema, written))
    return None


def _returns(schema: torch._C.FunctionSchema, written: list[torch._C.Argument]) -> tuple[int | str, ...]:
    by_alias = {frozenset(a.alias_info.before_set): a.name for a in written}
    result: list[int | str] = []
    fresh = 0
    for r in schema.returns:
        if r.alias_info is None:
            result.append(fresh)
            fresh += 1
        else:
            result.append(by_alias[frozenset(r.alias_info.before_set)])
    return tuple(result)


def _candidates(op: OpOverload) -> list[OpOverload]:
    """Overloads that may be the functional form, most likely first."""
    namespace, base = op.namespace, op._schema.name.partition("::")[2]
    names = [base, base + "_functional"]
    if base.endswith("_") and not base.endswith("__"):
        names = [base[:-1], base[:-1] + "_functional", *names]
    elif base.startswith("__i"):
        names.insert(0, "__" + base[3:])
    result = []
    for packet_name in names:
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        if packet is not None:
            overloads = [getattr(packet, o) for o in packet.overloads()]
            result += sorted(overloads, key=lambda o: o._overloadname != op._overloadname)
    return result
