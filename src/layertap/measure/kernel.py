"""Statistics, fingerprint and sketch of a CUDA tensor in one launch that reads it once and never synchronises.

A program walks tiles of a few rows (definition.py says what a row is) with everything in registers: one thread owns a
few neighbouring lanes, so their hashes are computed once, and sums over them need no other thread. The fast path takes
all values to be finite and of ordinary size; after every chunk of tiles one flag reports whether that held, and if not,
the chunk is thrown away and read again by the exact path, in float64. Programs leave partial results; the last one to
finish adds them up, always in the same order, so the same tensor gives the same bits every time.

Here is the host's side; fused.py is the device's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from layertap.measure.bits import FOUND
from layertap.measure.definition import LANES
from layertap.measure.fused import FIELDS, HEADER, MOST, _finish_all, _measure
from layertap.measure.launching import Prepared
from layertap.measure.slab import SLAB_BYTES
from layertap.messages import tr

_EXACT = ("int32", "int64")  # float32 arithmetic would lose digits of these
_FAST = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "uint8", "bool")
_KINDS = {getattr(torch, name): name for name in _FAST + _EXACT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How the kernel is laid out for one kind of number."""

    warps: int = 16
    rows: int = 4
    """Of a tile: enough loads in flight to cover the memory's latency."""
    chunk: int = 16
    """Tiles between two looks at whether all was finite. Few: a chunk that is not is read again, and a thread adds in
    float32 no further than that. Of bytes rows * chunk may be 255 at most: that many fit in what they are added up in.
    """
    slices: int = 1
    """Programs that share a row."""
    per_sm: int = 1
    """Programs on a multiprocessor."""
    packed: bool = False
    """Two or four numbers in a register, by instructions that Hopper chips have (packed.py)."""


# As tuned on an H200 by `benchmarks/gpu_kernel.py --tune`.
GEOMETRY = {
    **dict.fromkeys(("float32", "int32"), Geometry()),
    "int16": Geometry(),
    "float64": Geometry(packed=True, slices=4, rows=16, chunk=4),
    "int64": Geometry(slices=4, rows=8, chunk=8),
    **dict.fromkeys(("bfloat16", "float16"), Geometry(packed=True, chunk=64)),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), Geometry(packed=True, rows=8, chunk=32)),
    **dict.fromkeys(("int8", "uint8", "bool"), Geometry(packed=True, rows=16, chunk=8)),
}
OLDER = Geometry()
"""In the place of the packed ones, on a chip before Hopper or where the address does not allow it."""
SHORT = 4 << 20
"""Of 16- and 8-bit numbers with fewer bytes OLDER is used: it needs no whole tile, and 1 MB of 16 bits is as fast."""


def available(device: torch.device) -> bool:
    """Whether tensors on `device` can be measured by the kernel."""
    return FOUND and device.type == "cuda" and torch.version.hip is None


def supported(dtype: torch.dtype) -> bool:
    """Whether the kernel can read `dtype`; complex tensors are passed as their real view."""
    return dtype in _KINDS


def launch(tensor: torch.Tensor, slab: torch.Tensor) -> None:
    """Enqueues on the current stream the one kernel that measures a contiguous `tensor` into `slab`.

    `slab` is SLAB_BYTES of uint8 on the same device, 16-byte aligned; `slab.decode` reads it once the stream is there.
    """
    device = tensor.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # a kernel is launched on the current device
            launch(tensor, slab)
        return
    if not tensor.is_contiguous() or slab.numel() != SLAB_BYTES or slab.data_ptr() % 16:
        raise ValueError(
            tr(
                "measure.slab",
                SLAB_BYTES=SLAB_BYTES,
                stride=tensor.stride(),
                numel=slab.numel(),
                data_ptr=slab.data_ptr(),
            )
        )
    stream, scratch = _scratch(device)
    _enqueue(tensor, slab.view(torch.int64), scratch, stream, MOST, defer=False)


