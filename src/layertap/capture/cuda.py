"""The way from a CUDA device to the host, without one synchronisation in the calling thread.

In the tap: one kernel on the model's own stream leaves the numbers in a slab on the device; a tensor that is kept is
cloned there instead. In the writer's thread: a side stream waits for that, copies into pinned memory, and only this
thread waits for the copy. Slabs are gathered and cross over together, since a copy costs more than a slab.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from layertap.capture.buffers import Buffers
from layertap.capture.keep import STATS, Level
from layertap.capture.pending_record import Draft, PendingRecord
from layertap.measure import kernel, measure, native
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES, decode

BATCH = 256
"""Slabs that cross to the host together."""
CHUNK = 32 * 1024 * 1024
"""Half of the pinned ring: one half fills from the device while the other is copied out."""


class CudaLane:
    """Measures and copies CUDA tensors for one sink."""

    def __init__(self, send: Callable[[PendingRecord], None], buffers: Buffers) -> None:
        self._send = send
        self._buffers = buffers
        self._courier = _Courier()
        self._lock = threading.Lock()
        self._batches: dict[tuple[int, int], _Batch] = {}

    def put(
        self,
        draft: Draft,
        tensor: torch.Tensor,
        kept: torch.Tensor | None,
        level: Level,
        nbytes: int,
        *,
        ours: bool = False,
        ready: torch.cuda.Event | None = None,
    ) -> None:
        """Measures a tensor and clones what is kept of it (unless it is ours), all on the current stream."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        with torch.cuda.device(tensor.device):
            if kept is tensor and native.available():
                # The whole of it comes to the host anyway, and the CPU measures the very bytes that are written.
                copy = tensor if ours and tensor.is_contiguous() else _clone(tensor)
                early = ready if copy is tensor else None
                self._carry_whole(draft, copy, early or torch.cuda.current_stream().record_event(), level, nbytes)
            elif not (kernel.available(tensor.device) and kernel.supported(real.dtype)):
                self._measure_on_host(draft, tensor, kept, level, nbytes)
            elif kept is None:
                self._gather(draft, real.contiguous(), level)
            else:
                self._carry(draft, real.contiguous(), kept, level, nbytes)

    def put_slabs(self, measured: Sequence[tuple[Draft, torch.Tensor]]) -> None:
        """Takes slabs that a graph has filled, on the current stream of each device."""
        for device in dict.fromkeys(slab.device for _, slab in measured):
            here = [(draft, slab) for draft, slab in measured if slab.device == device]
            with torch.cuda.device(device):
                # Together: they cross over in one copy, and a CUDA graph may write to its own again.
                batch = _Batch(torch.stack([slab for _, slab in here]), torch.cuda.current_stream(), self._courier)
                for index, (draft, _) in enumerate(here):
                    batch.waiting.append(PendingRecord(draft, STATS, batch.reader(index, math.prod(draft.shape))))
                batch.ready = batch.stream.record_event()
            for parcel in batch.waiting:
                self._send(parcel)

    def seal(self) -> None:
        """Sends on what has been gathered."""
        with self._lock:
            batches = list(self._batches.values())
            self._batches.clear()
            for batch in batches:
                batch.ready = batch.stream.record_event()
        for batch in batches:
            for parcel in batch.waiting:
                self._send(parcel)

    def _gather(self, draft: Draft, real: torch.Tensor, level: Level) -> None:
        stream = torch.cuda.current_stream()
        place, count = (real.device.index, stream.cuda_stream), real.numel()
        with self._lock:
            batch = self._batches.get(place)
            if batch is None:
                slabs = torch.empty((BATCH, SLAB_BYTES), dtype=torch.uint8, device=real.device)
                batch = self._batches[place] = _Batch(slabs, stream, self._courier)
            index = len(batch.waiting)
            kernel.launch(real, batch.slabs[index])
            batch.waiting.append(PendingRecord(draft, level, batch.reader(index, count)))
        if index + 1 == BATCH:
            self.seal()

    def _carry_whole(self, draft: Draft, copy: torch.Tensor, done: torch.cuda.Event, level: Level, nbytes: int) -> None:
        def arrive() -> tuple[Measurement, torch.Tensor]:
            host = self._fetch_kept(copy, done)
            return measure(host), host

        self._send(PendingRecord(draft, level, arrive, nbytes))

    def _carry(self, draft: Draft, real: torch.Tensor, kept: torch.Tensor, level: Level, nbytes: int) -> None:
        slab = torch.empty(SLAB_BYTES, dtype=torch.uint8, device=real.device)
        kernel.launch(real, slab)
        copy, count = _clone(kept), real.numel()
        done = torch.cuda.current_stream().record_event()

        def arrive() -> tuple[Measurement, torch.Tensor]:
            return decode(self._courier.fetch(slab, done).numpy(), count), self._fetch_kept(copy, done)

        self._send(PendingRecord(draft, level, arrive, nbytes))

    def _fetch_kept(self, copy: torch.Tensor, done: torch.cuda.Event) -> torch.Tensor:
        return self._courier.fetch(copy, done, self._buffers.empty(tuple(copy.shape), copy.dtype))

    def _measure_on_host(
        self, draft: Draft, tensor: torch.Tensor, kept: torch.Tensor | None, level: Level, nbytes: int
    ) -> None:
        whole, part = _clone(tensor), None if kept is None else _clone(kept)
        done = torch.cuda.current_stream().record_event()

        def arrive() -> tuple[Measurement, torch.Tensor | None]:
            measured = measure(self._courier.fetch(whole, done))
            return measured, None if part is None else self._fetch_kept(part, done)

        self._send(PendingRecord(draft, level, arrive, nbytes))


