"""Run a lowering on JAX's CPU and compare with torch on CPU: no device needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.lowering import dtypes, interpret, registry, variants
from torch_tpu.lowering._jax import jax, jnp
from torch_tpu.lowering.context import Context, using

SEED = np.array([1234, 0, 0, 0], np.uint32)


def lowered(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the lowering of a functional op gives for CPU tensors, as CPU tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
    with mode:
        out = op(*fakes[0], **fakes[1])
    leaves, spec = pytree.tree_flatten((args, kwargs))
    rule = registry.RULES.get(op.name())
    runtime = _runtime_leaves(op, args, kwargs, rule.runtime if rule else ())
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) or i in runtime]

    def program(*arrays: Any) -> list[Any]:
        *arrays, rng = arrays
        filled = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            filled[i] = a
        a, k = pytree.tree_unflatten(filled, spec)
        with using(Context(rng=rng, matmul_precision=torch.get_float32_matmul_precision())):
            return interpret.lower(op, a, k, fakes, out)

    with jax.enable_x64(True):
        arrays = [_to_jax(leaves[i]) for i in places]
        specs = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=not isinstance(leaves[i], torch.Tensor))
            for i, a in zip(places, arrays, strict=True)
        ]
        rng = jax.ShapeDtypeStruct((4,), jnp.uint32)
        # The rules of the device's platform: those of JAX's CPU call into LAPACK, which no PJRT plugin has.
        traced = jax.jit(program, keep_unused=True).trace(*specs, rng)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
        values = [None if v is None else _to_torch(v) for v in compiled(*arrays, SEED)]
    return pytree.tree_unflatten(values, pytree.tree_structure(out))


def check(op: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Assert that the lowering of a functional op equals torch on CPU, in value, shape and dtype."""
    expected = op(*pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args), **kwargs)
    got = lowered(op, *args, **kwargs)
    for g, e in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(g, e, equal_nan=True, msg=lambda m: f"{op.name()}: {m}")


class CheckMode(TorchDispatchMode):
    """Compare every functional aten op that runs under this mode with its lowering, at its end; failures are collected.

    `with CheckMode() as m: model(x)` then `m.report()`: {op name: first error}.
    """

    # Not while the mode is on: tracing a decomposition inside of it crashes once torch.testing._internal is imported.

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[OpOverload, Any, Any]] = []
        self.failures: dict[str, str] = {}
        self.passed: dict[str, int] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op, a, k = func, args, kwargs
        if variants.mutates(func):
            functional = variants.functional(func)
            if functional is None:
                self.failures.setdefault(func.name(), "no functional form")
                return func(*args, **kwargs)
            op = functional.op
            names = {x.name for x in op._schema.arguments}
            k = {n: v for n, v in kwargs.items() if n in names}
        rule = registry.RULES.get(op.name())
        random = (rule and rule.random) or torch.Tag.nondeterministic_seeded in op.tags
        undefined = random or "empty" in op.name() or op.namespace == "profiler"
        if not undefined:
            a, k = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, (a, k))
            self.calls.append((op, a, k))
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for op, a, k in self.calls:
            try:
                check(op, *a, **k)
                self.passed[op.name()] = self.passed.get(op.name(), 0) + 1
            except Exception as e:  # noqa: BLE001 - every failure is a row of the report
                self.failures.setdefault(op.name(), f"{type(e).__name__}: {e}"[:600])
        self.calls.clear()

    def report(self) -> dict[str, str]:
        """{op name: its first error}."""
        return self.failures


def _runtime_leaves(op: OpOverload, args: Any, kwargs: Any, names: tuple[str, ...]) -> set[int]:
    marked = [x.name in names for x in op._schema.arguments[: len(args)]]
    tree = (
        [pytree.tree_map(lambda _, m=m: m, a) for m, a in zip(marked, args, strict=True)],
        {n: pytree.tree_map(lambda _, n=n: n in names, v) for n, v in kwargs.items()},
    )
    numbers = pytree.tree_leaves((args, kwargs))
    flags = pytree.tree_leaves(tree)
    return {
        i
        for i, (f, x) in enumerate(zip(flags, numbers, strict=True))
        if f and isinstance(x, (bool, int, float, complex))
    }


def _to_jax(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return jnp.asarray(x)
    x = x.detach().resolve_conj().resolve_neg()
    if x.dtype == torch.bfloat16 or (x.dtype.is_floating_point and x.dtype.itemsize == 1):
        return jnp.asarray(x.float().numpy()).astype(dtypes.to_jax(x.dtype))
    return jnp.asarray(x.numpy())


def _to_torch(x: Any) -> torch.Tensor:
    dtype = dtypes.to_torch(x.dtype)
    if dtype == torch.bfloat16 or (dtype.is_floating_point and dtype.itemsize == 1):
        return torch.from_numpy(np.array(x.astype(jnp.float32))).to(dtype)
    return torch.from_numpy(np.array(x))
