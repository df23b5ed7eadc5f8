"""Where the reference's tensors wait: on their device, then in the machine's memory, then on disk, within a budget."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch

from layertap.errors import LayertapError
from layertap.fault.model_runner import version
from layertap.fault.prefetch import Prefetch
from layertap.messages import tr

WINDOW = 512 << 20
"""Bytes on the device for what is brought back from the machine's memory; of a small budget a quarter."""
ASKED_AGAIN = 256 << 20
"""After so many bytes, or a sixteenth of what there is room for, the device is asked again what is free: it takes as
long as measuring tens of tensors."""


class CachedTensor:
    """One tensor on the cache: there, in a file, or by its number among those that wait in pinned memory."""

    __slots__ = ("_tensor", "_where", "dtype", "is_nested", "ndim", "shape")

    def __init__(
        self, like: torch.Tensor, tensor: torch.Tensor | None, where: Path | tuple[Prefetch, int] | None = None
    ) -> None:
        self._tensor, self._where = tensor, where
        self.dtype, self.ndim, self.is_nested = like.dtype, like.ndim, like.is_nested
        self.shape: tuple[int, ...] = () if like.is_nested else tuple(like.shape)
        """Of a nested tensor none is known."""

    def get(self, device: torch.device | None = None) -> torch.Tensor:
        """The tensor; it belongs to the cache, so it must not be written to."""
        tensor = self._tensor
        if isinstance(self._where, tuple):
            prefetch, number = self._where
            tensor = prefetch.here(number) if device == prefetch.device else prefetch.away(number)
        elif tensor is None:
            assert self._where is not None
            tensor = torch.load(self._where, weights_only=True)
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
        """What is kept of a tensor, if it lies where that does, or else the tensor itself."""
        slot = self.slot_of(tensor)
        return tensor if slot is None else slot.beside(tensor)

    def remember(self, tensor: torch.Tensor, slot: CachedTensor) -> None:
        """Notes that a tensor holds what a slot holds."""
        if not tensor.is_inference():  # those do not count their changes
            self._known[id(tensor)] = (weakref.ref(tensor), version(tensor), slot)

    def rewind(self) -> None:
        """Says that a run begins, in which tensors are asked for in the order in which they were put."""
        for prefetch in self._prefetch.values():
            prefetch.rewind()

    def close(self) -> None:
        """Gives everything back."""
        self._known.clear()
        self._prefetch.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _place(self, tensor: torch.Tensor) -> CachedTensor:
        size = tensor.numel() * tensor.element_size()
        on_device = self._has_room(tensor)
        if on_device and self._fits_device(tensor.device, size):
            self.on_device += size
            return CachedTensor(tensor, tensor.clone())
        memory = self._memory if on_device or self._budget is None else self._budget
        if self.in_memory + size > memory:
            return self._write(tensor, size)
        self.in_memory += size
        if on_device and tensor.layout == torch.strided:
            prefetch = self._prefetch.setdefault(tensor.device, Prefetch(tensor.device, self._window))
            return CachedTensor(tensor, None, (prefetch, prefetch.put(tensor)))
        return CachedTensor(tensor, tensor.to("cpu", copy=True))

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
        room = self._room[0] if self._budget is None else min(self._room[0], self._budget)
        return self.on_device + size <= room - self._window

    def _write(self, tensor: torch.Tensor, size: int) -> CachedTensor:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="layertap-")
        file = Path(self._folder.name) / f"{len(self._known)}-{self.on_disk}.pt"
        try:
            torch.save(tensor.cpu().clone(), file)  # a view would bring its whole storage along
        except (OSError, RuntimeError) as error:
            raise LayertapError(
                tr("fault.budget", memory=self._budget or self._memory, parent=file.parent, error=error)
            ) from error
        self.on_disk += size
        return CachedTensor(tensor, None, file)


def _free(device: torch.device) -> int:
    """What the device has left, and what torch keeps of it without use."""
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_stats_as_nested_dict(device)  # the usual way sorts all of it under names, for each number
    return int(free + held["reserved_bytes"]["all"]["current"] - held["allocated_bytes"]["all"]["current"])


def describe(cache: TensorCache) -> dict[str, Any]:
    """How many bytes lie where."""
    return {"device": cache.on_device, "memory": cache.in_memory, "disk": cache.on_disk}
