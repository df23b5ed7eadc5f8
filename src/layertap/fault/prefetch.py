"""Tensors of a device that wait in pinned memory, and are brought back before they are asked for.

What is asked for follows the order in which it was put: each run of a search goes through the model from its beginning.
So while the device computes, those that come next are copied on a stream of their own. Their memory is allocated on the
stream that computes, so what was let go is used again at once, and no more than the window is ever held.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch

AHEAD = 2
"""The share of the window that is filled with what comes next: one part in so many. The rest was used last."""


class _Back(NamedTuple):
    """A tensor that was brought back, and when its copy is there."""

    tensor: torch.Tensor
    copied: torch.cuda.Event | None


class Prefetch:
    """Tensors of one device, in the order in which they were put."""

    def __init__(self, device: torch.device, window: int) -> None:
        self.device, self._window = device, window
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waiting: list[torch.Tensor] = []
        self._back: OrderedDict[int, _Back] = OrderedDict()
        """By number, those that were brought back: first those that were neither used nor due for the longest time."""
        self._at = -1
        """How far the run has come."""
        self._written = True
        """Whether all copies into pinned memory are there."""
        self.held = 0
        """Bytes of what is brought back."""

    def put(self, tensor: torch.Tensor) -> int:
        """Copies a tensor away; returns its number."""
        waiting = torch.empty_like(tensor, device="cpu", pin_memory=self._side is not None)
        # On the stream that computes: on another, what the model writes in place next could be copied instead.
        waiting.copy_(tensor, non_blocking=True)
        self._waiting.append(waiting)
        self._written = False
        return len(self._waiting) - 1

    def here(self, number: int) -> torch.Tensor:
        """A tensor on the device again. It may be let go when others are asked for."""
        self._bring(number)
        if number > self._at:  # else it is one that many modules read
            self._at = number
            self._look_ahead(number)
        found = self._back[number]
        self._wait(found)
        return found.tensor

    def rewind(self) -> None:
        """Says that the next run begins."""
        self._at = -1

    def away(self, number: int) -> torch.Tensor:
        """A tensor where it waits."""
        if not self._written and self._side is not None:
            torch.cuda.synchronize(self.device)
        self._written = True
        return self._waiting[number]

    def _look_ahead(self, number: int) -> None:
        """Brings those that come next, as many as their share of the window holds."""
        left = min(self._window // AHEAD, self._window - self._waiting[number].nbytes)
        for following in range(number + 1, len(self._waiting)):
            left -= self._waiting[following].nbytes
            if left < 0:
                return
            self._bring(following, keep=number)

    def _bring(self, number: int, keep: int | None = None) -> None:
        if number in self._back:
            self._back.move_to_end(number)
            return
        waiting = self._waiting[number]
        self._make_room(waiting.nbytes, keep)
        tensor = torch.empty_like(waiting, device=self.device)
        self.held += tensor.nbytes
        if self._side is None:
            self._back[number] = _Back(tensor.copy_(waiting), None)
            return
        self._side.wait_stream(torch.cuda.current_stream(self.device))  # the memory may still be in use there
        with torch.cuda.stream(self._side):
            tensor.copy_(waiting, non_blocking=True)
            self._back[number] = _Back(tensor, self._side.record_event())

    def _make_room(self, size: int, keep: int | None) -> None:
        for number in [one for one in self._back if one != keep]:
            if self.held + size <= self._window:
                return
            found = self._back.pop(number)
            self._wait(found)  # its memory goes back to the stream that computes
            self.held -= found.tensor.nbytes

    def _wait(self, found: _Back) -> None:
        if found.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(found.copied)
