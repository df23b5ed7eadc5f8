"""Where the reference's tensors wait: on their device, then in the machine's memory, then on disk, within a budget.

What is short is time, not room: of a decoder with 1.26 G parameters the trace takes 7 GB and a forward pass 23 ms. Of a
budget of 3 GiB, 4 GB have to lie in the machine's memory, and bringing them back takes 80 ms, more than a run. So

- a run brings back only what it measures or exchanges, and is not measured where its values are known: from the free
  run on, up to where the candidate leaves the reference (`ReplayOptions.like` and `skip`);
- what lies elsewhere is spread evenly over the run, and is copied both ways while the device computes.

Rejected: both models in lockstep, each in a thread, would save one or two copies of five; but code that keeps something
in a global (a context, a workspace, a cache) would mix up the two, and what is found would be ours. Computing the
reference anew in pieces takes a forward pass for each run, as long as copying. To run a module of the candidate by
itself as the reference leaves its own, it would have to be called with other objects than its caller's.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from layertap.errors import LayertapError
from layertap.fault.model_runner import version
from layertap.fault.prefetch import Prefetch
from layertap.messages import tr

WINDOW = 256 << 20
"""Bytes on the device for what is brought back from the machine's memory; of a small budget a quarter."""
ASKED_AGAIN = 256 << 20
"""After so many bytes, or a sixteenth of what there is room for, the device is asked again what is free: it takes as
long as measuring tens of tensors."""

SMALL = 1024
"""A tensor of less than one part in so many of the room stays on the device as long as there is a larger one."""

FIRST, EARLY = -(1 << 15), 4
"""Of a budget, once one part in so many is taken, what goes first, every second tensor, is copied while it stays: it is
likely to go, and the copies take longer than the run."""


