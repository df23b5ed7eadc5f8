"""The types of the short way: those of tap.c, or plain ones where it could not be built, and all goes the long way."""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from layertap.measure import native

if TYPE_CHECKING:
    from layertap.capture import _tap
    from layertap.capture._tap import Batch, Counts, Gathering, Numbers, Part, Recording, Slot, Tap, take
else:
    try:
        _tap = importlib.import_module("layertap.capture._tap")
    except ImportError:  # no compiler, or no headers of Python, where layertap was built
        from layertap.capture import plain_types as _tap

    Counts, Numbers, Slot, Part = _tap.Counts, _tap.Numbers, _tap.Slot, _tap.Part
    Batch, Gathering, Recording, Tap = _tap.Batch, _tap.Gathering, _tap.Recording, _tap.Tap
    take = _tap.take

__all__ = [
    "Batch",
    "Counts",
    "Gathering",
    "Numbers",
    "Part",
    "Recording",
    "Slot",
    "Tap",
    "available",
    "connect",
    "copies_on_devices",
    "take",
]


def connect(moment_type: type, marks: list[int]) -> None:
    """Tells tap.c where it finds what it asks torch for at every call."""
    if not available():
        return
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    names = {
        "tensor_type": tensor,
        "parameter_type": torch.nn.Parameter,
        "moment_type": moment_type,
        "tuple_new": tuple.__new__,
        "interpreters": torch._C._functorch.peek_interpreter_stack,
        "graph_task": torch._C._current_graph_task_id,
        "marks": marks,
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
    _tap.connect(names, ctypes.cast(native.taker(), ctypes.c_void_p).value or 0)


def available() -> bool:
    """Whether there is a short way."""
    return _tap.__name__.endswith("._tap") and native.available()


def copies_on_devices() -> bool:
    """Whether it can copy a tensor of a CUDA device, without torch."""
    return torch.version.hip is None and _tap.find_driver()
