"""TorchTPU: PyTorch on TPUs, as the device "tpu". Loaded by `import torch` through the entry point `torch.backends`."""

from __future__ import annotations

import atexit
import os


def _autoload() -> None:
    """The entry point: importing the package is what registers the device.

    Defined before torch is imported: where this package is imported first, that import calls it.
    """


import torch  # noqa: E402

from . import _C, batching, device, host, patches, runtime  # noqa: E402

__version__ = "0.1.0"
__all__ = ["__version__"]


def _register() -> None:
    """Make the device known to PyTorch. Starts nothing: the PJRT client is made at first use."""
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", device)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _C.set_device_count(runtime.device_count())
    _C.join_autograd()
    patches.apply()
    batching.register()
    host.register()
    atexit.register(_C.settle_autograd)
    _C.set_memory_limit(runtime.total_memory())
    _C.set_cpu_fallback(_setting("TORCH_TPU_FALLBACK", "", "cpu") == "cpu")
    _C.set_debug_mode(_setting("TORCH_TPU_MODE", "strict", "debug") == "debug")
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    torch.backends.tpu = device.Backend()
    if device.is_available():
        # accelerate doesn't ask for this device by itself, while the Trainer of transformers does: let them agree.
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "tpu")


def _setting(name: str, *allowed: str) -> str:
    """An environment variable that must be one of `allowed`; the first if it is not set."""
    value = os.environ.get(name, allowed[0])
    if value not in allowed:
        raise RuntimeError(f"{name}={value} must be one of {', '.join(map(repr, allowed))}, or unset")
    return value


_register()
