"""Where tapped tensors go: into the rows of a batch, which another thread completes and writes.

The calling thread does what cannot wait (the pass over a tensor that may be overwritten next, the copy of one that is
kept) and fills a row. Nothing is handed over for a record: a batch goes to the writer's thread when it is full, when a
step ends, or when it is old (`AGE`), since handing over makes two threads fight for the interpreter. What is under way
is bounded by a budget of bytes (room.py); past it the policy decides: `block` waits for the writer, `stats` keeps the
statistics alone, `drop` leaves the record out; the receipt counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from layertap.capture.buffers import Buffers
from layertap.capture.cuda import Arrive, CudaLane
from layertap.capture.gathering import AGE, Batch, Gathering
from layertap.capture.keep import Level
from layertap.capture.pending_record import PendingRecord, with_kept, without_kept
from layertap.capture.room import Room
from layertap.capture.sharding import place_of
from layertap.capture.site_counts import SiteCounts
from layertap.capture.slots import Slot
from layertap.capture.writer_thread import Writer, WriterThread
from layertap.measure import measure, native, part, real_view
from layertap.measure.part import PartPlace
from layertap.measure.result import Measurement
from layertap.measure.slab import decode
from layertap.messages import tr
from layertap.store.columns import Late

POLICIES = ("block", "stats", "drop")
BACKLOG = 50_000
"""Records that may wait for a slow writer; past it the policy decides about statistics too."""
FEW = 256
"""A batch with fewer rows is not handed over when a step ends, unless it is old: each costs some milliseconds of a
thread that competes with the model's for the interpreter."""
AHEAD = 1 << 20
"""Bytes of the budget that a batch takes at once for the small tensors that it keeps."""
PENDING = 8 << 20
"""Bytes of large tensors that a batch may hold before it is handed over."""


