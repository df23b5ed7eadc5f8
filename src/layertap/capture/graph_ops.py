"""Two operations for torch's own compilers: the statistics of a tensor in one kernel, and a copy with an event.

Both are functions, as a compiler sees them: their results are outputs of the graph, so they are neither dropped nor
served from an earlier run. The event is a help alone, lest a copy to the host wait for the whole graph.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from layertap.capture.collectives import complete
from layertap.measure import kernel, slab
from layertap.measure import measure as measure_now


class _Here(threading.local):
    """The recording in this thread."""

    live = True
    """Whether the values are used; if not, memory is allocated for them and nothing is computed."""

    def __init__(self) -> None:
        self.ready: dict[int, torch.cuda.Event] = {}


_here = _Here()


@contextlib.contextmanager
def recording(live: bool) -> Iterator[dict[int, torch.cuda.Event]]:
    """Around a call of a graph; gives the events by the address of their copy."""
    before = _here.live
    _here.live, _here.ready = live, {}
    try:
        yield _here.ready
    finally:
        _here.live = before


def measure(tensor: torch.Tensor) -> torch.Tensor:
    """The slab of a tensor (measure/slab.py)."""
    result: torch.Tensor = torch.ops.layertap.measure(tensor)
    return result


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor, all its own."""
    result: torch.Tensor = torch.ops.layertap.keep(tensor)
    return result


def kernel_reads(dtype: str, device: str) -> bool:
    """Whether `measure` takes such tensors."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    if device == "cuda":
        return kernel.available(torch.device("cuda")) and kernel.supported(kind)
    return device == "cpu" and not kind.is_complex


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    if _idle(tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    copy = complete(tensor).clone(memory_format=torch.contiguous_format)
    if copy.is_cuda and _usual_stream(copy.device):
        _here.ready[copy.data_ptr()] = torch.cuda.current_stream(copy.device).record_event()
    return copy


def _usual_stream(device: torch.device) -> bool:
    # CUDA graphs are captured, and tried out before that, on a stream of their own, and take back what they return:
    # such a copy has no owner, so it gets no event, and is copied once more.
    return bool(torch._C._cuda_getCurrentRawStream(device.index) == kernel.DEFAULT_STREAM)


def _measure(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        if _idle(tensor):
            return torch.empty(slab.SLAB_BYTES, dtype=torch.uint8, device=tensor.device)
        return torch.from_numpy(np.frombuffer(bytearray(slab.encode(measure_now(complete(tensor)))), np.uint8))
    room = torch.empty(slab.SLAB_BYTES, dtype=torch.uint8, device=tensor.device)
    if not _idle(tensor):
        kernel.launch(complete(tensor).contiguous(), room)
    return room


def _idle(tensor: torch.Tensor) -> bool:
    # What a CUDA graph is made of is replayed for steps that are recorded too.
    return not _here.live and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


@functools.cache
def register() -> Any:
    """Makes the operations known to torch; the result must be kept, or they go again."""
    library = torch.library.Library("layertap", "DEF")
    for name, function, fake in (("keep", _keep, _keep_fake), ("measure", _measure, _measure_fake)):
        library.define(f"{name}(Tensor tensor) -> Tensor")
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"layertap::{name}", fake, lib=library)
    return library


def _keep_fake(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _measure_fake(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(slab.SLAB_BYTES, dtype=torch.uint8, device=tensor.device)


register()
