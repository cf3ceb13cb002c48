"""Compiled speed against plain JAX: `python benchmarks/compiled.py`.

A GPT and a small Llama of 4 layers, 256 wide, batch 4x128, float32, written once in PyTorch and once in JAX: forward,
and a training step with AdamW. torch.compile makes three programs of the step, JAX one. JAX's program is an op of ours,
so the same plugin compiles it and the same core runs it; parameters and optimizer state are donated in both. And what
a call of a compiled function costs when it has next to nothing to do.

Parameters have PyTorch's shapes in both. XLA's CPU plugin is slower at products with weights of [out, in] than of
[in, out], as JAX's libraries have them: there JAX's forward is 1.2 times as fast. TPUs have no such preference.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from bars import Bars, table
from compiled_models import (
    BATCH,
    BETAS,
    DECAY,
    EPS,
    GPT,
    HEAD,
    LAYERS,
    LENGTH,
    LR,
    VOCABULARY,
    InTorch,
    Llama,
)
from torch import Tensor, nn

from torch_tpu.compile.program import define

LIMIT, CALL_LIMIT = 1.10, 60.0


# --- the same in JAX. p: parameters by their names in PyTorch


def linear(p: dict[str, Any], name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def layer_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def rms_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p[f"{name}.weight"]


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal. [batch, length, heads, head], with fewer heads of keys and values perhaps."""
    k, v = (jnp.repeat(t, q.shape[2] // t.shape[2], 2) for t in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD**0.5
    mask = jnp.tril(jnp.ones(scores.shape[2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*q.shape[:2], -1)


def heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1, HEAD)


def gpt(p: dict[str, Any], tokens: Any) -> Any:
    x = p["tokens.weight"][tokens] + p["positions.weight"][: tokens.shape[1]]
    for i in range(LAYERS):
        at = f"layers.{i}."
        q, k, v = (heads(t) for t in jnp.split(linear(p, at + "qkv", layer_norm(p, at + "norm1", x)), 3, 2))
        x = x + linear(p, at + "out", attention(q, k, v))
        up = jax.nn.gelu(linear(p, at + "up", layer_norm(p, at + "norm2", x)), approximate=False)
        x = x + linear(p, at + "down", up)
    return linear(p, "head", layer_norm(p, "norm", x))


def llama(p: dict[str, Any], tokens: Any) -> Any:
    x = p["tokens.weight"][tokens]
    angles = jnp.arange(LENGTH, dtype=jnp.float32)[:, None] * 10000.0 ** (
        -jnp.arange(0, HEAD, 2, dtype=jnp.float32) / HEAD
    )
    angles = jnp.concatenate([angles, angles], 1)[:, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)

    def rotary(t: Any) -> Any:
        return t * cos + jnp.concatenate([-t[..., HEAD // 2 :], t[..., : HEAD // 2]], -1) * sin

    for i in range(LAYERS):
        at = f"layers.{i}."
        h = rms_norm(p, at + "norm1", x)
        q, k, v = (heads(linear(p, at + name, h)) for name in "qkv")
        x = x + linear(p, at + "out", attention(rotary(q), rotary(k), v))
        h = rms_norm(p, at + "norm2", x)
        x = x + linear(p, at + "down", jax.nn.silu(linear(p, at + "gate", h)) * linear(p, at + "up", h))
    return linear(p, "head", rms_norm(p, "norm", x))


def loss_of(logits: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1).mean()


def adamw(p: Any, g: Any, m: Any, v: Any, step: Any) -> tuple[Any, Any, Any]:
    m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
    denominator = jnp.sqrt(v) / jnp.sqrt(1 - BETAS[1] ** step) + EPS
    return p * (1 - LR * DECAY) - LR / (1 - BETAS[0] ** step) * m / denominator, m, v


class InJax:
    """A model in JAX, run by our core: its forward and its step are ops."""

    def __init__(self, name: str, fn: Callable[..., Any], module: nn.Module, tokens: Tensor) -> None:
        self.names = [n for n, _ in module.named_parameters()]
        self.state = [p.detach().clone() for p in module.parameters()]
        self.count, self.tokens = len(self.state), tokens
        self.state += [torch.zeros_like(p) for p in self.state * 2]
        self.steps = torch.zeros((), device=tokens.device)

        def forward(written: Sequence[Any], inputs: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
            return [fn(dict(zip(self.names, inputs[1:], strict=True)), inputs[0])]

        def step(written: Sequence[Any], inputs: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
            n, count, tokens = self.count, written[-1] + 1, inputs[0]
            p, m, v = written[:n], written[n : 2 * n], written[2 * n : 3 * n]
            loss, grads = jax.value_and_grad(
                lambda p: loss_of(fn(dict(zip(self.names, p, strict=True)), tokens)[:, :-1], tokens[:, 1:])
            )(p)
            new = [adamw(*each, count) for each in zip(p, grads, m, v, strict=True)]
            return [loss, *(x for part in zip(*new, strict=True) for x in part), count]

        logits = torch.empty(*tokens.shape, VOCABULARY, device="meta")
        metas = [x.to("meta") for x in (*self.state, self.steps)]
        self._forward = define(f"jax_{name}_forward", forward, lambda sizes: [logits], 1)
        self._step = define(f"jax_{name}_step", step, lambda sizes: [torch.empty((), device="meta"), *metas], 1)

    def forward(self) -> Tensor:
        return self._forward([], [self.tokens, *self.state[: self.count]], [])[0]

    def step(self) -> Tensor:
        return self._step([*self.state, self.steps], [self.tokens], [])[0]


def milliseconds(runs: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """The median time of a call of each, in turns of five."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            for i in range(6):
                began = time.perf_counter()
                run()
                torch.tpu.synchronize()
                if i:
                    times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def call_overhead() -> float:
    """Microseconds of a call of a compiled function that adds 1 to a number."""
    fn, x = torch.compile(lambda x: x + 1), torch.zeros((), device="tpu")
    times = []
    with torch.no_grad():
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                fn(x)
            torch.tpu.synchronize()
            times.append((time.perf_counter() - began) / 200 * 1e6)
    return statistics.median(times)


def main() -> None:
    """Measure, check that both compute the same, print, compare with the bars."""
    torch.manual_seed(0)
    bars, rows = Bars(), []
    for name, cls, fn in (("GPT", GPT, gpt), ("Llama", Llama, llama)):
        module, tokens = cls().to("tpu"), torch.randint(VOCABULARY, (BATCH, LENGTH), device="tpu")
        there = InJax(name.lower(), fn, module, tokens)
        here = InTorch(module, tokens)
        torch.testing.assert_close(here.forward(), there.forward(), rtol=1e-4, atol=1e-4)
        for kind, rounds in (("forward", 10), ("step", 5)):
            time_of = milliseconds({"torch": getattr(here, kind), "jax": getattr(there, kind)}, rounds)
            rows.append((f"{name} {kind}", time_of["torch"], time_of["jax"], time_of["torch"] / time_of["jax"]))
        torch.testing.assert_close(here.step(), there.step(), rtol=1e-3, atol=1e-3)
    for name, _, _, ratio in rows:
        bars.at_most(f"{name}, torch.compile / JAX", ratio, LIMIT)
    bars.at_most("a call of a compiled function", call_overhead(), CALL_LIMIT, " us")
    table(["", "torch, ms", "JAX, ms", "ratio"], rows)
    bars.finish()


if __name__ == "__main__":
    main()