class Sink:
    """Takes tensors from the taps and brings them to a writer, within a budget."""

    def __init__(self, writer: Writer, *, budget: int, policy: str, retains: bool) -> None:
        self.writer = writer
        self.hand_overs = 0
        """Batches that went to the writer's thread."""
        # What stays in memory is never given back to the budget, so waiting for room would be waiting forever.
        self._policy = "stats" if retains and policy == "block" else policy
        self._waits = policy == "block"
        self._retains = retains
        self._buffers = Buffers(budget)
        self._room = Room(
            budget,
            buffers=self._buffers,
            waits=self._policy == "block",
            retains=retains,
            before_wait=self._hand_over,
        )
        self._cuda = CudaLane(self._buffers)
        self.gathering = Gathering(self._cuda, self._room, self.admit, self._send)
        self._thread = WriterThread(writer, self.gathering, self._room)
        self._put = self._thread.queue.put

    @property
    def error(self) -> str:
        """The first error of writing, in words."""
        return self._thread.error

    @property
    def failure(self) -> Exception | None:
        """The first error of writing."""
        return self._thread.failure

    @property
    def taken(self) -> int:
        """Records on their way or arrived; what the writer has not committed in the end is lost."""
        return self.gathering.taken

    @property
    def notes(self) -> list[str]:
        """What the receipt reports besides."""
        return self._room.notes

    @property
    def under_way(self) -> int:
        """Bytes that are taken and not written yet; of a run in memory, all that it holds."""
        return self._room.used

    # What the taps call.

    def admit(self, slot: Slot, counts: SiteCounts) -> tuple[Slot | None, int]:
        """Asks for room: the slot that a tensor goes by, None if it is left out, and the bytes that are reserved."""
        reserved = 0
        if slot.kept:
            reserved = self._room.reserve_early(slot.nbytes, AHEAD)
            if not reserved and self._room.reserve(slot.nbytes):
                reserved = slot.nbytes
            if not reserved:
                counts.dropped += 1
                if self._policy == "drop":
                    return None, 0
                slot = slot.without_tensor()
        if self.gathering.taken - self._thread.done >= BACKLOG and not self._backlog(counts, reserved):
            return None, 0
        return slot, reserved

    def put(
        self,
        record: PendingRecord,
        tensor: torch.Tensor,
        level: Level,
        *,
        owned: bool = False,
        ready: torch.cuda.Event | None = None,
    ) -> None:
        """Takes one tensor; when this returns, the caller may overwrite it, unless it is the sink's own (`owned`).

        `ready` is when an owned tensor was complete, if that is known.
        """
        kept = level.reduce(tensor) if level.reduce else tensor
        if not isinstance(kept, torch.Tensor):
            raise TypeError(tr("keep.returned", site=record.site, name=level.name, name2=type(kept).__name__))
        plan = with_kept(record.plan, level, kept)
        if plan.nbytes and not self._room.reserve(plan.nbytes):
            record.counts.dropped += 1
            if self._policy == "drop":
                return
            plan = record.plan
        if self.gathering.taken - self._thread.done >= BACKLOG and not self._backlog(record.counts, plan.nbytes):
            return
        planned = PendingRecord(plan, record.order, record.moment, record.counts)  # `_replace` takes longer
        try:
            self._take(planned, tensor, None if plan is record.plan else kept, owned, ready)
        except BaseException:
            self._room.release(plan.nbytes)
            raise
        record.counts.tensors += 1

    def put_slabs(self, measured: Sequence[tuple[PendingRecord, torch.Tensor]]) -> None:
        """Takes what a graph has measured itself (measure/slab.py)."""
        on_device = self._cuda.of_slabs([slab for _, slab in measured if slab.is_cuda])
        for record, slab in measured:
            record.counts.tensors += 1
            read = next(on_device) if slab.is_cuda else slab.numpy
            self._add(record, Late(_without_bytes(read, record.plan.count), _nothing))

    def pause(self) -> None:
        """The end of a forward pass or a step."""
        if self.gathering.worth_sending(FEW, AGE):
            self._hand_over()

    # What the recorder calls.

    def after(self, action: Callable[[], None]) -> None:
        """Has the writer's thread do something when all that was taken before has arrived there."""
        self._hand_over()
        self._put(action)

    def flush(self) -> None:
        """Waits until everything taken so far is written, and can be read."""
        self._hand_over()
        self._thread.commit()

    def close(self) -> None:
        """Writes everything and ends the thread."""
        self.flush()
        self._thread.end()

    def keep_failure(self, error: Exception) -> None:
        """Keeps the first error of what is written at the end, beside the writer's thread."""
        self._thread.failure = self._thread.failure or error

    # One tensor, the long way.

    def _take(
        self,
        record: PendingRecord,
        tensor: torch.Tensor,
        kept: torch.Tensor | None,
        owned: bool,
        ready: torch.cuda.Event | None,
    ) -> None:
        place, nbytes = place_of(record.plan), record.plan.nbytes
        if tensor.is_cuda:
            arrive = self._cuda.take(tensor, kept, owned=owned, ready=ready)
            if place is not None:
                arrive = self._placed(arrive, tensor, place, whole=kept is tensor)
            self._add(record, self._late(arrive, nbytes))
            return
        copy = None if kept is None else self._copy(kept)
        if kept is not None and copy is None:
            record.counts.dropped += 1
            self._room.release(nbytes)
            record, nbytes = record._replace(plan=without_kept(record.plan)), 0
        if kept is tensor and copy is not None:
            whole = copy
            self._add(record, self._late(lambda: (measure(whole, place=place), whole), nbytes))
            return
        if native.available() and place is None:
            real = real_view(tensor)
            real = real if real.is_contiguous() else real.contiguous()
            self._add(record, None if copy is None else self._late(lambda: (None, copy), nbytes), real)
        else:
            measured = measure(tensor, place=place)
            self._add(record, self._late(lambda: (measured, copy), nbytes))

    def _placed(self, arrive: Arrive, tensor: torch.Tensor, place: PartPlace, *, whole: bool) -> Arrive:
        """With what a part on a device adds to its whole: of the bytes that arrive, or by a kernel that runs now."""
        read = None if whole else next(self._cuda.of_slabs([part.start(tensor, place).packed()]))

        def with_sums() -> tuple[Measurement | None, torch.Tensor | None]:
            measured, host = arrive()
            if measured is None:
                return None, host
            if read is not None:
                return replace(measured, in_whole=part.unpacked(read())), host
            return replace(measured, in_whole=None if host is None else part.whole_sums(host, place)), host

        return with_sums

    def _add(self, record: PendingRecord, late: Late | None, measured: torch.Tensor | None = None) -> None:
        self.gathering.add(record, late, measured, PENDING)

    def _late(self, arrive: Callable[[], tuple[Measurement | None, torch.Tensor | None]], nbytes: int) -> Late:
        lent: list[torch.Tensor] = []

        def bytes_of() -> tuple[Measurement | None, npt.NDArray[np.uint8] | None]:
            measured, host = arrive()
            if host is None:
                return measured, None
            lent.append(host)
            return measured, as_bytes(host)

        def done() -> None:
            if not self._retains:
                for host in lent:
                    self._buffers.take_back(host)
            self._room.release(nbytes)

        return Late(bytes_of, done)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A copy, or None where the system has no memory for one: the model may need what is left."""
        try:
            return self._buffers.copy_of(tensor)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "alloc" not in str(error):  # torch says so by a RuntimeError
                raise
            self._room.report_shortage(str(error).splitlines()[0])
            return None

    def _backlog(self, counts: SiteCounts, nbytes: int) -> bool:
        """Waits for the writer if the policy says so; False if the record is left out."""
        if not self._waits:
            self._room.release(nbytes)
            counts.dropped += 1
            return False
        self._hand_over()
        with self._room.changed:
            self._room.changed.wait_for(lambda: self.gathering.taken - self._thread.done < BACKLOG)
        return True

    # The way to the writer's thread.

    def _hand_over(self) -> None:
        batch = self.gathering.close()
        if batch is not None:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        self.hand_overs += 1
        self._put(batch)


def _without_bytes(read: Callable[[], npt.NDArray[np.uint8]], count: int) -> Callable[[], tuple[Measurement, None]]:
    return lambda: (decode(read(), count), None)


def _nothing() -> None: ...


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous host tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
