"""Host memory for tensors under way, used again and again.

A fresh copy of each tensor would cost a page fault for every 4 KB, and malloc keeps what one thread allocates and
another frees: a run of equal tensors then holds several times its budget. Buffers are lent by exact size, since a model
makes the same shapes on every step.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict

import torch


class Buffers:
    """Lends host tensors; lent and spare ones together stay within the budget, as far as what is lent allows.

    >>> buffers = Buffers(budget=1000)
    >>> first = buffers.copy_of(torch.ones(4))
    >>> place = first.data_ptr()
    >>> buffers.take_back(first)
    >>> buffers.copy_of(torch.zeros(4)).data_ptr() == place
    True
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._lent = 0
        self._spare: OrderedDict[int, list[torch.UntypedStorage]] = OrderedDict()
        self._spare_bytes = 0
        self._lock = threading.Lock()

    @property
    def spare(self) -> int:
        """Bytes that are held and not lent."""
        return self._spare_bytes

    def limit(self, budget: int) -> None:
        """Sets another budget; spare buffers past it are let go."""
        with self._lock:
            self._budget = budget
            self._trim(0)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous host tensor with no particular contents."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return torch.empty(shape, dtype=dtype, device="cpu")
        with self._lock:
            storage = self._spare_of(nbytes)
            self._lent += nbytes
        if storage is None:
            storage = torch.UntypedStorage(nbytes)
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, _strides(shape))

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of a host tensor."""
        return self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def take_back(self, tensor: torch.Tensor) -> None:
        """Takes back a tensor that `empty` or `copy_of` lent; it may not be used any more."""
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if not nbytes:
            return
        with self._lock:
            self._lent -= nbytes
            if self._lent + self._spare_bytes + nbytes <= self._budget:
                self._spare.setdefault(nbytes, []).append(storage)
                self._spare_bytes += nbytes

    def _spare_of(self, nbytes: int) -> torch.UntypedStorage | None:
        found = self._spare.get(nbytes)
        if found:
            self._spare_bytes -= nbytes
            return found.pop()
        self._trim(nbytes)
        return None

    def _trim(self, nbytes: int) -> None:
        while self._spare and self._lent + self._spare_bytes + nbytes > self._budget:
            size, unused = next(iter(self._spare.items()))
            if unused:
                unused.pop()
                self._spare_bytes -= size
            else:
                del self._spare[size]


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)
