"""Lowerings: one aten op, one short function on jax.lax/jax.numpy. Importing this reads the rules, not JAX."""

from __future__ import annotations

import functools
import importlib

MODULES = (
    "activations",
    "attention",
    "control_flow",
    "convolution",
    "creation",
    "ctc",
    "distance",
    "dynamic",
    "embedding",
    "fft",
    "flex_attention",
    "foreach",
    "grid_sampler",
    "histograms",
    "indexing",
    "jagged",
    "linalg",
    "losses",
    "matmul",
    "norm",
    "optim",
    "padding",
    "pointwise",
    "pooling",
    "quantization",
    "random",
    "reductions",
    "rnn",
    "scans",
    "searching",
    "segments",
    "shapes",
    "sorting",
    "special",
    "transformer",
    "upsample",
    "views",
)


@functools.cache
def load_rules() -> None:
    """Import every module of rules, so that `registry.RULES` is complete."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