class CachedTensor:
    """One tensor on the cache: there, in a file, or by its number among those that wait in pinned memory."""

    __slots__ = ("_tensor", "_where", "dtype", "is_nested", "ndim", "number", "offset", "shape", "stays")

    def __init__(self, like: torch.Tensor, number: int = 0, offset: int = 0) -> None:
        self._tensor: torch.Tensor | None = None
        self._where: Path | Prefetch | None = None
        self.number, self.offset = number, offset
        """In the order in which tensors were put, and how many bytes were put before it."""
        self.stays = False
        """Whether it stays where it is: somebody holds it there anyway."""
        self.dtype, self.ndim, self.is_nested = like.dtype, like.ndim, like.is_nested
        self.shape: tuple[int, ...] = () if like.is_nested else tuple(like.shape)
        """Of a nested tensor none is known."""

    def get(self, device: torch.device | None = None) -> torch.Tensor:
        """The tensor for a run on a device, or else where it was. It is the cache's: do not write to it."""
        tensor, where = self._tensor, self._where
        if tensor is None:
            if isinstance(where, Prefetch):
                if device is not None and device != where.device:
                    tensor = where.away(self.number)
                else:
                    tensor = where.once(self.number) if device is None else where.here(self.number)
            else:
                assert where is not None
                tensor = torch.load(where, weights_only=True)
        return tensor if device is None or tensor.device == device else tensor.to(device)

    def beside(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy, where it lies on the device of a tensor; or else that tensor."""
        return self._tensor if self._tensor is not None and self._tensor.device == tensor.device else tensor


class TensorCache:
    """Copies of tensors; the same tensor, put twice, is kept once."""

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        """Bytes where the models run: on devices, or in memory; None for half of what is free, a quarter of memory."""
        self._memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        """Bytes in the machine's memory, of what a device has no room for."""
        self._prefetch: dict[torch.device, Prefetch] = {}
        self._resident: dict[torch.device, list[tuple[int, int, CachedTensor]]] = {}
        """Of each device a heap of what lies there: first what goes first if there is no more room."""
        self._count = self._bytes = 0
        """Tensors that were put, and their bytes."""
        self._room: tuple[int, int] | None = None
        """Bytes that were free on the device for this, and when: how many lay there."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, CachedTensor]] = {}
        self.on_device = self.in_memory = self.on_disk = 0
        """Bytes in each place."""

    def put(self, tensor: torch.Tensor) -> CachedTensor:
        """Keeps a copy of what the tensor holds now."""
        known = self.slot_of(tensor)
        if known is not None:
            return known
        slot = self._place(tensor.detach())
        self.remember(tensor, slot)
        return slot

    def slot_of(self, tensor: torch.Tensor) -> CachedTensor | None:
        """The slot whose values this very tensor holds, unless somebody has written into it since."""
        reference, when, slot = self._known.get(id(tensor), (None, 0, None))
        if reference is None or reference() is not tensor or when != version(tensor):
            return None
        return slot

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is kept of a tensor that is held from now on: what the cache has of it, or else the tensor itself."""
        slot = self.slot_of(tensor)
        if slot is None:
            return tensor
        if isinstance(slot._where, Prefetch) and slot._where.device == tensor.device:
            slot._where.drop(slot.number)
            slot._tensor, slot._where = tensor.detach(), None
            self.in_memory, self.on_device = self.in_memory - _size(tensor), self.on_device + _size(tensor)
        slot.stays = True
        here = self._resident.get(tensor.device, [])
        while here and not self._fits_device(tensor.device, 0):
            self._send_away(heapq.heappop(here)[2])
        return slot.beside(tensor)

    def remember(self, tensor: torch.Tensor, slot: CachedTensor) -> None:
        """Notes that a tensor holds what a slot holds."""
        if not tensor.is_inference():  # those do not count their changes
            self._known[id(tensor)] = (weakref.ref(tensor), version(tensor), slot)

    def rewind(self, wanted: Iterable[CachedTensor]) -> None:
        """Says that a run begins, and which tensors it asks for, in the order in which they were put."""
        numbers = {slot.number for slot in wanted} if self._prefetch else set()
        for prefetch in self._prefetch.values():
            prefetch.rewind(self._count, numbers)

    def close(self) -> None:
        """Gives everything back."""
        self._known.clear()
        self._prefetch.clear()
        self._resident.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _place(self, tensor: torch.Tensor) -> CachedTensor:
        slot, size = CachedTensor(tensor, self._count, self._bytes), _size(tensor)
        self._count, self._bytes = self._count + 1, self._bytes + size
        on_device = self._has_room(tensor)
        movable = tensor.layout == torch.strided and not tensor.is_nested
        if on_device and (self._fits_device(tensor.device, size) or movable):
            here = self._resident.setdefault(tensor.device, [])
            place = self._turn(slot, size), slot.number, slot
            while here and here[0] < place and not self._fits_device(tensor.device, size):
                self._send_away(heapq.heappop(here)[2])
            slot._tensor = tensor.clone()
            self.on_device += size
            if not self._fits_device(tensor.device, 0):
                self._send_away(slot)
            elif movable:
                heapq.heappush(here, place)
                if self._budget is not None and place[0] < FIRST and EARLY * self.on_device > self._most:
                    self._of(tensor.device).put_early(slot._tensor, slot.number)
            return slot
        memory = self._memory if on_device or self._budget is None else self._budget
        if self.in_memory + size > memory:
            self._write(slot, tensor)
        else:
            self.in_memory += size
            slot._tensor = tensor.to("cpu", copy=True)
        return slot

    def _turn(self, slot: CachedTensor, size: int) -> int:
        """When a tensor has to go, the lower the earlier: the numbers' bits in reverse, so that at any time those that
        are gone are spread evenly over the run, and come back at an even pace; small ones last, it hardly pays."""
        return 1 if size * SMALL <= self._most else -int(f"{slot.number & 0xFFFF:016b}"[::-1], 2)

    def _send_away(self, slot: CachedTensor) -> None:
        """Moves a tensor from the device to the machine's memory, or to disk."""
        tensor = slot._tensor
        if tensor is None or slot.stays:
            return
        size = _size(tensor)
        slot._tensor = None
        self.on_device -= size
        if self.in_memory + size > self._memory:
            self._write(slot, tensor)
            return
        self.in_memory += size
        slot._where = self._of(tensor.device)
        slot._where.put(tensor, slot.number)

    def _of(self, device: torch.device) -> Prefetch:
        if device not in self._prefetch:
            self._prefetch[device] = Prefetch(device, self._window)
        return self._prefetch[device]

    @staticmethod
    def _has_room(tensor: torch.Tensor) -> bool:
        """Whether it lies on a device whose memory is known."""
        return tensor.is_cuda

    @property
    def _window(self) -> int:
        return WINDOW if self._budget is None else min(WINDOW, self._budget // 4)

    def _fits_device(self, device: torch.device, size: int) -> bool:
        if self._room is None or self.on_device + size > self._room[1] + max(ASKED_AGAIN, self._room[0] // 16):
            self._room = (self.on_device + _free(device)) // 2, self.on_device
        return self.on_device + size <= self._most - self._window

    @property
    def _most(self) -> int:
        """Bytes that the cache may take on a device, what is brought back included."""
        room = self._room[0] if self._room is not None else 0
        return room if self._budget is None else min(room, self._budget)

    def _write(self, slot: CachedTensor, tensor: torch.Tensor) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="layertap-")
        slot._where = Path(self._folder.name) / f"{slot.number}.pt"
        try:
            torch.save(tensor.cpu().clone(), slot._where)  # a view would bring its whole storage along
        except (OSError, RuntimeError) as error:
            raise LayertapError(
                tr("fault.budget", memory=self._budget or self._memory, parent=slot._where.parent, error=error)
            ) from error
        self.on_disk += _size(tensor)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _free(device: torch.device) -> int:
    """What the device has left, and what torch keeps of it without use."""
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_stats_as_nested_dict(device)  # the usual way sorts all of it under names, for each number
    return int(free + held["reserved_bytes"]["all"]["current"] - held["allocated_bytes"]["all"]["current"])


def describe(cache: TensorCache) -> dict[str, Any]:
    """How many bytes lie where."""
    return {"device": cache.on_device, "memory": cache.in_memory, "disk": cache.on_disk}
