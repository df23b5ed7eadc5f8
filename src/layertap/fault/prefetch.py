"""Tensors of a device that wait in pinned memory, and are brought back before they are asked for.

What is asked for follows the order in which it was put: each run of a search goes through the model from its beginning.
So while the device computes, those that come next are copied on a stream of their own, several at a time. Their memory
is allocated on the stream that computes, so what was let go is used again at once, and no more than the window is ever
held; nor is more of it held by tensors that are on their way out.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection
from typing import NamedTuple

import torch

AHEAD = 2
"""The share of the window that is filled with what comes next: one part in so many. The rest was used last."""
STEP = 8
"""What comes next is brought in steps of one part of the window in so many: a copy alone takes the host 50 us."""


class _Back(NamedTuple):
    """A tensor that was brought back, and when its copy is there."""

    tensor: torch.Tensor
    copied: torch.cuda.Event | None


class Prefetch:
    """Tensors of one device, each with a number; numbers grow in the order in which the tensors were made."""

    def __init__(self, device: torch.device, window: int) -> None:
        self.device, self._window = device, window
        cuda = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if cuda else None
        self._out = torch.cuda.Stream(device) if cuda else None
        self._waiting: dict[int, torch.Tensor] = {}
        self._early: dict[int, torch.Tensor] = {}
        """Copies of tensors that are still on the device."""
        self._leaving: deque[_Back] = deque()
        """Tensors whose copies into pinned memory are under way."""
        self._order: list[int] | None = None
        """The numbers that this run is going to ask for, in order."""
        self._back: OrderedDict[int, _Back] = OrderedDict()
        """By number, those that were brought back: first those that were neither used nor due for the longest time."""
        self._starts: list[int] = [0]
        """The first number of each run that has put tensors: two runs that are asked for by turns go each their way."""
        self._at: dict[tuple[int, int], int] = {}
        """How far each thread has come with each of them: two models may be run side by side."""
        self.held = self.leaving = 0
        """Bytes of what is brought back, and of what is on its way out."""

    def put(self, tensor: torch.Tensor, number: int | None = None) -> int:
        """Copies a tensor away, which must not be written to until then; returns its number."""
        number = len(self._waiting) if number is None else number
        early = self._early.pop(number, None)
        self._waiting[number] = self._copied_out(tensor) if early is None else early
        self._order = None
        self._let_go(self._window)
        return number

    def put_early(self, tensor: torch.Tensor, number: int) -> None:
        """Copies a tensor that stays for now and is likely to be put, if nothing waits for that."""
        if self.leaving + tensor.nbytes <= self._window:
            self._early[number] = self._copied_out(tensor)

    def _copied_out(self, tensor: torch.Tensor) -> torch.Tensor:
        waiting = torch.empty_like(tensor, device="cpu", pin_memory=self._out is not None)
        if self._out is None:
            return waiting.copy_(tensor)
        self._out.wait_stream(torch.cuda.current_stream(self.device))  # it may not be computed yet
        with torch.cuda.stream(self._out):
            waiting.copy_(tensor, non_blocking=True)
            self._leaving.append(_Back(tensor, self._out.record_event()))
        self.leaving += tensor.nbytes
        return waiting

    def here(self, number: int) -> torch.Tensor:
        """A tensor on the device again. It may be let go when others are asked for."""
        place = bisect_right(self._starts, number)
        if number not in self._back:
            self._bring([number])
        reader = threading.get_ident(), place
        if number > self._at.get(reader, -1):  # else it is one that many modules read
            self._at[reader] = number
            self._look_ahead(number, place)
        self._back.move_to_end(number)
        found = self._back[number]
        self._wait(found)
        return found.tensor

    def rewind(self, first: int | None = None, wanted: Collection[int] | None = None) -> None:
        """Says that the next run begins, which puts tensors from a number on, and asks for those that are wanted."""
        self._at.clear()
        if first is not None and first != self._starts[-1]:
            self._starts.append(first)
        known = sorted(self._waiting)
        self._order = known if wanted is None else [number for number in known if number in wanted]
        self._make_room(self._window, ())  # what the last run read last is what this one reads last
        if self._order:
            self._look_ahead(self._order[0] - 1, bisect_right(self._starts, self._order[0]))

    def once(self, number: int) -> torch.Tensor:
        """A tensor on the device, for somebody who asks out of order."""
        self._let_go(0)
        return self._waiting[number].to(self.device, non_blocking=True)

    def drop(self, number: int) -> None:
        """Forgets a tensor that is kept elsewhere."""
        self._let_go(0)
        self._waiting.pop(number)
        self._order = None

    def away(self, number: int) -> torch.Tensor:
        """A tensor where it waits."""
        if self._side is not None:
            torch.cuda.synchronize(self.device)
        return self._waiting[number]

    def _look_ahead(self, number: int, place: int) -> None:
        """Brings those that come next, as many as their share of the window holds, once a step of them is missing."""
        if self._order is None:
            self._order = sorted(self._waiting)
        own = self._waiting.get(number)
        left = min(self._window // AHEAD, self._window - (0 if own is None else own.nbytes))
        coming, missing, size = [], [], 0
        for following in self._order[bisect_right(self._order, number) :]:
            waiting = self._waiting[following].nbytes
            left -= waiting
            if left < 0 or bisect_right(self._starts, following) != place:
                break
            coming.append(following)
            if following not in self._back:
                missing.append(following)
                size += waiting
        if missing and (size >= self._window // STEP or missing[0] == coming[0]):
            self._bring(missing, {number, *coming})

    def _bring(self, numbers: list[int], keep: Collection[int] = ()) -> None:
        self._let_go(0)
        self._make_room(sum(self._waiting[number].nbytes for number in numbers), keep)
        made = [
            (self._waiting[number], torch.empty_like(self._waiting[number], device=self.device)) for number in numbers
        ]
        copied = None
        if self._side is None:
            for waiting, tensor in made:
                tensor.copy_(waiting)
        else:
            self._side.wait_stream(torch.cuda.current_stream(self.device))  # the memory may still be in use there
            with torch.cuda.stream(self._side):
                for waiting, tensor in made:
                    tensor.copy_(waiting, non_blocking=True)
                copied = self._side.record_event()
        for number, (_, tensor) in zip(numbers, made, strict=True):
            self._back[number] = _Back(tensor, copied)
            self.held += tensor.nbytes

    def _make_room(self, size: int, keep: Collection[int]) -> None:
        slowest = min(self._at.values(), default=0)
        going = sorted((one for one in self._back if one not in keep), key=lambda one: one >= slowest)
        for number in going:
            if self.held + size <= self._window:
                return
            found = self._back.pop(number)
            self._wait(found)  # its memory goes back to the stream that computes
            self.held -= found.tensor.nbytes

    def _let_go(self, most: int) -> None:
        """Gives back the memory of what is copied out, until no more than so many bytes are on their way."""
        while self._leaving:
            found = self._leaving[0]
            if self.leaving <= most and not (found.copied is None or found.copied.query()):
                return
            self._wait(found)
            self.leaving -= found.tensor.nbytes
            self._leaving.popleft()

    def _wait(self, found: _Back) -> None:
        if found.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(found.copied)
