"""The bytes that may be under way at once, and what happens past them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from layertap.capture.buffers import Buffers
from layertap.capture.headroom import allowance
from layertap.result import Note

LOOK = 0.25
"""Seconds after which the free memory is looked up again: that costs up to a millisecond."""

log = logging.getLogger("layertap")


class Room:
    """A budget of bytes, which shrinks where memory is short (headroom.py)."""

    def __init__(
        self, budget: int, *, buffers: Buffers, waits: bool, retains: bool, before_wait: Callable[[], None]
    ) -> None:
        self.notes: list[str] = []
        """What the receipt reports."""
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._budget = self._allowed = budget
        self._buffers = buffers
        self._waits, self._retains = waits, retains
        self._before_wait = before_wait
        self._used = 0
        self._look_again, self._unlooked = 0.0, 0

    @property
    def used(self) -> int:
        """Bytes that are taken and not written yet; of a run in memory, all that it holds."""
        return self._used

    def reserve(self, nbytes: int) -> bool:
        """Takes room, waiting for it where the policy says so; False if there is none."""
        with self._lock:
            used, unlooked = self._used + nbytes, self._unlooked + nbytes
            if used <= self._allowed and 8 * unlooked <= self._allowed and time.monotonic() < self._look_again:
                self._used, self._unlooked = used, unlooked
                return True
            most = self._allowed_now(nbytes)
            if self._waits:
                if self._used and self._used + nbytes > most:
                    self._before_wait()  # what is gathered and not handed over would never make room
                # A tensor larger than the whole budget passes alone rather than never, if there is memory for it.
                self.changed.wait_for(lambda: not self._used or self._used + nbytes <= most)
                if most < self._budget and nbytes > self._allowed_now(self._budget):
                    self.report_shortage(Note("capture.held_tensor", allowed=self._allowed, nbytes=nbytes))
                    return False
            elif self._used + nbytes > most:
                if most < self._budget:
                    self.report_shortage(Note("capture.held", most=most))
                return False
            self._used += nbytes
            return True

    def reserve_early(self, nbytes: int, most: int) -> int:
        """Takes room for a tensor and for those after it, up to `most` bytes; 0 where that is not sure to be free.

        No more than an eighth of what is allowed is taken ahead.
        """
        with self._lock:
            ahead = max(nbytes, min(most, self._allowed // 8))
            free = 8 * (self._unlooked + ahead) <= self._allowed and 2 * (self._used + ahead) <= self._allowed
            if not free or time.monotonic() >= self._look_again:
                return 0
            self._used, self._unlooked = self._used + ahead, self._unlooked + ahead
            return ahead

    def give_back(self, nbytes: int) -> None:
        """Room that was taken early and not used."""
        if nbytes:
            with self.changed:
                self._used -= nbytes
                self.changed.notify_all()

    def release(self, nbytes: int) -> None:
        """Room of what has been written; what a run in memory keeps is never released."""
        if not self._retains:
            self.give_back(nbytes)

    def report_shortage(self, why: str) -> None:
        """Reports, once, that tensors were not kept because memory ran out."""
        if not self.notes:
            self.notes.append(Note("capture.memory_short", why=why))
            log.warning("layertap: %s", self.notes[0])

    def _allowed_now(self, nbytes: int) -> int:
        """The budget, or less where memory is short; looked up anew when time has passed or much was taken."""
        now = time.monotonic()
        self._unlooked += nbytes
        if now >= self._look_again or self._unlooked > self._allowed // 8:
            self._allowed = min(self._budget, allowance(self._used + self._buffers.spare))
            self._buffers.limit(self._allowed)
            self._look_again, self._unlooked = now + LOOK, 0
        return self._allowed
