"""What Dynamo must know of the device."""

from __future__ import annotations

import functools

import torch
from torch._dynamo import device_interface


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
