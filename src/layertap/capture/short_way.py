"""The types of the short way: those of tap.c, or plain ones where it could not be built, and all goes the long way."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import _symbolic_trace

from layertap.capture import plain_types
from layertap.measure import native

try:
    _tap: Any = importlib.import_module("layertap.capture._tap")
except ImportError:  # no compiler, or no headers of Python, where layertap was built
    _tap = plain_types

if TYPE_CHECKING:
    from layertap.capture.plain_types import (
        BatchBase,
        CallNumbers,
        GatheringBase,
        KernelLaunch,
        PartBase,
        RecordingBase,
        SlotBase,
        TapBase,
        TapCounts,
        UnderWayBase,
        take,
    )
else:
    BatchBase, GatheringBase, RecordingBase = _tap.BatchBase, _tap.GatheringBase, _tap.RecordingBase
    SlotBase, PartBase, KernelLaunch = _tap.SlotBase, _tap.PartBase, _tap.KernelLaunch
    TapBase, TapCounts, CallNumbers, UnderWayBase = _tap.TapBase, _tap.TapCounts, _tap.CallNumbers, _tap.UnderWayBase
    take = _tap.take

__all__ = [
    "BatchBase",
    "CallNumbers",
    "GatheringBase",
    "KernelLaunch",
    "PartBase",
    "RecordingBase",
    "SlotBase",
    "TapBase",
    "TapCounts",
    "UnderWayBase",
    "available",
    "connect",
    "copies_on_devices",
    "fetch",
    "methods_of",
    "take",
]


def connect(**ours: Any) -> None:
    """Tells tap.c where it finds what it asks for at every call: of torch here, `ours` are layertap's own."""
    if not available():
        return
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    names = {
        "tensor_type": tensor,
        "parameter_type": torch.nn.Parameter,
        "function_type": FunctionType,
        "tuple_new": tuple.__new__,
        "interpreters": torch._C._functorch.peek_interpreter_stack,
        "graph_task": torch._C._current_graph_task_id,
        "tracing_state": torch._C._get_tracing_state,
        "is_compiling": torch.compiler.is_compiling,
        "fx_tracing": _symbolic_trace,
        "global_pre_hooks": torch.nn.modules.module._global_forward_pre_hooks,
        "contiguous": lambda x: x.detach().contiguous(),
        "current_device": getattr(torch._C, "_cuda_getDevice", None),
        "current_stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
        "modules": sys.modules,
        "is_neg": tensor.is_neg,
        "is_contiguous": tensor.is_contiguous,
        "data_ptr": tensor.data_ptr,
        "storage_offset": tensor.storage_offset,
        "storage": tensor.untyped_storage,
        "storage_bytes": storage.nbytes,
    }
    _tap.connect(names | ours, ctypes.cast(native.taker(), ctypes.c_void_p).value or 0)


def available() -> bool:
    """Whether there is a short way."""
    return _tap is not plain_types and native.available()


def methods_of(cls: Any, *, call: Any, forward: Any, simple: bool) -> dict[str, Any]:
    """`__call__` and `forward` of a tapped subclass of `cls`; the given ones, in Python, are their general form."""
    if not available():
        return {"__call__": call, "forward": forward}
    made: dict[str, Any] = {"__call__": _tap.Call(), "forward": _tap.Forward()}
    for name, general in (("__call__", call), ("forward", forward)):
        made[name].cls, made[name].general, made[name].simple = cls, general, simple
    return made


def copies_on_devices() -> bool:
    """Whether it can copy a tensor of a CUDA device, without torch."""
    return _tap is not plain_types and torch.version.hip is None and bool(_tap.find_driver())


def fetch() -> Any:
    """What brings bytes from a device to the host in one call that does not hold Python's lock; None without it."""
    return _tap.fetch if copies_on_devices() and _tap.can_fetch() else None
