"""Which tensors of shared objects have been recorded already, as they are now."""

from __future__ import annotations

import weakref

import torch

from layertap.measure import measure, supported

Mark = tuple[str, int]


class Contents:
    """Tensors by identity, with what shows whether they have been written into.

    >>> contents, tensor = Contents(), torch.ones(2)
    >>> contents.add(tensor, "stats")
    >>> contents.known(tensor, "stats"), contents.known(tensor, "tensor")
    (True, False)
    >>> _ = tensor.add_(1)
    >>> contents.known(tensor, "stats")
    False
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[int, str], tuple[weakref.ref[torch.Tensor], Mark]] = {}

    def add(self, tensor: torch.Tensor, level: str) -> None:
        """Remembers a tensor that has been recorded at this level."""
        mark = _mark(tensor)
        if mark is not None:
            self._marks[id(tensor), level] = weakref.ref(tensor), mark

    def known(self, tensor: torch.Tensor, level: str) -> bool:
        """Whether it has been recorded at this level and is as it was then."""
        reference, mark = self._marks.get((id(tensor), level), (None, None))
        return reference is not None and reference() is tensor and mark == _mark(tensor)

    def clear(self) -> None:
        self._marks.clear()


def _mark(tensor: torch.Tensor) -> Mark | None:
    """What changes with every write; None where only reading the tensor could tell, and that would cost a wait."""
    if not tensor.is_inference():
        return "version", tensor._version
    if tensor.device.type == "cpu" and not supported(tensor):
        return "fingerprint", measure(tensor).fingerprint
    return None
