"""The open batch: rows are filled by whichever thread calls a module, and handed over together.

tap.c fills a row without a lock of ours: nothing of Python runs while it does. What fills rows from Python (`add`,
`take_large`) claims each first, and `_lock` keeps a batch open until all that were claimed are filled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from layertap.capture import short_way
from layertap.measure import native
from layertap.measure.slab import SLAB_BYTES
from layertap.store.columns import HEAD, LOST, ROW_BYTES, Late, RecordBatch
from layertap.store.plans import Moment, Plans

if TYPE_CHECKING:
    from layertap.capture.cuda import CudaLane, DevicePart
    from layertap.capture.pending_record import PendingRecord
    from layertap.capture.room import Room
    from layertap.capture.site_counts import SiteCounts
    from layertap.capture.slots import Slot

    Admitted = tuple[Slot | None, int]

ARENA = 16 << 20
"""Bytes of small tensors that a batch holds; what is not used takes no memory of the host."""
SMALL = 1 << 16
"""Tensors of more bytes are not gathered in the arena: they are copied, or measured, one by one."""
MIDDLE = 1 << 20
"""On a device, where a copy is enqueued and not waited for, tensors that are kept are gathered up to so many bytes."""
LARGE = 1 << 14
"""A tensor of more elements is measured without holding the interpreter's lock."""
MOST_PLANS = 1 << 14
"""Shapes may change at every call; plans past so many begin anew."""
AGE = 0.25
"""Seconds after which a batch is handed over at the next record, and by the writer's thread if there is none."""
LOOK = 16
"""Records between two looks at the clock."""
MANY = 8
"""While so many batches wait for the writer, the open one is filled up, however old it is: each holds memory."""
SPARE = 3
"""Batches that are kept for use again."""


class Batch(short_way.BatchBase):
    """Rows on their way, with what they need until they are written."""

    def __init__(self, plans: Plans, cuda: CudaLane) -> None:
        super().__init__()
        self.records = RecordBatch(plans)
        self.address, self.capacity, self.row_bytes = self.records.address, self.records.capacity, ROW_BYTES
        self.arena = np.empty(ARENA, np.uint8)
        self.arena_address, self.arena_size = int(self.arena.ctypes.data), ARENA
        self.records.arena = self.arena
        self._cuda = cuda
        self.clear(plans)

    def clear(self, plans: Plans) -> None:
        """Empties it for use anew."""
        self.records.clear(plans)
        self.count = self.used = self.credit = 0
        self.reserved = 0
        """Bytes of the budget that its arena's rows hold, `credit` of which no row holds yet."""
        self.pending = 0
        """Bytes of large tensors that wait for the writer."""
        self.opened = 0.0
        self.moment, self.moment_number = None, -1
        self.part = None
        self.parts: dict[tuple[int, int], DevicePart] = {}
        """By device and stream: what is on devices."""

    def number_moment(self, moment: Any) -> int:
        """The number of the moment of a call, which is the newest from now on."""
        self.records.moments.append(Moment(*moment[1:5]))
        self.moment, self.moment_number = moment, self.moment_number + 1
        return self.moment_number

    def moment_of(self, moment: Any) -> int:
        """The number of the moment of a call."""
        if self.moment is None or self.moment[1:5] != moment[1:5]:
            return self.number_moment(moment)
        return self.moment_number

    def use_part(self, index: int, stream: int) -> DevicePart:
        """The part on a device and stream, which is the newest from now on."""
        key = (index, stream)
        found = self.parts.get(key) or self.parts.setdefault(key, self._cuda.part(index, stream, len(self.arena)))
        self.part = found
        return found


