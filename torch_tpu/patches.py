"""What of PyTorch is replaced because it has no registration point: each patch with its reason."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.attention import flex_attention

_Inductor = torch._TorchCompileInductorWrapper
_inductor_init, _inductor_call = _Inductor.__init__, _Inductor.__call__
_flex_operator = flex_attention.flex_attention_hop
_flex_validate_device = flex_attention._validate_device
_dlpack, _dlpack_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__


def apply() -> None:
    """Apply all patches."""
    torch.Tensor.__dlpack__ = _export
    torch.Tensor.__dlpack_device__ = _export_device
    flex_attention._validate_device = _flex_on_device
    _flex_operator.py_impl(torch._C.DispatchKey.AutocastPrivateUse1)(_flex_autocast)
    torch._TorchCompileInductorWrapper.__init__ = _init_default_backend
    torch._TorchCompileInductorWrapper.__call__ = _call_default_backend


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


# Which backend torch.compile takes when none is named is fixed. Graphs on tpu go to backend "tpu", others to Inductor.


@functools.wraps(_inductor_init)
def _init_default_backend(self: Any, mode: Any, options: Any, dynamic: Any, *args: Any, **kwargs: Any) -> None:
    from .compile import dynamo

    dynamo.register()
    _inductor_init(self, mode, options, dynamic, *args, **kwargs)
    self.asked = {"mode": mode, "options": options}


@functools.wraps(_inductor_call)
def _call_default_backend(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
    from .compile import backend, is_on_device

    if is_on_device(graph):
        return backend(graph, inputs, **self.asked)
    return _inductor_call(self, graph, inputs, **kwargs)


# flex_attention names the devices that it takes. Its operator has a rule for autocast on each device, and asks for one.


@functools.wraps(_flex_validate_device)
def _flex_on_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if query.device.type != "tpu":
        _flex_validate_device(query, key, value)


def _flex_autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    dtype = torch.get_autocast_dtype("tpu")
    cast = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (query, key, value)]
    with torch._C._ExcludeDispatchKeyGuard(keys):
        return _flex_operator(*cast, *more)