@dataclass(slots=True)
class _Batch:
    """Slabs of one stream, filled row by row; sealed by an event after the last kernel."""

    slabs: torch.Tensor
    stream: torch.cuda.Stream
    courier: _Courier
    waiting: list[PendingRecord] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    host: npt.NDArray[np.uint8] | None = None

    def reader(self, index: int, count: int) -> Callable[[], tuple[Measurement, None]]:
        return lambda: (self.row(index, count), None)

    def row(self, index: int, count: int) -> Measurement:
        """One result; the first to ask fetches them all (in the writer's thread)."""
        if self.host is None:
            assert self.ready is not None, "a parcel left before its batch was sealed"
            self.host = self.courier.fetch(self.slabs[: len(self.waiting)], self.ready).numpy()
        return decode(self.host[index], count)


class _Courier:
    """Fetches device tensors through a pinned ring on a side stream; used by one writer's thread alone."""

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[torch.cuda.Stream, torch.Tensor]] = {}

    def fetch(self, tensor: torch.Tensor, ready: torch.cuda.Event, into: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor in host memory (in `into`, if given), once `ready` has happened and the copy is done."""
        flat = tensor.reshape(-1).view(torch.uint8)
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") if into is None else into
        host = whole.reshape(-1).view(torch.uint8)
        with torch.cuda.device(tensor.device):
            side, ring = self._lane(tensor.device.index)
            side.wait_event(ready)
            with torch.cuda.stream(side):
                filled: list[tuple[slice, torch.Tensor, torch.cuda.Event]] = []
                for turn, start in enumerate(range(0, flat.numel(), CHUNK)):
                    place = slice(start, min(start + CHUNK, flat.numel()))
                    half = ring[turn % 2, : place.stop - start]
                    half.copy_(flat[place], non_blocking=True)
                    event = torch.cuda.Event(blocking=True)
                    event.record(side)
                    filled.append((place, half, event))
                    if len(filled) == 2:
                        _empty(filled.pop(0), host)
                for last in filled:
                    _empty(last, host)
        return whole

    def _lane(self, device: int) -> tuple[torch.cuda.Stream, torch.Tensor]:
        if device not in self._lanes:
            ring = torch.empty((2, CHUNK), dtype=torch.uint8, device="cpu", pin_memory=True)
            self._lanes[device] = (torch.cuda.Stream(), ring)
        return self._lanes[device]


def _empty(filled: tuple[slice, torch.Tensor, torch.cuda.Event], host: torch.Tensor) -> None:
    place, half, event = filled
    event.synchronize()
    host[place].copy_(half)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
