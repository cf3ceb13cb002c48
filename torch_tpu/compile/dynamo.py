"""What Dynamo must know of the device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._dynamo.variables.optimizer import OptimizerVariable


class TpuInterface(device_interface.DeviceInterface):
    """`torch.tpu` as Dynamo asks for it."""

    device = torch.tpu.device
    Event, Stream = torch.tpu.Event, torch.tpu.Stream
    current_device = staticmethod(torch.tpu.current_device)
    set_device = staticmethod(torch.tpu.set_device)
    device_count = staticmethod(torch.tpu.device_count)
    is_available = staticmethod(torch.tpu.is_available)
    synchronize = staticmethod(torch.tpu.synchronize)
    stream = staticmethod(torch.tpu.stream)
    current_stream = staticmethod(torch.tpu.current_stream)
    set_stream = staticmethod(torch.tpu.set_stream)

    class Worker:
        """The same in a process that compiles."""

        set_device = staticmethod(torch.tpu.set_device)
        current_device = staticmethod(torch.tpu.current_device)
        get_device_properties = staticmethod(torch.tpu.get_device_properties)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """None: nothing depends on it."""
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Always."""
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        """All dtypes are."""
        return True


@functools.cache
def register() -> None:
    """Register the device's interface in place of Dynamo's own, which is made for another package."""
    device_interface.get_interface_for_device("tpu")  # registers all of Dynamo's
    device_interface.register_interface_for_device("tpu", TpuInterface)
    OptimizerVariable._set_capturable = _set_capturable


_set_capturable_elsewhere = OptimizerVariable._set_capturable


def _set_capturable(self: OptimizerVariable, tx: Any) -> None:
    """Optimizers that were not used yet keep their step counts on the device, as Dynamo does it for CUDA by name.

    Counts on the CPU, of optimizers that ran before, work as well; a compiled step computes with them on the CPU.
    """
    optimizer = self.value
    for group in optimizer.param_groups:
        new = all(p.device.type == "tpu" and p not in optimizer.state for p in group["params"])
        if "capturable" in group and new:
            group["capturable"] = True
    _set_capturable_elsewhere(self, tx)
