"""What Dynamo must know of the device."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch._dynamo import config, decorators, device_interface
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import SkipFunctionVariable, UserMethodVariable
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch._subclasses import fake_impls
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from .. import layouts


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
        """No version: nothing depends on it."""
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
    OptimizerVariable.var_getattr = _attribute_of_optimizer
    SkipFunctionVariable.call_function = _call_skipped
    TensorVariable.method_attr_grad = _gradient
    for op in _CONVOLUTIONS:
        theirs = fake_impls.op_implementations_dict[op]
        fake_impls.op_implementations_dict[op] = functools.partial(_convolution, theirs)
    fake_impls.op_implementations_dict[torch.ops.aten._grouped_mm.default] = _grouped_mm
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state"):
        # Nothing to compile, and they are called where no tensor may be looked at (torch.testing's freeze_rng_state).
        decorators.skip(getattr(torch.tpu, name))


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


_attribute_elsewhere = OptimizerVariable.var_getattr
_call_skipped_elsewhere = SkipFunctionVariable.call_function


def _attribute_of_optimizer(self: OptimizerVariable, tx: Any, name: str) -> Any:
    """What Dynamo finds in an optimizer, whose step may be in one graph with forward and backward.

    Dynamo runs `_init_group` itself while it traces, with the gradients that there are, which can't be had from a
    backward in the same graph: that one is traced. It also turns parameters into constants of the graph when they are
    reached through an optimizer, and then finds no leaves for backward, which does nothing without a word.
    """
    if config.trace_autograd_ops and _is_for_device(self.value):
        if name == "param_groups":
            self._set_capturable(tx)
            return UserDefinedObjectVariable.var_getattr(self, tx, name)
        if name == "step" and hasattr(self.value.step, "_wrapped_by_lr_sched"):
            self.value._opt_called = True  # all that the scheduler's wrapper does
            return UserMethodVariable(self.value.step.__wrapped__, self)
        if name == "zero_grad" or (name == "_init_group" and _has_traced_gradients(self, tx)):
            return UserMethodVariable(inspect.unwrap(getattr(type(self.value), name)), self)
    return _attribute_elsewhere(self, tx, name)


def _call_skipped(self: SkipFunctionVariable, tx: Any, args: Any, kwargs: Any) -> Any:
    """The break that PyTorch puts around a step is for steps alone, so that no_grad holds for the whole graph."""
    if config.trace_autograd_ops and self.value is torch._dynamo.graph_break:
        caller = tx.symbolic_locals.get("self")
        if isinstance(caller, OptimizerVariable) and _has_traced_gradients(caller, tx):
            return ConstantVariable.create(None)
    return _call_skipped_elsewhere(self, tx, args, kwargs)


_gradient_elsewhere = TensorVariable.method_attr_grad


def _gradient(self: TensorVariable, tx: Any) -> Any:
    """`x.grad`. Dynamo notes where a value is from on the value, and has one None for all: it would be from here."""
    result = _gradient_elsewhere(self, tx)
    return ConstantVariable(None) if result is ConstantVariable.create(None) else result


def _is_for_device(optimizer: torch.optim.Optimizer) -> bool:
    return all(p.device.type == "tpu" for group in optimizer.param_groups for p in group["params"])


def _has_traced_gradients(self: OptimizerVariable, tx: Any) -> bool:
    """Whether the graph so far gives a parameter of the optimizer another gradient, or none."""
    effects = tx.output.side_effects
    parameters = (p for group in self.value.param_groups for p in group["params"])
    known = (effects.id_to_variable.get(id(p)) for p in parameters)
    return _is_for_device(self.value) and any(v is not None and effects.has_pending_mutation(v) for v in known)


_CONVOLUTIONS = tuple(getattr(torch.ops.aten, n).default for n in ("convolution", "_convolution"))


def _convolution(theirs: Any, mode: Any, op: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A fake convolution: PyTorch's rule gives channels_last for the backends that it knows only."""
    out = theirs(mode, op, *args, **kwargs)
    operands = [*args, *kwargs.values()][:2]
    if out.device.type != "tpu" or any(map(has_free_unbacked_symbols, operands)):
        return out
    with mode:
        return layouts.as_promised(op, operands, out)


def _grouped_mm(
    mode: Any,
    op: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """A fake torch._grouped_mm: PyTorch's asks for bfloat16 and CUDA's alignment on all devices but the CPU."""
    if a.device.type != "tpu":
        return NotImplemented
    groups = [offs.shape[0]] if a.ndim == b.ndim == 2 else list(a.shape[:1]) if a.ndim == b.ndim == 3 else []
    with mode:
        return a.new_empty([*groups, a.shape[-2], b.shape[-1]], dtype=out_dtype)