class Gathering(short_way.GatheringBase):
    """The batch that is being filled."""

    def __init__(
        self, cuda: CudaLane, room: Room, admit: Callable[[Slot, SiteCounts], Admitted], send: Callable[[Batch], None]
    ) -> None:
        super().__init__()
        self.open: Batch | None = None
        self.taken = 0
        """Rows in all."""
        self.plans = Plans()
        self.age, self.look, self.crowded = AGE, LOOK, False
        self._cuda, self._room = cuda, room
        self._admit, self._send = admit, send
        self._lock = threading.RLock()
        self._spare: list[Batch] = []
        self._in_flight = 0
        """Batches that are closed and not written yet."""

    # What tap.c calls.

    def make_room(self, slot: Slot, counts: SiteCounts) -> Slot | None:
        """Opens a batch with room for the slot's tensor; the slot that it goes by now, None if it is left out."""
        batch, credit = self.open, 0
        if batch is None or batch.count >= batch.capacity or (slot.kept and batch.credit < slot.nbytes):
            admitted, credit = self._admit(slot, counts)
            if admitted is None:
                return None
            slot = admitted
        with self._lock:
            batch = self._with_room(slot.arena_bytes)
            batch.credit += credit
            batch.reserved += credit
            if slot.plans is not self.plans:
                slot.plans, slot.number = self.plans, self.plans.append(slot.plan)
            if slot.kernel is not None:
                self._cuda.measuring_part(batch, slot.index).make_slabs()
        return slot

    def hand_over(self) -> None:
        """Hands the open batch over if it is full or old."""
        with self._lock:
            batch = self.open
            if batch is None or (batch.count < batch.capacity and time.monotonic() - batch.opened < self.age):
                return
            closed = self._close(batch)
        self._send(closed)

    def take_large(self, recording: Any, slot: Slot, tensor: torch.Tensor, moment: Any, counts: SiteCounts) -> None:
        """Fills a row from a tensor that is measured by a kernel or by several threads, or is on another device."""
        if slot.on_device and slot.index != torch._C._cuda_getDevice():
            with torch.cuda.device(slot.index):
                short_way.take(recording, slot, tensor, moment, counts)
            return
        slab = None if slot.on_device else np.empty(SLAB_BYTES, np.uint8)
        if slab is not None:
            native.measure_into(tensor, int(slab.ctypes.data))
        if self._admit(slot, counts)[0] is None:
            return
        call = slot.numbers.take(moment[1], moment[4], moment[0])
        with self._lock:
            batch, row = self._claim()
            buffer, at = batch.records.buffer, row * ROW_BYTES
            if slot.plans is not self.plans:
                slot.plans, slot.number = self.plans, self.plans.append(slot.plan)
            head = (slot.number, call, recording.next_order(), batch.moment_of(moment))
            HEAD.pack_into(buffer, at, *head, LOST, -1)  # and it stays lost if the kernel cannot be launched
            if slab is None:
                self._cuda.measure(batch, tensor, row)
            else:
                buffer[at + HEAD.size : at + ROW_BYTES] = slab.data
            HEAD.pack_into(buffer, at, *head, -1, -1)
            counts.tensors += 1
            slot.learn_kernel()
            closed = self._filled(batch)
        if closed is not None:
            self._send(closed)

    # The long way.

    def add(self, record: PendingRecord, late: Late | None, measured: torch.Tensor | None, most: int) -> None:
        """Fills a row of what was taken already; `measured` is still to be measured.

        The batch is handed over if large tensors of so many bytes (`most`) wait in it.
        """
        slab = np.zeros(SLAB_BYTES, np.uint8)
        if measured is not None:
            native.measure_into(measured, int(slab.ctypes.data))
        with self._lock:
            batch, row = self._claim()
            records, at = batch.records, row * ROW_BYTES
            plan, moment = self.plans.number(record.plan), batch.moment_of(record.moment)
            HEAD.pack_into(records.buffer, at, plan, record.moment.call, record.order, moment, -1, -1)
            records.buffer[at + HEAD.size : at + ROW_BYTES] = slab.data
            if late is not None:
                records.late[row] = late
                batch.pending += record.plan.nbytes
            closed = self._filled(batch, most)
        if closed is not None:
            self._send(closed)

    # The life of a batch.

    def worth_sending(self, few: int, age: float) -> bool:
        """Whether the open batch is worth handing over at the end of a step."""
        batch = self.open
        if batch is None or self._in_flight >= MANY:
            return False
        return batch.count >= few or time.monotonic() - batch.opened >= age

    def close(self, older: float = 0.0) -> Batch | None:
        """Takes the open batch, if it has rows and is that old; what follows goes to another."""
        with self._lock:
            batch = self.open
            if batch is None or not batch.count or (older and time.monotonic() - batch.opened < older):
                return None
            return self._close(batch)

    def take_back(self, batch: Batch) -> None:
        """A batch that was written: its memory is used again."""
        with self._lock:
            self._in_flight -= 1
            self.crowded = self._in_flight >= MANY
            if len(self._spare) < SPARE:
                self._spare.append(batch)

    def _claim(self) -> tuple[Batch, int]:
        """A row of the open batch that is the caller's."""
        row = -1
        while row < 0:
            batch = self._with_room(0)
            row = batch.claim()
        return batch, row

    def _with_room(self, nbytes: int) -> Batch:
        """The open batch, with room for a row and for bytes in its arena; one that has none is sent."""
        batch = self.open
        if batch is not None and (batch.count >= batch.capacity or batch.used + nbytes > batch.arena_size):
            self._send(self._close(batch))
            batch = None
        if batch is None:
            if len(self.plans.all) >= MOST_PLANS:
                self.plans = Plans()
            batch = self._spare.pop() if self._spare else Batch(self.plans, self._cuda)
            batch.clear(self.plans)
            batch.opened = time.monotonic()
            self.open = batch
        return batch

    def _filled(self, batch: Batch, most: int = 0) -> Batch | None:
        """Counts a row; the batch, if it is to be handed over now."""
        self.taken += 1
        full = batch.count >= batch.capacity or (most and batch.pending >= most)
        old = batch.count % LOOK == 0 and not self.crowded and time.monotonic() - batch.opened >= self.age
        return self._close(batch) if batch is self.open and (full or old) else None

    def _close(self, batch: Batch) -> Batch:
        self.open = None  # first: tap.c fills no row from here on
        batch.records.count = batch.count
        self._room.give_back(batch.credit)
        batch.reserved -= batch.credit
        self._cuda.seal(batch)
        self._in_flight += 1
        self.crowded = self._in_flight >= MANY
        return batch


def complete(batch: Batch) -> None:
    """Brings what is on devices to the host, and measures what was gathered unmeasured (in the writer's thread)."""
    for part in batch.parts.values():
        part.arrive(batch)
    rows = batch.records.rows[: batch.records.count]
    todo = np.flatnonzero(rows["source"] >= 0)
    if len(todo):
        tasks = np.zeros(len(todo), native.TASK)
        plans = rows["plan"][todo]
        counts, kinds, tables = batch.records.plans.reading(native_kind)
        tasks["x"] = batch.arena_address + rows["source"][todo].astype(np.int64)
        tasks["count"], tasks["kind"], tasks["table"] = counts[plans], kinds[plans], tables[plans]
        tasks["out"] = batch.records.address + todo * ROW_BYTES + HEAD.size
        native.measure_rows(tasks)


def native_kind(dtype: str) -> tuple[int, int]:
    """onepass.c's number of a real dtype by its name, and the address of its table."""
    real: torch.dtype = getattr(torch, dtype)
    return native.kind_of(real) if native.supported(real) else (-1, 0)
