"""Where tapped tensors go: measured once, copied if they are kept, written by another thread.

The calling thread does what cannot wait (the pass over a tensor that may be overwritten next, the copy of one that is
kept) and hands the rest over. What is under way is bounded by a budget of bytes; past it the policy decides: `block`
waits for the writer, `stats` keeps the statistics alone, `drop` leaves the record out; the receipt counts it. Where
memory is short the budget shrinks (headroom.py), and tensors give way before the model has to.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from layertap.capture.buffers import Buffers
from layertap.capture.cuda import CudaLane
from layertap.capture.headroom import allowance
from layertap.capture.keep import STATS, TENSOR, Level
from layertap.capture.pending_record import Draft, PendingRecord
from layertap.measure import Measurement, measure
from layertap.measure.slab import decode
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt, Record

POLICIES = ("block", "stats", "drop")
BACKLOG = 50_000
"""Parcels that may wait for a slow writer; past it the policy decides about statistics too."""
IDLE = 2.0
"""Seconds without work after which the writer commits what it has, so that readers see it."""

LOOK = 0.25
"""Seconds after which the free memory is looked up again: that costs up to a millisecond."""

_COMMIT, _END, _IDLE = object(), object(), object()

log = logging.getLogger("layertap")


class Writer(Protocol):
    """What a sink writes to: a run on disk or in memory."""

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def add(self, record: Record, data: npt.NDArray[np.uint8] | None) -> None: ...
    def commit(self) -> None: ...
    def close(self, receipt: Receipt | None, **info: Any) -> None: ...


class Sink:
    """Takes tensors from the taps and brings them to a writer, within a budget."""

    def __init__(self, writer: Writer, *, budget: int, policy: str, retains: bool) -> None:
        self.writer = writer
        self.taken = 0
        """Parcels on their way or arrived; what the writer has not committed in the end is lost."""
        self.error = ""
        self.notes: list[str] = []
        """What the receipt tells besides."""
        self.failure: Exception | None = None
        """The first error of the writer's thread."""
        self._budget = self._allowed = budget
        self._look_again, self._unlooked = 0.0, 0
        # What stays in memory is never given back to the budget, so waiting for room would be waiting forever.
        self._policy = "stats" if retains and policy == "block" else policy
        self._retains = retains
        self._used = 0
        self._room = threading.Condition()
        self._queue: queue.Queue[PendingRecord | Callable[[], None] | object] = queue.Queue()
        self._buffers = Buffers(budget)
        self._cuda = CudaLane(self._send, self._buffers)
        self._thread = threading.Thread(target=self._work, name="layertap-writer", daemon=True)
        self._thread.start()

    def put(
        self,
        draft: Draft,
        tensor: torch.Tensor,
        level: Level,
        *,
        ours: bool = False,
        ready: torch.cuda.Event | None = None,
    ) -> None:
        """Takes one tensor; when this returns, the caller may overwrite it, unless it is `ours` to keep.

        `ready` is when a tensor of ours was complete, if that is known.
        """
        kept = level.reduce(tensor) if level.reduce else tensor
        if not isinstance(kept, torch.Tensor):
            raise TypeError(tr("keep.returned", site=draft.site, name=level.name, name2=type(kept).__name__))
        nbytes = kept.numel() * kept.element_size() if level.keeps else 0
        if nbytes and not self._reserve(nbytes):
            draft.tally.dropped += 1
            if self._policy == "drop":
                return
            level, nbytes = STATS, 0
        if self._policy != "block" and self._queue.qsize() >= BACKLOG:
            self._release(nbytes)
            draft.tally.dropped += 1
            return
        self._take(draft, tensor, kept, level, nbytes, ours, ready)
        draft.tally.tensors += 1

    def _take(
        self,
        draft: Draft,
        tensor: torch.Tensor,
        kept: torch.Tensor,
        level: Level,
        nbytes: int,
        ours: bool,
        ready: torch.cuda.Event | None,
    ) -> None:
        try:
            if tensor.is_cuda:
                self._cuda.put(draft, tensor, kept if level.keeps else None, level, nbytes, ours=ours, ready=ready)
                return
            copy = self._copy(kept) if level.keeps else None
            if copy is None and level.keeps:
                draft.tally.dropped += 1
                self._release(nbytes)
                level, nbytes = STATS, 0
            if level is TENSOR and copy is not None:
                whole = copy
                self._send(PendingRecord(draft, level, lambda: (measure(whole), whole), nbytes))
            else:
                measured = measure(tensor)
                self._send(PendingRecord(draft, level, lambda: (measured, copy), nbytes))
        except BaseException:
            self._release(nbytes)
            raise

    def put_slabs(self, measured: Sequence[tuple[Draft, torch.Tensor]]) -> None:
        """Takes what a graph has measured itself (measure/slab.py)."""
        on_device = [(draft, slab) for draft, slab in measured if slab.is_cuda]
        for draft, _ in measured:
            draft.tally.tensors += 1
        if on_device:
            self._cuda.put_slabs(on_device)
        for draft, slab in measured:
            if not slab.is_cuda:
                self._send(PendingRecord(draft, STATS, _read(slab, math.prod(draft.shape))))

    @property
    def under_way(self) -> int:
        """Bytes that are taken and not written yet; of a run in memory, all that it holds."""
        return self._used

    def pause(self) -> None:
        """The end of a forward pass or a step: what a device has gathered is sent on."""
        self._cuda.seal()

    def after(self, action: Callable[[], None]) -> None:
        """Has the writer's thread do something when all that was taken before has arrived there."""
        self.pause()
        self._queue.put(action)

    def flush(self) -> None:
        """Waits until everything taken so far is written, and can be read."""
        self.pause()
        self._queue.put(_COMMIT)
        self._queue.join()

    def close(self) -> None:
        """Writes everything and ends the thread."""
        self.flush()
        self._queue.put(_END)
        self._thread.join()

    def _send(self, parcel: PendingRecord) -> None:
        with self._room:
            self.taken += 1
        self._queue.put(parcel)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A copy, or None where the system has no memory for one: the model may need what is left."""
        try:
            return self._buffers.copy_of(tensor)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "alloc" not in str(error):  # torch says so by a RuntimeError
                raise
            self._give_way(str(error).splitlines()[0])
            return None

    def _reserve(self, nbytes: int) -> bool:
        with self._room:
            most = self._allowed_now(nbytes)
            if self._policy == "block":
                # A tensor larger than the whole budget passes alone rather than never, if there is memory for it.
                self._room.wait_for(lambda: not self._used or self._used + nbytes <= most)
                if most < self._budget and nbytes > self._allowed_now(self._budget):
                    self._give_way(Note("capture.held_tensor", allowed=self._allowed, nbytes=nbytes))
                    return False
            elif self._used + nbytes > most:
                if most < self._budget:
                    self._give_way(Note("capture.held", most=most))
                return False
            self._used += nbytes
            return True

    def _allowed_now(self, nbytes: int) -> int:
        """The budget, or less where memory is short; looked up anew when time has passed or much was taken."""
        now = time.monotonic()
        self._unlooked += nbytes
        if now >= self._look_again or self._unlooked > self._allowed // 8:
            self._allowed = min(self._budget, allowance(self._used + self._buffers.spare))
            self._buffers.limit(self._allowed)
            self._look_again, self._unlooked = now + LOOK, 0
        return self._allowed

    def _give_way(self, why: str) -> None:
        if not self.notes:
            self.notes.append(Note("capture.memory_short", why=why))
            log.warning("layertap: %s", self.notes[0])

    def _release(self, nbytes: int) -> None:
        if nbytes and not self._retains:
            with self._room:
                self._used -= nbytes
                self._room.notify_all()

    def _work(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=IDLE)
            except queue.Empty:
                item = _IDLE
            if isinstance(item, PendingRecord):
                self._try(self._write, item)
                self._release(item.nbytes)
            elif callable(item):
                self._try(item)
            elif item is not _END:
                self._try(self.writer.commit)
            if item is not _IDLE:
                self._queue.task_done()
            if item is _END:
                return
            del item  # or its tensor would live until the next one comes

    def _write(self, parcel: PendingRecord) -> None:
        measured, host = parcel.arrive()
        record = parcel.draft.record(measured, parcel.level, host)
        try:
            self.writer.add(record, None if host is None else as_bytes(host))
        finally:
            if host is not None and not self._retains:
                self._buffers.take_back(host)

    def _try(self, action: Callable[..., None], *given: PendingRecord) -> None:
        # This thread must outlive any error: a producer may be waiting for room that only it can make.
        try:
            action(*given)
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Keeps the first error of writing, and says it."""
        if not self.error:
            self.error, self.failure = f"{type(error).__name__}: {error}", error
            log.error(tr("capture.log_record"), self.error)


def _read(slab: torch.Tensor, count: int) -> Callable[[], tuple[Measurement, None]]:
    return lambda: (decode(slab.numpy(), count), None)


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous host tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