class Deferred:
    """Tensors of one device and stream that are measured one by one, and whose sums are finished together.

    The last program of a launch would else add up what all have left, alone, while the rest of the chip has nothing to
    do: for a tensor of some megabytes that takes as long as reading it.
    """

    TOGETHER = 32

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = HEADER + MOST * FIELDS + MOST * 256 // 2
        self._scratch = torch.zeros((self.TOGETHER, self._words), dtype=torch.int64, device=device)
        self._room = self._scratch.data_ptr()
        self._waiting = 0
        self._slabs: torch.Tensor | None = None

    def launch(self, tensor: torch.Tensor, slabs: torch.Tensor, index: int) -> None:
        """Enqueues the measuring of a contiguous tensor into `slabs[index]`, on the stream that is current."""
        waiting = self._waiting
        if waiting and (self._slabs is not slabs or waiting == self.TOGETHER):
            self.finish()
            waiting = 0
        if self._slabs is None:
            self._slabs, self._address = slabs, slabs.data_ptr()
        self._end = index + 1
        place, count, stream = tensor.data_ptr(), tensor.numel(), stream_of(self._device)
        ready = _ready.get(_key(self._device, tensor.dtype, place, count, defer=True))
        if ready is None:
            slab = slabs.view(torch.int64)[index]
            _enqueue(tensor, slab, self._scratch[waiting], stream, MOST, defer=True)
        else:
            scratch, slab_place = self._room + 8 * self._words * waiting, self._address + SLAB_BYTES * index
            ready.launch(stream, place, slab_place, scratch, count)
        self._waiting = waiting + 1

    @property
    def scratch(self) -> tuple[int, int]:
        """Where the parts wait, and how many bytes each tensor's take."""
        return self._room, 8 * self._words

    @property
    def waiting(self) -> int:
        """Tensors whose sums wait."""
        return self._waiting

    def resume(self, slabs: torch.Tensor | None, waiting: int, end: int) -> None:
        """Takes over what was launched by somebody else: so many tensors wait, up to `slabs[end - 1]`."""
        self._slabs, self._waiting, self._end = (slabs if waiting else None), waiting, end
        if self._slabs is not None:
            self._address = self._slabs.data_ptr()

    def finish(self) -> None:
        """Enqueues the one kernel that completes all slabs since the last time."""
        if not self._waiting or self._slabs is None:
            return
        stream, count = stream_of(self._device), self._waiting
        first = self._slabs.view(torch.int64)[self._end - count]
        ready = _finishing.get(self._device.index)
        if ready is not None:
            ready(count, stream, first.data_ptr(), self._scratch.data_ptr(), self._words)
        else:
            constants = {"N": MOST, "SLAB": SLAB_BYTES // 8}
            arguments = (first, self._scratch, self._words)
            compiled = _finish_all[(count,)](*arguments, **constants, num_warps=8)
            if compiled is not None:  # triton's interpreter compiles nothing
                _finishing[self._device.index] = Prepared(compiled, list(constants.values()), len(arguments))
        self._waiting, self._slabs = 0, None


class _Ready:
    """The kernel for one kind of tensor: triton takes some 60 us to find out which of its compiled ones fits."""

    def __init__(self, geometry: Geometry, device: torch.device, most: int) -> None:
        self._tile = geometry.rows * LANES
        self._slices = geometry.slices
        self._workers = min(_programs(device, geometry), most) // geometry.slices
        self.prepared: Prepared | None = None

    @property
    def description(self) -> dict[str, int] | None:
        """What a launch by the driver needs to know; None where triton itself must launch it."""
        driver = None if self.prepared is None else self.prepared.driver
        if driver is None:
            return None
        names = ("function", "threads", "shared", "tile", "lanes", "workers", "slices")
        return dict(zip(names, (*driver, self._tile, LANES, self._workers, self._slices), strict=True))

    def grid(self, count: int) -> tuple[int, int]:
        """Programs for so many elements, and how many tiles are whole: other rows are each for another program."""
        full = count // self._tile
        pieces = full + -(-(count - full * self._tile) // LANES)
        return (min(pieces, self._workers) or 1) * self._slices, full

    def launch(self, stream: int, place: int, slab: int, scratch: int, count: int) -> None:
        programs, full = self.grid(count)
        self.prepared(programs, stream, place, slab, scratch, count, full)  # type: ignore[misc]  # once it is compiled


def described(device: torch.device, dtype: torch.dtype, count: int) -> dict[str, int] | None:
    """How aligned tensors of so many elements are measured, once one was (`Deferred.launch`)."""
    ready = _ready.get(_key(device, dtype, 0, count, defer=True))
    return None if ready is None else ready.description


def _key(device: torch.device, dtype: torch.dtype, place: int, count: int, defer: bool) -> tuple[Any, ...]:
    """Tensors of one key are measured by one compiled kernel."""
    return device.index, dtype, place % 16, count >= 2**31, count * dtype.itemsize < SHORT, defer


def _enqueue(
    tensor: torch.Tensor, slab: torch.Tensor, scratch: torch.Tensor, stream: int, most: int, *, defer: bool
) -> None:
    device, place, count = tensor.device, tensor.data_ptr(), tensor.numel()
    key = _key(device, tensor.dtype, place, count, defer)
    ready = _ready.get(key)
    if ready is not None:
        ready.launch(stream, place, slab.data_ptr(), scratch.data_ptr(), count)
        return
    kind, size = _KINDS[tensor.dtype], tensor.element_size()
    geometry = GEOMETRY[kind]
    short = size < 4 and count * size < SHORT
    if geometry.packed and (short or place % (8 * size if size < 4 else 8) or not _hopper(device)):
        geometry = replace(OLDER, slices=geometry.slices)
    lanes = 4096 // geometry.slices
    vector = (
        8 if geometry.packed and size < 4 else min(16 // size, lanes // (32 * geometry.warps))
    )  # that a thread loads at once
    constants = {
        "KIND": kind,
        "EXACT": kind in _EXACT,
        "ROWS": geometry.rows,
        "CHUNK": geometry.chunk,
        "GROUPS": lanes // vector,
        "VECTOR": vector,
        "SLICES": geometry.slices,
        "PACKED": geometry.packed,
        "N": most,
        "DEFER": defer,
    }
    ready = _Ready(geometry, device, most)
    programs, full = ready.grid(count)
    raw = tensor.detach().reshape(-1).view(_RAW[size])
    arguments = (raw, slab, scratch, count, full)
    options = {"num_warps": geometry.warps, "num_stages": 1, "enable_fp_fusion": True}
    compiled = _measure[(programs,)](*arguments, **constants, **options)
    if compiled is not None:
        ready.prepared = Prepared(compiled, list(constants.values()), len(arguments))
        _ready[key] = ready


DEFAULT_STREAM = 0
"""CUDA's name for it. A graph is never captured on it."""
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ready: dict[Any, _Ready] = {}
_finishing: dict[Any, Prepared] = {}
_kept: dict[int, torch.Tensor] = {}


def _scratch(device: torch.device) -> tuple[int, torch.Tensor]:
    """The current stream, and room for the partial results, which the default stream keeps from call to call."""
    words = HEADER + MOST * FIELDS + MOST * 256 // 2
    stream = stream_of(device)
    if device.type != "cuda":
        return stream, torch.zeros(words, dtype=torch.int64)
    if stream != DEFAULT_STREAM:
        # Two streams may run at once; a graph may be replayed on any, and what it allocates cannot be kept, not even
        # in the run before its capture, which has a stream of its own.
        return stream, torch.zeros(words, dtype=torch.int64, device=device)
    if device.index not in _kept:
        _kept[device.index] = torch.zeros(words, dtype=torch.int64, device=device)
    return stream, _kept[device.index]


def stream_of(device: torch.device) -> int:
    """The number of the current stream."""
    # The public way makes two objects, 20 us.
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


@lru_cache
def _programs(device: torch.device, geometry: Geometry) -> int:
    if device.type != "cuda":
        return 3 * geometry.slices  # triton's interpreter, in the tests
    return geometry.per_sm * int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
