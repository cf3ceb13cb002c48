"""Repeated layers: the part of a graph that repeats is cut into its repetitions, which are one program, called often.

A graph lists its nodes in the order they were traced, so layers of a model follow each other as the same ops on the
same shapes, a fixed number of nodes apart. XLA's compile time is then that of one layer, whatever their number.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

# Shorter repetitions, and fewer, are better off inside one program, where XLA sees across their borders.
LEAST_NODES, LEAST_TIMES = 16, 8


def split(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes in parts, in their order: what comes before the repetitions, each of them, and what comes after."""
    tokens = [token(n) for n in nodes]
    period, begin, end = _longest(tokens)
    if not period:
        return [list(nodes)]
    begin += _offset(nodes, begin, period)
    times = (end - begin) // period
    if times < LEAST_TIMES:
        return [list(nodes)]
    borders = [0, *(begin + i * period for i in range(times + 1)), len(nodes)]
    parts = [list(nodes[a:b]) for a, b in itertools.pairwise(borders)]
    return [p for p in parts if p]


def token(node: Node) -> Any:
    """What two nodes have in common that do the same in two layers."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    made = tuple((str(tuple(x.shape)), x.dtype) for x in leaves if isinstance(x, torch.Tensor))
    numbers = [x for x in pytree.tree_leaves((node.args, node.kwargs)) if not isinstance(x, Node)]
    return str(node.target), made, str(numbers)


def _longest(tokens: Sequence[Any]) -> tuple[int, int, int]:
    """(period, begin, end) of the longest stretch that repeats itself at least `LEAST_TIMES`; 0 if there is none."""
    places = defaultdict(list)
    for i, token in enumerate(tokens):
        places[token].append(i)
    gaps = Counter(b - a for found in places.values() for a, b in itertools.pairwise(found))
    best = (0, 0, 0)
    for period, _ in sorted(gaps.most_common(64)):
        if period < LEAST_NODES:
            continue
        begin = 0
        for i in range(len(tokens) - period + 1):
            if i + period < len(tokens) and tokens[i] == tokens[i + period]:
                continue
            length = i - begin + period
            if i > begin and length >= LEAST_TIMES * period and length > best[2] - best[1]:
                best = period, begin, i + period
            begin = i + 1
    return best


def _offset(nodes: Sequence[Node], begin: int, period: int) -> int:
    """Where in a repetition to cut: where the fewest values pass from one to the next."""
    place = {n: i for i, n in enumerate(nodes)}
    crossing = [0] * period
    for i in range(begin, begin + 2 * period):
        last = max((place[u] for u in nodes[i].users if u in place), default=i)
        for cut in range(i + 1, min(last, begin + 3 * period) + 1):
            if begin + period <= cut < begin + 2 * period:
                crossing[cut - begin - period] += 1
    return crossing.index(min(crossing))
