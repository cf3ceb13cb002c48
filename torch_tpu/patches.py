"""What of PyTorch is replaced because it has no registration point: each patch with its reason."""

from __future__ import annotations

from typing import Any

import torch

_dlpack, _dlpack_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__


def apply() -> None:
    """Apply all patches."""
    torch.Tensor.__dlpack__ = _export
    torch.Tensor.__dlpack_device__ = _export_device


# DLPack has no device type for TPUs, and PyTorch's methods name the devices they know. A tensor on tpu is handed over
# as a copy on the CPU, which is what NumPy, JAX and any other library can read.


def _export(self: torch.Tensor, **options: Any) -> Any:
    if self.device.type != "tpu":
        return _dlpack(self, **options)
    if options.get("copy") is False:
        raise BufferError("a tensor on tpu can only be exported through DLPack as a copy: copy=False can't be had")
    options.pop("dl_device", None)
    return _dlpack(self.cpu(), **options)


def _export_device(self: torch.Tensor) -> Any:
    return _dlpack_device(self) if self.device.type != "tpu" else _dlpack_device(torch.empty(0))


_export.__doc__, _export_device.__doc__ = _dlpack.__doc__, _dlpack_device.__doc__
