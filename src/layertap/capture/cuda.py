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
        self._rings: dict[int, _Ring] = {}

    def fetch(self, tensor: torch.Tensor, ready: torch.cuda.Event, into: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor in host memory (in `into`, if given), once `ready` has happened and the copy is done."""
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") if into is None else into
        nbytes = tensor.nbytes
        if nbytes:
            self._ring(tensor.get_device(), nbytes).fetch(tensor, ready, whole, nbytes)
        return whole

    def _ring(self, device: int, nbytes: int) -> _Ring:
        chunk = FIRST_CHUNK if nbytes <= 4 * FIRST_CHUNK else CHUNK
        ring = self._rings.get(device)
        if ring is None or ring.chunk < chunk:
            ring = self._rings[device] = _Ring(device, chunk)
        return ring


class _Ring:
    """Pinned memory in two halves, on the side stream of a device: one half fills while the other is copied out."""

    def __init__(self, device: int, chunk: int) -> None:
        self.chunk = chunk
        self._memory = torch.empty((2, chunk), dtype=torch.uint8, device="cpu", pin_memory=True)
        with torch.cuda.device(device):
            self._side = torch.cuda.Stream()
            self._filled = torch.cuda.Event(blocking=True), torch.cuda.Event(blocking=True)
            for event in self._filled:
                event.record(self._side)  # an event has no handle before
        self._numbers = (
            *(self._side.cuda_stream, *(event.cuda_event for event in self._filled)),
            *(self._memory.data_ptr(), chunk),
        )
        self._device, self._fetch = device, short_way.fetch()

    def fetch(self, tensor: torch.Tensor, ready: torch.cuda.Event, whole: torch.Tensor, nbytes: int) -> None:
        """Copies the bytes of a contiguous tensor into one of the host's, and waits for them."""
        with torch.cuda.device(self._device):
            if self._fetch is not None:
                try:
                    self._fetch(ready.cuda_event, *self._numbers, tensor.data_ptr(), whole.data_ptr(), nbytes)
                    return
                except RuntimeError:  # torch makes another try, or says what is wrong
                    self._fetch = None
            self._in_steps(tensor.reshape(-1).view(torch.uint8), ready, whole.data_ptr())

    def _in_steps(self, flat: torch.Tensor, ready: torch.cuda.Event, address: int) -> None:
        """The same by torch, where tap.c could not be built or the driver is another."""
        self._side.wait_event(ready)
        filled: list[tuple[int, int, int]] = []
        with torch.cuda.stream(self._side):
            for turn, start in enumerate(range(0, len(flat), self.chunk)):
                nbytes = min(self.chunk, len(flat) - start)
                self._memory[turn % 2, :nbytes].copy_(flat[start : start + nbytes], non_blocking=True)
                self._filled[turn % 2].record(self._side)
                filled.append((turn % 2, address + start, nbytes))
                if len(filled) == 2:
                    self._empty(*filled.pop(0))
            for last in filled:
                self._empty(*last)

    def _empty(self, half: int, address: int, nbytes: int) -> None:
        self._filled[half].synchronize()
        # Not by torch, which wakes its threads for it: on some machines they keep every core busy for 10 ms afterwards.
        ctypes.memmove(address, self._memory[half].data_ptr(), nbytes)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def by_slabs(rows: list[int], slabs: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
    """The rows whose results are in each tensor of slabs; the last one may have none yet.

    >>> [(len(rows), slabs) for rows, slabs in by_slabs(list(range(SLABS + 1)), ["first", "second", "third"])]
    [(256, 'first'), (1, 'second')]
    """
    for number, start in enumerate(range(0, len(rows), SLABS)):
        yield rows[start : start + SLABS], slabs[number]
