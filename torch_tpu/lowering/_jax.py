"""JAX, imported at the first lowering instead of at `import torch`.

Lowering modules write `from ._jax import jax, jnp, lax` and use the names inside functions only, so the tables of
rules can be read (which arguments are runtime values, which ops exist) without paying for JAX.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any


class LazyModule:
    """A module imported at its first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            _restrict_jax_to_cpu()
            self._module = importlib.import_module(self._name)
        value = getattr(self._module, attribute)
        setattr(self, attribute, value)
        return value


def _restrict_jax_to_cpu() -> None:
    """JAX only writes programs here: it must never open the TPU that the PJRT client owns."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


jax: Any = LazyModule("jax")
jnp: Any = LazyModule("jax.numpy")
lax: Any = LazyModule("jax.lax")
jsp: Any = LazyModule("jax.scipy")
