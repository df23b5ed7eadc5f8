"""Where the reference's tensors wait: on their device, then in memory, then on disk, within a budget."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch

from layertap.errors import LayertapError
from layertap.fault.model_runner import version
from layertap.messages import tr


class CachedTensor:
    """One tensor on the cache."""

    __slots__ = ("_file", "_tensor", "ndim")

    def __init__(self, tensor: torch.Tensor | None, ndim: int, file: Path | None = None) -> None:
        self._tensor, self.ndim, self._file = tensor, ndim, file

    def get(self, device: torch.device | None = None) -> torch.Tensor:
        """The tensor; it belongs to the cache, so it must not be written to."""
        tensor = self._tensor
        if tensor is None:
            assert self._file is not None
            tensor = torch.load(self._file, weights_only=True)
        return tensor if device is None else tensor.to(device)


class TensorCache:
    """Copies of tensors; the same tensor, put twice, is kept once."""

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        """Bytes on devices and in memory together; None for half of what is free on the device, a quarter of memory."""
        self._memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if budget is None else budget
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

    def remember(self, tensor: torch.Tensor, slot: CachedTensor) -> None:
        """Notes that a tensor holds what a slot holds."""
        if not tensor.is_inference():  # those do not count their changes
            self._known[id(tensor)] = (weakref.ref(tensor), version(tensor), slot)

    def close(self) -> None:
        """Gives everything back."""
        self._known.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _place(self, tensor: torch.Tensor) -> CachedTensor:
        size = tensor.numel() * tensor.element_size()
        if tensor.is_cuda and self._fits_device(tensor.device, size):
            self.on_device += size
            return CachedTensor(tensor.clone(), tensor.ndim)
        taken = self.in_memory + (self.on_device if self._budget is not None else 0)
        if taken + size <= self._memory:
            self.in_memory += size
            return CachedTensor(tensor.to("cpu", copy=True), tensor.ndim)
        return self._write(tensor, size)

    def _fits_device(self, device: torch.device, size: int) -> bool:
        free, _ = torch.cuda.mem_get_info(device)
        room = (self.on_device + free) // 2
        return self.on_device + size <= (room if self._budget is None else min(room, self._budget))

    def _write(self, tensor: torch.Tensor, size: int) -> CachedTensor:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="layertap-")
        file = Path(self._folder.name) / f"{len(self._known)}-{self.on_disk}.pt"
        try:
            torch.save(tensor.cpu().clone(), file)  # a view would bring its whole storage along
        except (OSError, RuntimeError) as error:
            raise LayertapError(tr("fault.budget", memory=self._memory, parent=file.parent, error=error)) from error
        self.on_disk += size
        return CachedTensor(None, tensor.ndim, file)


def describe(cache: TensorCache) -> dict[str, Any]:
    """How many bytes lie where."""
    return {"device": cache.on_device, "memory": cache.in_memory, "disk": cache.on_disk}
