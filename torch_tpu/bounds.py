"""Debug mode's check of values: which arguments hold indices, into what, or probabilities, and what PyTorch says of a
wrong one.

In strict mode reads out of range are undefined and writes are dropped, as XLA does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .lowering._jax import jnp


@dataclass(frozen=True)
class Check:
    """Indices that must lie in [low, high); `error` is the exception's name, `text` its words with {} for the index."""

    index: Any
    low: int
    high: int
    error: str
    text: str


_ALONG_DIM = frozenset(
    [
        "gather",
        "scatter.src",
        "scatter.value",
        "scatter.reduce",
        "scatter.value_reduce",
        "scatter_add",
        "scatter_reduce.two",
        "index_select",
        "index_add",
        "index_copy",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "index_reduce",
    ]
)
_RUNTIME_ERROR = ("gather", "scatter")
_MANY = frozenset(["index.Tensor", "index_put", "_index_put_impl"])
_TABLES = frozenset({"embedding", "_embedding_bag", "_embedding_bag_forward_only"})
_TARGETS = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
_MARGINS = {
    "multi_margin_loss": (0, "target out of range"),
    "multilabel_margin_loss_forward": (-1, "argument #2 'target' is out of range"),
}
# Where the parameters of a distribution, or probabilities, are wrong, and what PyTorch says.
_PARAMETERS: dict[str, list[tuple[Callable[[Any], Any], str]]] = {
    "multinomial": [
        (lambda x: ~(x >= 0) | jnp.isinf(x), "probability tensor contains either `inf`, `nan` or element < 0"),
        (lambda x: x.sum(-1) <= 0, "invalid multinomial distribution (sum of probabilities <= 0)"),
    ],
    "poisson": [(lambda x: x < 0, "invalid Poisson rate, expected rate to be non-negative")],
    "binary_cross_entropy": [(lambda x: ~((x >= 0) & (x <= 1)), "all elements of input should be between 0 and 1")],
    "bernoulli": [(lambda x: ~((x >= 0) & (x <= 1)), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")],
}


def checks(name: str, named: dict[str, Any]) -> Iterator[Check]:
    """The checks of a call of the functional op `name` with these arrays."""
    name = name.removeprefix("aten::")
    if name in _ALONG_DIM:
        x, dim, index = named["self"], named["dim"], named["index"]
        size = x.shape[dim] if x.ndim else 1
        error = "RuntimeError" if name.startswith(_RUNTIME_ERROR) else "IndexError"
        low = -size if name.startswith("index_fill") else 0
        where = dim % max(x.ndim, 1)
        yield Check(index, low, size, error, f"index {{}} is out of bounds for dimension {where} with size {size}")
    elif name in _MANY:
        yield from _indices(named["self"], named["indices"])
    elif name in ("take", "put"):
        x = named["self"]
        yield Check(named["index"], -x.size, x.size, "IndexError",
                    f"out of range: tried to access index {{}} on a tensor of {x.size} elements.")  # fmt: skip
    elif name in _TABLES:
        error = "RuntimeError" if "bag" in name else "IndexError"
        yield Check(named["indices"], 0, named["weight"].shape[0], error, "index out of range in self: {}")
    elif name == "masked_scatter":
        x, mask, source = (named[n] for n in ("self", "mask", "source"))
        count = jnp.broadcast_to(mask, jnp.broadcast_shapes(mask.shape, x.shape)).sum()
        yield Check(count, 0, source.size + 1, "RuntimeError",
                    "Number of elements of source < number of ones in mask")  # fmt: skip
    elif name in _PARAMETERS:
        for wrong, text in _PARAMETERS[name]:
            yield Check(wrong(named["self"]), 0, 1, "RuntimeError", text)
    elif name.startswith("normal.") and hasattr(named["std"], "shape"):
        yield Check(named["std"] < 0, 0, 1, "RuntimeError", "normal expects all elements of std >= 0.0")
    elif name in ("max_unpool2d", "max_unpool3d"):
        size = math.prod(named["output_size"])
        text = f"Found an invalid max index: {{}} (output volumes are of {size} elements)"
        yield Check(named["indices"], 0, size, "RuntimeError", text)
    elif name in _MARGINS:
        low, text = _MARGINS[name]
        yield Check(named["target"], low, named["self"].shape[-1], "RuntimeError", text)
    elif name in _TARGETS:
        target, classes = named["target"], named["self"].shape[1 if named["self"].ndim > 1 else 0]
        kept = jnp.where(target == named["ignore_index"], 0, target)
        yield Check(kept, 0, classes, "IndexError", "Target {} is out of bounds.")


def _indices(x: Any, indices: list[Any]) -> Iterator[Check]:
    dim = 0
    for index in indices:
        if index is not None and index.dtype in (jnp.bool_, jnp.uint8):
            dim += index.ndim
            continue
        if index is not None:
            size = x.shape[dim]
            yield Check(
                index, -size, size, "IndexError", f"index {{}} is out of bounds for dimension {dim} with size {size}"
            )
        dim += 1


def worst(check: Check) -> Any:
    """int64[2]: whether an index is out of range, and the first that is."""
    flat = check.index.reshape(-1).astype(jnp.int64)
    if flat.size == 0:
        return jnp.zeros(2, jnp.int64)
    wrong = (flat < check.low) | (flat >= check.high)
    return jnp.stack([wrong.any().astype(jnp.int64), flat[jnp.argmax(wrong)]])
