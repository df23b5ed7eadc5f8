"""The way from a CUDA device to the host, without one synchronisation in the calling thread.

In the tap, on the model's own stream: a small tensor is copied into its batch's arena, a large one is measured by one
kernel into a slab, one that is kept is cloned. In the writer's thread: a side stream waits for that, copies into pinned
memory, and only this thread waits for the copy. Small tensors are measured there, by the CPU: their bytes are hardly
more than a slab's, so a kernel for each would take longer than all the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from layertap.capture import short_way
from layertap.capture.buffers import Buffers
from layertap.measure import kernel, measure, native
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES, decode
from layertap.store.columns import HEAD, ROW_BYTES

if TYPE_CHECKING:
    from layertap.capture.gathering import Batch

CHUNK = 32 << 20
"""Half of the pinned ring: one half fills from the device while the other is copied out."""
FIRST_CHUNK = 1 << 20
"""The same until more is fetched at once: pinning 64 MB takes 25 ms, in which no thread can launch a kernel."""
SLABS = 256
"""Slabs that are allocated together."""

Arrive = Callable[[], tuple[Measurement | None, torch.Tensor | None]]


class DevicePart(short_way.PartBase):
    """What is on one device of a batch, in the order of one stream."""

    def __init__(self, device: torch.device, nbytes: int, host_copier: HostCopier) -> None:
        super().__init__()
        self.queue = torch.cuda.current_stream(device)
        self.index, self.stream = device.index, self.queue.cuda_stream
        self.arena = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.address = self.arena.data_ptr()
        self.begin = self.end = 0
        self.segments: list[list[int]] = []
        """Where the arena has been filled: [begin, end]."""
        self.slabs: list[torch.Tensor] = []
        self.rows: list[int] = []
        """The row of each slab."""
        self.slab = self.last_slab = self.waiting = 0
        self.slab_bytes = SLAB_BYTES
        self.kernels: kernel.Deferred | None = None
        self.ready: torch.cuda.Event | None = None
        self._host_copier = host_copier

    def measure_with(self, kernels: kernel.Deferred) -> None:
        """Says by what tensors are measured here."""
        self.kernels = kernels
        self.scratch, self.scratch_bytes = kernels.scratch
        self.together = kernels.TOGETHER

    def measure(self, tensor: torch.Tensor, row: int) -> None:
        """Enqueues the measuring of a contiguous tensor into the next slab."""
        kernels, place = self._resumed(), len(self.rows) % SLABS
        kernels.launch(tensor, self._last_slabs(), place)
        self.rows.append(row)
        self._go_on(kernels)

    def make_slabs(self) -> None:
        """Makes room for another tensor that tap.c measures."""
        kernels = self._resumed()
        if self.waiting == self.together or len(self.slabs) * SLABS == len(self.rows):
            kernels.finish()
        self._last_slabs()
        self._go_on(kernels)

    def finish(self) -> None:
        """Completes the slabs."""
        self.close_segment()
        if self.kernels is not None:
            with torch.cuda.stream(self.queue):
                self._resumed().finish()

    def _resumed(self) -> kernel.Deferred:
        """The kernels, with what tap.c has launched of them."""
        kernels = self.kernels
        assert kernels is not None, "`measure_with` comes first"
        end = (len(self.rows) - 1) % SLABS + 1
        kernels.resume(self.slabs[-1] if self.slabs else None, self.waiting, end)
        return kernels

    def _last_slabs(self) -> torch.Tensor:
        if len(self.slabs) * SLABS == len(self.rows):
            self.slabs.append(torch.empty((SLABS, SLAB_BYTES), dtype=torch.uint8, device=self.arena.device))
        return self.slabs[-1]

    def _go_on(self, kernels: kernel.Deferred) -> None:
        """Tells tap.c where the next slab is."""
        begin = self.slabs[-1].data_ptr()
        used = len(self.rows) - (len(self.slabs) - 1) * SLABS
        self.slab, self.last_slab = begin + used * SLAB_BYTES, begin + SLABS * SLAB_BYTES
        self.waiting = kernels.waiting

    def arrive(self, batch: Batch) -> None:
        """Brings everything to the host (in the writer's thread)."""
        assert self.ready is not None, "a batch left before it was sealed"
        for begin, end in self.segments:
            into = torch.from_numpy(batch.arena[begin:end])
            self._host_copier.fetch(self.arena[begin:end], self.ready, into)
        whole = np.frombuffer(batch.records.buffer, np.uint8).reshape(-1, ROW_BYTES)
        for rows, slabs in by_slabs(self.rows, self.slabs):
            whole[rows, HEAD.size :] = self._host_copier.fetch(slabs[: len(rows)], self.ready).numpy()


class CudaLane:
    """Measures and copies CUDA tensors for one sink."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._host_copier = HostCopier()
        self._kernels: dict[tuple[torch.device, int], kernel.Deferred] = {}

    def part(self, index: int, stream: int, nbytes: int) -> DevicePart:
        """A new part of a batch, on the stream that is current there."""
        part = DevicePart(torch.device("cuda", index), nbytes, self._host_copier)
        assert part.stream == stream, "another stream became current meanwhile"
        return part

    def measure(self, batch: Batch, tensor: torch.Tensor, row: int) -> None:
        """Measures a contiguous tensor into a slab, by one kernel on the current stream."""
        self.measuring_part(batch, tensor.get_device()).measure(tensor, row)

    def measuring_part(self, batch: Batch, index: int) -> DevicePart:
        """The part of a batch on the current stream of a device, with kernels."""
        part = batch.use_part(index, torch._C._cuda_getCurrentRawStream(index))
        if part.kernels is None:
            device = part.arena.device
            key = (device, part.stream)
            part.measure_with(self._kernels.get(key) or self._kernels.setdefault(key, kernel.Deferred(device)))
        return part

    def take(
        self,
        tensor: torch.Tensor,
        kept: torch.Tensor | None,
        *,
        owned: bool = False,
        ready: torch.cuda.Event | None = None,
    ) -> Arrive:
        """Measures a tensor and clones what is kept of it (unless it is owned), all on the current stream."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        with torch.cuda.device(tensor.device):
            if kept is tensor and native.available():
                # The whole of it comes to the host anyway, and the CPU measures the very bytes that are written.
                copy = tensor if owned and tensor.is_contiguous() else _clone(tensor)
                early = ready if copy is tensor else None
                return self._whole(copy, early or torch.cuda.current_stream().record_event())
            if kernel.available(tensor.device) and kernel.supported(real.dtype):
                return self._slab_and_part(real.contiguous(), kept)
            return self._measured_on_host(tensor, kept)

    def of_slabs(self, slabs: Sequence[torch.Tensor]) -> Iterator[Callable[[], npt.NDArray[np.uint8]]]:
        """Takes slabs that a graph has filled; reads them one by one, in the writer's thread."""
        reads: dict[int, Callable[[], npt.NDArray[np.uint8]]] = {}
        for device in dict.fromkeys(slab.device for slab in slabs):
            here = [place for place, slab in enumerate(slabs) if slab.device == device]
            with torch.cuda.device(device):
                # Together: they cross over in one copy, and a CUDA graph may write to its own again.
                together = torch.stack([slabs[place] for place in here])
                fetched = _Fetched(together, torch.cuda.current_stream().record_event(), self._host_copier)
            reads |= {place: fetched.reader(index) for index, place in enumerate(here)}
        return iter([reads[place] for place in range(len(slabs))])

    def seal(self, batch: Batch) -> None:
        """Marks on each stream where the batch ends."""
        for part in batch.parts.values():
            part.finish()
            part.ready = part.queue.record_event()

    def _whole(self, copy: torch.Tensor, done: torch.cuda.Event) -> Arrive:
        def arrive() -> tuple[Measurement, torch.Tensor]:
            host = self._fetch_kept(copy, done)
            return measure(host), host

        return arrive

    def _slab_and_part(self, real: torch.Tensor, kept: torch.Tensor | None) -> Arrive:
        slab = torch.empty(SLAB_BYTES, dtype=torch.uint8, device=real.device)
        kernel.launch(real, slab)
        copy, count = None if kept is None else _clone(kept), real.numel()
        done = torch.cuda.current_stream().record_event()

        def arrive() -> tuple[Measurement, torch.Tensor | None]:
            measured = decode(self._host_copier.fetch(slab, done).numpy(), count)
            return measured, None if copy is None else self._fetch_kept(copy, done)

        return arrive

    def _measured_on_host(self, tensor: torch.Tensor, kept: torch.Tensor | None) -> Arrive:
        whole, part = _clone(tensor), None if kept is None else _clone(kept)
        done = torch.cuda.current_stream().record_event()

        def arrive() -> tuple[Measurement, torch.Tensor | None]:
            measured = measure(self._host_copier.fetch(whole, done))
            return measured, None if part is None else self._fetch_kept(part, done)

        return arrive

    def _fetch_kept(self, copy: torch.Tensor, done: torch.cuda.Event) -> torch.Tensor:
        return self._host_copier.fetch(copy, done, self._buffers.empty(tuple(copy.shape), copy.dtype))


class _Fetched:
    """Slabs that cross over together: the first to ask fetches them all."""

    def __init__(self, slabs: torch.Tensor, ready: torch.cuda.Event, host_copier: HostCopier) -> None:
        self._slabs, self._ready, self._host_copier = slabs, ready, host_copier
        self._host: npt.NDArray[np.uint8] | None = None

    def reader(self, index: int) -> Callable[[], npt.NDArray[np.uint8]]:
        def read() -> npt.NDArray[np.uint8]:
            if self._host is None:
                self._host = self._host_copier.fetch(self._slabs, self._ready).numpy()
            row: npt.NDArray[np.uint8] = self._host[index]
            return row

        return read


class HostCopier:
    """Fetches device tensors through a pinned ring on a side stream; used by one writer's thread alone."""

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[torch.cuda.Stream, torch.Tensor]] = {}

    def fetch(self, tensor: torch.Tensor, ready: torch.cuda.Event, into: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor in host memory (in `into`, if given), once `ready` has happened and the copy is done."""
        flat = tensor.reshape(-1).view(torch.uint8)
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") if into is None else into
        host = whole.reshape(-1).view(torch.uint8)
        with torch.cuda.device(tensor.device):
            side, ring = self._lane(tensor.device.index, flat.numel())
            side.wait_event(ready)
            with torch.cuda.stream(side):
                filled: list[tuple[slice, torch.Tensor, torch.cuda.Event]] = []
                chunk = ring.shape[1]
                for turn, start in enumerate(range(0, flat.numel(), chunk)):
                    place = slice(start, min(start + chunk, flat.numel()))
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

    def _lane(self, device: int, nbytes: int) -> tuple[torch.cuda.Stream, torch.Tensor]:
        chunk = FIRST_CHUNK if nbytes <= 4 * FIRST_CHUNK else CHUNK
        side, ring = self._lanes.get(device) or (torch.cuda.Stream(), None)
        if ring is None or ring.shape[1] < chunk:
            ring = torch.empty((2, chunk), dtype=torch.uint8, device="cpu", pin_memory=True)
            self._lanes[device] = side, ring
        return side, ring


def _empty(filled: tuple[slice, torch.Tensor, torch.cuda.Event], host: torch.Tensor) -> None:
    place, half, event = filled
    event.synchronize()
    # Not by torch, which wakes its threads for it: on some machines they keep every core busy for 10 ms afterwards.
    ctypes.memmove(host.data_ptr() + place.start, half.data_ptr(), half.nbytes)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def by_slabs(rows: list[int], slabs: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
    """The rows whose results are in each tensor of slabs; the last one may have none yet.

    >>> [(len(rows), slabs) for rows, slabs in by_slabs(list(range(SLABS + 1)), ["first", "second", "third"])]
    [(256, 'first'), (1, 'second')]
    """
    for number, start in enumerate(range(0, len(rows), SLABS)):
        yield rows[start : start + SLABS], slabs[number]
