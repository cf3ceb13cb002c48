"""One program for all sizes up to a bound: a graph lowered on padded arrays, so that the padding never counts.

Each dimension of a value is a product of factors, outermost first: of a fixed size, or padded, of which the first
`count` elements along it are valid. (`x.view(-1, n)` makes one dimension of two factors.) What lies in the padding is
anything, also NaN: an op that mixes elements along a padded dimension gets its operands with the padding filled by what
doesn't count there. An op that is not in the table here raises `Unpadded`: the program is then made for exact sizes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from ..lowering import interpret
from ..lowering._jax import jnp, lax
from ..lowering.dtypes import to_jax
from ..lowering.registry import RULES
from .sizes import Symbolic


class Unpadded(NotImplementedError):
    """A graph does something for which its sizes must be exact."""


@dataclass(frozen=True)
class Factor:
    """Part of a dimension. bound: elements in memory. size: the true number, an int or an expression of symbols."""

    bound: int
    size: Any

    @property
    def is_padded(self) -> bool:
        return not isinstance(self.size, int)


Dim = tuple[Factor, ...]


@dataclass(frozen=True)
class Padded:
    """An array and how its dimensions are padded."""

    array: Any
    dims: Sequence[Dim]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(_normal(d) for d in self.dims))

    def is_padded(self, dim: int) -> bool:
        return any(f.is_padded for f in self.dims[dim])


def _normal(dim: Dim) -> Dim:
    """The same dimension with its neighbouring fixed factors as one: equal ones compare equal."""
    factors: list[Factor] = []
    for f in dim:
        if factors and not (f.is_padded or factors[-1].is_padded):
            f = Factor(factors[-1].bound * f.bound, factors.pop().bound * f.bound)
        if f.is_padded or f.bound != 1:
            factors.append(f)
    return tuple(factors) or (Factor(1, 1),)


def run(graph: GraphModule, arrays: Sequence[Any], counts: dict[Any, Any]) -> list[Any]:
    """Arrays of a graph's outputs, padded. Raises Unpadded.

    graph: with the bounds for its sizes, each node's `meta["symbolic"]` being what it was before. arrays: one a
    placeholder, padded. counts: 0-d int32 of the symbols' true values.
    """
    lowering = _Lowering(counts)
    placeholders = graph.graph.find_nodes(op="placeholder")
    inputs = [lowering.simple(x, n.meta["symbolic"]) for x, n in zip(arrays, placeholders, strict=True)]
    values = interpret.walk(graph, inputs, lambda tensor: _fixed(interpret.constant(tensor)), lowering.call)
    nodes = graph.graph.output_node().args[0]
    return [lowering.result(x, n.meta["symbolic"]) for x, n in zip(values, nodes, strict=True)]


class _Lowering:
    """The lowering of nodes whose sizes are counted so."""

    def __init__(self, counts: dict[Any, Any]) -> None:
        self.counts = counts

    def call(self, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of a node for Padded arguments."""
        call = Call(self, node, list(args), dict(kwargs))
        is_padded = any(f.is_padded for x in call.operands for d in x.dims for f in d)
        if not is_padded and not call.has_sizes and not call.makes_padded():
            return call.wrapped(call.lower(), None)
        name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
        rule = RULES.get(name)
        handler = HANDLERS.get(name)
        if handler is None and rule is not None and rule.random:
            raise Unpadded(f"{name} draws as many numbers as there are elements")
        if handler is None and rule is not None and rule.rows == "pointwise":
            handler = pointwise
        if handler is None:
            raise Unpadded(f"{name} of a padded tensor")
        if call.has_sizes and handler not in _TAKES_SIZES:
            raise Unpadded(f"{name} with a size among its arguments")
        return handler(call)

    def simple(self, array: Any, symbolic: torch.Tensor) -> Padded:
        """An array whose dimensions are padded as their symbolic sizes say."""
        return Padded(array, tuple(self.dim(n, b) for n, b in zip(symbolic.shape, array.shape, strict=True)))

    def result(self, x: Padded, symbolic: torch.Tensor) -> Any:
        """The array of a result, whose padding comes last in each dimension."""
        for i, dim in enumerate(x.dims):
            if any(f.is_padded for f in dim[1:]):
                x = self.moved(x, i, self.dim(symbolic.shape[i], x.array.shape[i]))
        return x.array

    def moved(self, x: Padded, dim: int, to: Dim) -> Padded:
        """The same elements, those along a dimension in the places that other factors give them."""
        of = x.dims[dim]
        if of == to:
            return x
        if math.prod(f.bound for f in of) != math.prod(f.bound for f in to) or not _are_equal(of, to):
            raise Unpadded("differently padded tensors")
        bounds = [f.bound for f in to]
        element = jnp.int32(0)  # which one it is among the valid ones, for each place
        for i, factor in enumerate(to):
            element = element * self.extent(factor) + lax.broadcasted_iota(jnp.int32, bounds, i)
        place, stride = jnp.int32(0), 1
        for factor in reversed(of):
            place = place + element % self.extent(factor) * stride
            element, stride = element // self.extent(factor), stride * factor.bound
        array = jnp.take(x.array, place.reshape(-1), axis=dim, mode="clip")
        return Padded(array, [*x.dims[:dim], to, *x.dims[dim + 1 :]])

    def extent(self, factor: Factor) -> Any:
        """The true number of elements along a factor: int32."""
        return self.count(factor.size) if factor.is_padded else jnp.int32(factor.bound)

    def dim(self, size: Any, bound: int) -> Dim:
        """A dimension whose padding comes last: of one factor, or so many elements for each of a padded one."""
        if isinstance(size, int) or size.node.expr.is_Integer:
            return (Factor(bound, bound),)
        each, of = size.node.expr.as_content_primitive()
        self.count(of)
        return Factor(bound // int(each), of), Factor(int(each), int(each))

    def count(self, expr: Any) -> Any:
        """The true number of elements: a product of symbols' values, or of so many more or less.

        Other expressions, as a difference, may be less at the bounds of their symbols.
        """
        total = jnp.int32(1)
        for factor in sympy.Mul.make_args(sympy.factor(expr)):
            symbols = list(factor.free_symbols)
            if factor.is_Integer and factor > 0:
                total = total * jnp.int32(int(factor))
            elif len(symbols) == 1 and (factor - symbols[0]).is_Integer:
                total = total * (self.counts[symbols[0]] + jnp.int32(int(factor - symbols[0])))
            else:
                raise Unpadded(f"a size of {expr}")
        return total

    def number(self, expr: Any) -> Any:
        """The value of an expression of sizes: 0-d int64."""
        if expr.is_Integer:
            return jnp.int64(int(expr))
        if expr.is_Symbol:
            return self.counts[expr].astype(jnp.int64)
        if expr.is_Add or expr.is_Mul:
            return functools.reduce(operator.add if expr.is_Add else operator.mul, map(self.number, expr.args))
        raise Unpadded(f"a number of {expr}")

    def valid(self, dim: Dim) -> Any:
        """Which elements along a dimension are no padding."""
        bounds = [f.bound for f in dim]
        valid = jnp.ones(math.prod(bounds), bool)
        for i, factor in enumerate(dim):
            if factor.is_padded:
                index = lax.broadcasted_iota(jnp.int32, bounds, i) if bounds else 0
                valid = valid & (index < self.count(factor.size)).reshape(-1)
        return valid

    def filled(self, x: Padded, fill: Any, dims: Sequence[int] | None = None) -> Any:
        """The array with its padding filled, along some dimensions or all."""
        array = x.array
        for i in range(len(x.dims)) if dims is None else dims:
            if x.is_padded(i):
                shape = [1] * array.ndim
                shape[i] = array.shape[i]
                array = jnp.where(self.valid(x.dims[i]).reshape(shape), array, jnp.asarray(fill, array.dtype))
        return array


def _are_equal(*dims: Dim) -> bool:
    """Whether dimensions have as many elements that are no padding."""
    sizes = [math.prod(f.size for f in d) for d in dims]
    return all(sympy.expand(n - sizes[0]) == 0 for n in sizes)


def _fixed(array: Any) -> Padded:
    return Padded(array, tuple((Factor(n, n),) for n in array.shape))


class Call:
    """A node's call: args and kwargs with Padded for tensors."""

    def __init__(self, of: _Lowering, node: Node, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.of, self.node, self.args, self.kwargs = of, node, args, kwargs
        self.out, self.symbolic = node.meta["val"], node.meta["symbolic"]
        # The arguments as the graph has them, with its sizes among them.
        self.given, named = node.meta["symbolic_args"]
        self.has_sizes = any(isinstance(x, Symbolic) for x in pytree.tree_leaves((self.given, named)))

    @property
    def operands(self) -> list[Padded]:
        """The tensors among the arguments, those in lists included."""
        leaves = pytree.tree_leaves((self.args, self.kwargs), is_leaf=_is_padded)
        return [x for x in leaves if _is_padded(x)]

    def match(self, position: int, dims: Sequence[Dim]) -> None:
        """Give an argument the padding that another has, if it is not last in both."""
        x = self.args[position]
        for i, dim in enumerate(dims):
            if any(f.is_padded for f in (*x.dims[i][1:], *dim[1:])):
                x = self.of.moved(x, i, dim)
        self.args[position] = x

    def makes_padded(self) -> bool:
        """Whether a result has symbolic sizes."""
        made = [x for x in pytree.tree_leaves(self.symbolic) if isinstance(x, torch.Tensor)]
        return any(not isinstance(n, int) for x in made for n in x.shape)

    def argument(self, name: str) -> Any:
        """An argument by its name in the schema."""
        for i, a in enumerate(self.node.target._schema.arguments):
            if a.name == name:
                return self.args[i] if i < len(self.args) else self.kwargs.get(name, a.default_value)
        raise KeyError(name)

    def lower(self, fill: Any = None) -> list[Any]:
        """The results' arrays, flat, by the op's own lowering. fill: what the padding of its operands is set to."""

        def strip(x: Any) -> Any:
            if not _is_padded(x):
                return x
            return x.array if fill is None else self.of.filled(x, fill)

        args, kwargs = pytree.tree_map(strip, (tuple(self.args), self.kwargs), is_leaf=_is_padded)
        return interpret.call(self.node, args, kwargs)

    def wrapped(self, arrays: list[Any], dims: Sequence[Any] | None) -> Any:
        """The results as Padded, in their structure. dims: of each; None: as their symbolic sizes say."""
        leaves, spec = pytree.tree_flatten(self.symbolic)
        result = []
        for i, (array, symbolic) in enumerate(zip(arrays, leaves, strict=True)):
            if not interpret.is_array(array):
                result.append(array)
            elif dims is None:
                result.append(self.of.simple(array, symbolic))
            else:
                result.append(Padded(array, dims[i]))
        return pytree.tree_unflatten(result, spec)


def _is_padded(x: Any) -> bool:
    return isinstance(x, Padded)


Handler = Callable[[Call], Any]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(fn: Handler) -> Handler:
        HANDLERS.update({f"aten::{n}": fn for n in names})
        return fn

    return register


def _norm(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


# --- elementwise


@handles("where.self", "clone", "_to_copy", "detach", "alias", "lift_fresh_copy")
def pointwise(call: Call) -> Padded:
    for i, given in enumerate(call.given):
        if isinstance(given, Symbolic):
            call.args[i] = call.of.number(given.node.expr)
    if any(isinstance(x, Symbolic) for x in call.node.meta["symbolic_args"][1].values()):
        raise Unpadded(f"{call.node.target.name()} with a size among its named arguments")
    dims = _broadcast(call, call.out.ndim)
    (array,) = call.lower()
    return Padded(array, dims)


def _broadcast(call: Call, rank: int) -> list[Dim]:
    """The dimensions of the result; operands that are padded otherwise are moved to them."""
    for i in range(rank):
        at = [(p, i - rank + len(x.dims)) for p, x in enumerate(call.args) if _is_padded(x)]
        at = [(p, k) for p, k in at if k >= 0 and call.args[p].is_padded(k)]
        for p, k in at[1:]:
            call.args[p] = call.of.moved(call.args[p], k, call.args[at[0][0]].dims[at[0][1]])
    dims: list[Dim] = []
    for i in range(rank):
        at = [(x, i - rank + len(x.dims)) for x in call.operands]
        found = {x.dims[k] for x, k in at if k >= 0 and x.array.shape[k] != 1}
        padded = {d for d in found if any(f.is_padded for f in d)}
        if len(padded) > 1 or (padded and any(math.prod(f.bound for f in d) == 1 for d in padded)):
            raise Unpadded(f"{call.node.target.name()} of differently padded tensors")
        if padded and len(found) > 1:
            raise Unpadded(f"{call.node.target.name()} of a padded and an unpadded tensor")
        dims.append(next(iter(padded or found), (Factor(1, 1),)))
    return dims


@handles("tril", "triu", "cumsum")
def prefix(call: Call) -> Padded:
    """What comes later along a dimension doesn't change what comes before."""
    x = call.args[0]
    if any(len(d) > 1 and any(f.is_padded for f in d) for d in x.dims):
        raise Unpadded(f"{call.node.target.name()} along a merged dimension")
    (array,) = call.lower()
    return Padded(array, x.dims)


# --- made from sizes


@handles(
    *("full", "zeros", "ones", "empty.memory_format", "new_zeros", "new_ones", "new_full", "new_empty", "full_like"),
    *("zeros_like", "ones_like", "empty_like", "new_empty_strided", "empty_strided", "scalar_tensor"),
)
def made(call: Call) -> Any:
    if any(isinstance(x, Symbolic) for x in call.given):
        raise Unpadded(f"{call.node.target.name()} with a size as its value")
    return call.wrapped(call.lower(), [call.args[0].dims] if "_like" in call.node.target.name() else None)


@handles("arange", "arange.start", "arange.start_step")
def arange(call: Call) -> Any:
    start = call.given[0] if len(call.given) > 1 else 0
    if isinstance(start, Symbolic) or (len(call.given) > 2 and call.given[2] != 1):
        raise Unpadded("arange from or in steps of a size")
    return call.wrapped(call.lower(), None)


# --- shapes


@handles("view", "_unsafe_view", "_reshape_alias")
def view(call: Call) -> Padded:
    (array,) = call.lower()
    x, sizes = call.args[0], list(zip(call.symbolic.shape, array.shape, strict=True))
    dims = _viewed([f for d in x.dims for f in d], sizes)
    if dims is not None:
        return Padded(array, dims)
    # The elements go to other places; those that stay together go as rows.
    dims = [call.of.dim(*size) for size in sizes]
    of, to = (list(_normal(tuple(f for d in group for f in d))) for group in (x.dims, dims))
    row = 1 if of[-1].is_padded or to[-1].is_padded else math.gcd(of[-1].bound, to[-1].bound)
    for factors in (of, to):
        if row > 1:
            factors.append(Factor(factors[-1].bound // row, factors.pop().bound // row))
    rows = Padded(x.array.reshape(-1, row), [tuple(of), (Factor(row, row),)])
    return Padded(call.of.moved(rows, 0, _normal(tuple(to))).array.reshape(array.shape), dims)


def _viewed(factors: list[Factor], sizes: Sequence[tuple[Any, int]]) -> list[Dim] | None:
    """The dimensions of (true, in memory) sizes that the factors make where they are; None if they don't."""
    factors = [f for f in factors if f.is_padded or f.bound != 1]
    dims: list[Dim] = []
    for size, bound in sizes:
        dim, total = [], 1
        while total != bound:
            if not factors:
                return None
            factor = factors.pop(0)
            rest = bound // total
            if factor.bound > rest:
                if factor.is_padded or factor.bound % rest:
                    return None
                factors.insert(0, Factor(factor.bound // rest, factor.bound // rest))
                factor = Factor(rest, rest)
            if bound % (total * factor.bound):
                return None
            dim.append(factor)
            total *= factor.bound
        # The same number of elements in memory may be another number of true ones.
        if sympy.expand(math.prod(f.size for f in dim) - _expression(size)) != 0:
            return None
        dims.append(tuple(dim) or (Factor(1, 1),))
    return None if any(f.is_padded for f in factors) else dims


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


@handles("expand")
def expand(call: Call) -> Padded:
    (array,) = call.lower()
    x = call.args[0]
    lead = array.ndim - len(x.dims)
    dims = []
    for i, (size, bound) in enumerate(zip(call.symbolic.shape, array.shape, strict=True)):
        kept = i >= lead and x.array.shape[i - lead] == bound
        dims.append(x.dims[i - lead] if kept else call.of.dim(size, bound))
    return Padded(array, dims)


@handles("permute", "transpose.int", "t", "unsqueeze", "squeeze.dim", "squeeze.dims", "squeeze")
def reorder(call: Call) -> Padded:
    """The dimensions in another order, with others of one element or without them."""
    (array,) = call.lower()
    x, name = call.args[0], call.node.target.name().removeprefix("aten::")
    dims, rank = list(x.dims), len(x.dims)
    if name == "permute":
        dims = [dims[_norm(d, rank)] for d in call.args[1]]
    elif name in ("transpose.int", "t"):
        a, b = (call.args[1], call.args[2]) if name == "transpose.int" else (0, rank - 1)
        a, b = _norm(a, rank), _norm(b, rank)
        dims[a], dims[b] = dims[b], dims[a]
    elif name == "unsqueeze":
        dims.insert(_norm(call.args[1], rank + 1), (Factor(1, 1),))
    else:
        given = range(rank) if name == "squeeze" else call.args[1]
        chosen = {_norm(d, rank) for d in ([given] if isinstance(given, int) else given)}
        if any(f.is_padded for d in chosen for f in dims[d]) and name == "squeeze":
            chosen = {d for d in chosen if not x.is_padded(d)}
        dims = [d for i, d in enumerate(dims) if i not in chosen or x.array.shape[i] != 1]
    return Padded(array, dims)


@handles("slice.Tensor")
def slice_(call: Call) -> Any:
    x, dim = call.args[0], _norm(call.argument("dim"), len(call.args[0].dims))
    start, step = call.argument("start") or 0, call.argument("step")
    is_padded = x.is_padded(dim) or not isinstance(call.symbolic.shape[dim], int)
    if (is_padded and (step != 1 or start < 0 or len(x.dims[dim]) > 1)) or _is_size(call.given, 2):
        raise Unpadded("a slice from a size or the end of a padded dimension, or in steps")
    (array,) = call.lower()
    dims = list(x.dims)
    dims[dim] = call.of.dim(call.symbolic.shape[dim], array.shape[dim])
    return Padded(array, dims)


def _is_size(given: Sequence[Any], position: int) -> bool:
    return position < len(given) and isinstance(given[position], Symbolic)


@handles("select.int")
def select(call: Call) -> Padded:
    x = call.args[0]
    dim, index = _norm(call.args[1], len(x.dims)), call.args[2]
    if isinstance(call.given[2], Symbolic):
        raise Unpadded("the element at a size")
    rest = [d for i, d in enumerate(x.dims) if i != dim]
    if not x.is_padded(dim):
        return Padded(call.lower()[0], rest)
    if len(x.dims[dim]) > 1:
        raise Unpadded("an element of a merged dimension")
    if index < 0:  # from the true end
        index = call.of.count(x.dims[dim][0].size) + jnp.int32(index)
    return Padded(lax.dynamic_index_in_dim(x.array, jnp.int32(index), dim, keepdims=False), rest)


@handles("slice_backward", "select_backward")
def slice_backward(call: Call) -> Any:
    dim, start = call.args[2:4]
    is_padded = not isinstance(call.symbolic.shape[_norm(dim, call.out.ndim)], int)
    in_steps = len(call.args) > 5 and call.args[5] != 1
    is_select = "select" in call.node.target.name()
    if _is_size(call.given, 3) or (is_padded and (start < 0 or is_select or in_steps)):
        raise Unpadded("the gradient of a slice from the end of a padded dimension, or in steps")
    return call.wrapped(call.lower(fill=0), None)


@handles("cat")
def cat(call: Call) -> Padded:
    (array,) = call.lower()
    tensors = [x for x in call.args[0] if x.array.shape != (0,)]
    dim = _norm(call.args[1] if len(call.args) > 1 else 0, array.ndim)
    if any(x.is_padded(dim) for x in tensors):
        raise Unpadded("a concatenation along a padded dimension")
    dims = [_merged([x.dims[i] for x in tensors]) for i in range(array.ndim)]
    dims[dim] = (Factor(array.shape[dim], array.shape[dim]),)
    return Padded(array, dims)


@handles("stack")
def stack(call: Call) -> Padded:
    (array,) = call.lower()
    tensors = call.args[0]
    dims = [_merged([x.dims[i] for x in tensors]) for i in range(array.ndim - 1)]
    dims.insert(_norm(call.args[1] if len(call.args) > 1 else 0, array.ndim), (Factor(len(tensors), len(tensors)),))
    return Padded(array, dims)


def _merged(dims: Sequence[Dim]) -> Dim:
    if len(set(dims)) > 1:
        raise Unpadded("differently padded tensors")
    return dims[0]


@handles("split.Tensor", "split_with_sizes", "unbind.int")
def split(call: Call) -> list[Padded]:
    x = call.args[0]
    name = call.node.target.name()
    dim = _norm(call.argument("dim"), len(x.dims))
    if x.is_padded(dim):
        raise Unpadded("a padded dimension in parts")
    arrays = call.lower()
    result = []
    for array in arrays:
        dims = list(x.dims)
        if "unbind" in name:
            dims.pop(dim)
        else:
            dims[dim] = (Factor(array.shape[dim], array.shape[dim]),)
        result.append(Padded(array, dims))
    return result


# --- products


@handles("mm", "bmm", "addmm", "baddbmm")
def product(call: Call) -> Padded:
    a, name = call.args[-2], call.node.target.name()
    call.match(len(call.args) - 1, (*a.dims[:-2], a.dims[-1]))
    *added, a, b = call.operands
    dims = (*a.dims[:-1], b.dims[-1])
    for x in added:
        if any(map(x.is_padded, range(len(x.dims)))) and x.dims != dims[-len(x.dims) :]:
            raise Unpadded(f"{name} with a padded sum")
    left, right = len(a.dims) - 1, len(b.dims) - 2
    call.args[-2:] = [replace(x, array=call.of.filled(x, 0, [dim])) for x, dim in ((a, left), (b, right))]
    (array,) = call.lower()
    return Padded(array, dims)


# --- reductions


def _reduced(call: Call, dims: Sequence[int], keepdim: bool) -> list[Dim]:
    kept = [(Factor(1, 1),) if i in dims else d for i, d in enumerate(call.args[0].dims)]
    return kept if keepdim else [d for i, d in enumerate(kept) if i not in dims]


def _dims(call: Call) -> list[int]:
    rank = len(call.args[0].dims)
    given = call.args[1] if len(call.args) > 1 else None
    if isinstance(given, int) and not isinstance(given, bool):
        given = [given]
    return [_norm(d, rank) for d in given] if isinstance(given, (list, tuple)) and given else list(range(rank))


def _keepdim(call: Call) -> bool:
    return any(a.name == "keepdim" for a in call.node.target._schema.arguments) and bool(call.argument("keepdim"))


def _reduction(fill: Callable[[Any], Any]) -> Handler:
    def handler(call: Call) -> Any:
        dims, x = _dims(call), call.args[0]
        name = call.node.target.name()
        if name in _GIVES_INDICES and (len(dims) > 1 or any(len(x.dims[d]) > 1 for d in dims)):
            raise Unpadded(f"{name} along dimensions of which several make one index")
        if name == "aten::logsumexp":
            x = replace(x, array=x.array.astype(to_jax(call.out.dtype)))
        call.args[0] = replace(x, array=call.of.filled(x, fill(x.array.dtype), dims))
        arrays = call.lower()
        return call.wrapped(arrays, [_reduced(call, dims, _keepdim(call))] * len(arrays))

    return handler


_GIVES_INDICES = frozenset({"aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim"})


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else (False if dtype == jnp.bool_ else jnp.iinfo(dtype).min)


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else (True if dtype == jnp.bool_ else jnp.iinfo(dtype).max)


handles("sum", "sum.dim_IntList", "any", "any.dim", "any.dims", "count_nonzero", "count_nonzero.dim_IntList")(
    _reduction(lambda dtype: 0)
)
handles("prod", "prod.dim_int", "all", "all.dim", "all.dims")(_reduction(lambda dtype: 1))
handles("amax", "max", "max.dim", "argmax", "logsumexp")(_reduction(_lowest))
handles("amin", "min", "min.dim", "argmin")(_reduction(_highest))


@handles("mean", "mean.dim")
def mean(call: Call) -> Padded:
    dims, x = _dims(call), call.args[0]
    dtype = to_jax(call.out.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    count = jnp.asarray(1, wide)
    for d in dims:
        for f in x.dims[d]:
            count = count * (call.of.count(f.size).astype(wide) if f.is_padded else f.bound)
    total = call.of.filled(x, 0, dims).astype(wide).sum(tuple(dims), keepdims=_keepdim(call))
    return Padded((total / count).astype(dtype), _reduced(call, dims, _keepdim(call)))


@handles("_softmax", "_log_softmax")
def softmax(call: Call) -> Padded:
    x = call.args[0]
    call.args[0] = replace(x, array=call.of.filled(x, -jnp.inf, [_norm(call.args[1], len(x.dims))]))
    (array,) = call.lower()
    return Padded(array, x.dims)


@handles("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(call: Call) -> Padded:
    call.match(0, call.args[1].dims)
    (array,) = call.lower(fill=0)
    return Padded(array, call.args[1].dims)


# --- layers: along normalised and embedded dimensions nothing is padded


def _unpadded(x: Padded, dims: Sequence[int], what: str) -> None:
    if any(x.is_padded(d) for d in dims):
        raise Unpadded(f"{what} of a padded dimension")


@handles("native_layer_norm", "_fused_rms_norm")
def layer_norm(call: Call) -> Any:
    x, count = call.args[0], len(call.args[1])
    _unpadded(x, range(len(x.dims) - count, len(x.dims)), "a norm")
    arrays = call.lower()
    lead = [*x.dims[: len(x.dims) - count], *[(Factor(1, 1),)] * count]
    return call.wrapped(arrays, [x.dims, *[lead] * (len(arrays) - 1)])


@handles("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(call: Call) -> Any:
    x, count = call.args[1], len(call.args[2])
    _unpadded(x, range(len(x.dims) - count, len(x.dims)), "a norm")
    call.match(0, x.dims)
    for i, saved in enumerate(call.args[3:], 3):
        if _is_padded(saved) and len(saved.dims) == len(x.dims):  # what the forward found for each row
            call.match(i, x.dims[: len(x.dims) - count])
    arrays = call.lower(fill=0)
    weight = [(Factor(n, n),) for n in x.array.shape[len(x.dims) - count :]]
    return call.wrapped(arrays, [x.dims, *[weight] * (len(arrays) - 1)])


@handles("embedding")
def embedding(call: Call) -> Padded:
    weight, indices = call.args[:2]
    _unpadded(weight, (0, 1), "a table")
    (array,) = call.lower(fill=0)
    return Padded(array, (*indices.dims, weight.dims[1]))


@handles("embedding_dense_backward")
def embedding_backward(call: Call) -> Padded:
    call.match(0, call.args[1].dims)
    (array,) = call.lower(fill=0)
    if call.makes_padded():
        raise Unpadded("a table of a padded size")
    return _fixed(array)


@handles("gather")
def gather(call: Call) -> Padded:
    x, dim, index = call.args[:3]
    _unpadded(x, [_norm(dim, len(x.dims))], "a gather")
    for i in range(len(x.dims)):
        if x.is_padded(i) and index.is_padded(i):
            index = call.of.moved(index, i, x.dims[i])
    call.args[2] = replace(index, array=call.of.filled(index, 0))
    (array,) = call.lower()
    return Padded(array, index.dims)


@handles("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(call: Call) -> Any:
    _ignore(call, 0)
    if call.args[3] == 0:
        return call.wrapped(call.lower(), [call.args[1].dims, ()])
    return call.wrapped(call.lower(), [(), ()])


@handles("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(call: Call) -> Padded:
    _ignore(call, 1)
    if call.args[0].dims:  # of each element
        call.match(0, call.args[2].dims)
    (array,) = call.lower()
    return Padded(array, call.args[1].dims)


def _ignore(call: Call, scores: int) -> None:
    """The padding is of the class that doesn't count. The target comes after the scores, which have classes too."""
    target, dims = scores + 1, call.args[scores].dims
    call.match(target, dims[:-1] if len(dims) < 3 else (dims[0], *dims[2:]))
    call.args[target] = replace(
        call.args[target], array=call.of.filled(call.args[target], call.argument("ignore_index"))
    )


# --- attention: [..., length, head]


@handles("_scaled_dot_product_fused_attention_overrideable")
def attention(call: Call) -> Any:
    q, _, v = call.args[:3]
    if call.argument("dropout_p"):
        raise Unpadded("dropout of padded tensors")
    _match_heads(call, 0)
    _mask_keys(call, *call.args[:2], 3)
    for i in (1, 2):  # a score of NaN stays one under any mask
        x = call.args[i]
        call.args[i] = replace(x, array=call.of.filled(x, 0, [len(x.dims) - 2]))
    arrays = call.lower()
    dims = (*q.dims[:-1], v.dims[-1])
    return call.wrapped(arrays, [dims, q.dims[:-1], *[()] * (len(arrays) - 2)])


@handles("_scaled_dot_product_fused_attention_overrideable_backward")
def attention_backward(call: Call) -> Any:
    """Keys in the padding have no weight, queries there no gradient."""
    if call.argument("dropout_p") or call.argument("grad_input_mask")[3]:
        raise Unpadded("dropout, or the gradient of a mask, of padded tensors")
    _match_heads(call, 1)
    for i in (0, 6, 7):
        call.match(i, call.args[1].dims[:-1])
    dims = [x.dims if _is_padded(x) else () for x in call.args[1:5]]
    _mask_keys(call, *call.args[1:3], 4)
    for i in (0, 1, 2, 3, 6, 7):
        call.args[i] = replace(call.args[i], array=call.of.filled(call.args[i], 0))
    return call.wrapped(call.lower(), dims)


def _match_heads(call: Call, q: int) -> None:
    """Keys and values, the arguments after the query, get its padding of batches and heads, and one of their length."""
    query, keys, values = range(q, q + 3)
    for i in (query, keys, values):
        _unpadded(call.args[i], [len(call.args[i].dims) - 1], "a head")
    for i in (keys, values):
        call.match(i, call.args[query].dims[:-2])
    call.match(values, call.args[keys].dims[:-1])


def _mask_keys(call: Call, q: Padded, k: Padded, at: int) -> None:
    """Keys in the padding don't count: the mask, argument `at`, says so.

    Under the causal mask of a square they never do for true queries.
    """
    call.args += [None] * (at + 1 - len(call.args))
    bias, length = call.args[at], k.dims[-2]
    if not k.is_padded(len(k.dims) - 2) or (call.argument("is_causal") and q.dims[-2] == length):
        return
    if call.argument("is_causal") or len(length) > 1:
        raise Unpadded("causal attention of differently padded tensors")
    shape = [1] * (len(k.dims) - 1) + [k.array.shape[-2]]
    if bias is None:
        array = jnp.where(call.of.valid(length), 0, -jnp.inf).astype(q.array.dtype).reshape(shape)
        call.args[at] = Padded(array, (*[(Factor(1, 1),)] * (len(k.dims) - 1), length))
        return
    is_bool, last = bias.array.dtype == jnp.bool_, len(bias.dims) - 1
    bias = replace(bias, array=call.of.filled(bias, is_bool, range(last)))  # rows of padding would give NaN
    call.args[at] = replace(bias, array=call.of.filled(bias, False if is_bool else -jnp.inf, [last]))


# Handlers that know what a size among the arguments is for: the others would take its bound for its value.
_TAKES_SIZES = frozenset(
    {pointwise, made, arange, view, expand, slice_, select, slice_backward, attention, attention_backward}
)
