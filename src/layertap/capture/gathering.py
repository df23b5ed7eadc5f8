"""The open batch: rows are filled under a lock, by whichever thread calls a module, and handed over together."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure import native
from layertap.measure.slab import SLAB_BYTES
from layertap.store.columns import HEAD, ROW_BYTES, Late, RecordBatch
from layertap.store.plans import Moment, Plans, RecordPlan

if TYPE_CHECKING:
    from layertap.capture.cuda import CudaLane, DevicePart
    from layertap.capture.pending_record import Draft
    from layertap.capture.slots import Slot

ARENA = 16 << 20
"""Bytes of small tensors that a batch holds; what is not used takes no memory of the host."""
SMALL = 1 << 16
"""Tensors of more bytes are not gathered in the arena: they are copied, or measured, one by one."""
MIDDLE = 1 << 20
"""On a device, where a copy is enqueued and not waited for, tensors that are kept are gathered up to so many bytes."""
LARGE = 1 << 14
"""A tensor of more elements is measured without holding the interpreter's lock, and outside of ours."""
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

_NONE: list[Batch] = []


class Batch:
    """Rows on their way, with what they need until they are written."""

    def __init__(self, plans: Plans) -> None:
        self.records = RecordBatch(plans)
        self.arena = np.empty(ARENA, np.uint8)
        self.arena_address = int(self.arena.ctypes.data)
        self.used = 0
        """Bytes of the arena that are taken."""
        self.reserved = 0
        """Bytes of the budget that its arena's rows hold."""
        self.pending = 0
        """Bytes of large tensors that wait for the writer."""
        self.opened = 0.0
        self.moment: tuple[Any, ...] | None = None
        self.moment_number = -1
        self.parts: dict[tuple[int, int], DevicePart] = {}
        """By device and stream: what is on devices."""
        self.records.arena = self.arena

    def clear(self, plans: Plans) -> None:
        """Empties it for use anew."""
        self.records.clear(plans)
        self.used = self.reserved = self.pending = 0
        self.moment, self.moment_number, self.parts = None, -1, {}

    def moment_of(self, moment: tuple[Any, ...]) -> int:
        """The number of a moment: (step, epoch, batch, phase)."""
        if moment != self.moment:
            self.moment, self.moment_number = moment, self.moment_number + 1
            self.records.moments.append(Moment(*moment))
        return self.moment_number


class Gathering:
    """The batch that is being filled."""

    def __init__(self, cuda: CudaLane) -> None:
        self.taken = 0
        """Rows in all."""
        self.plans = Plans()
        self._cuda = cuda
        self._lock = threading.Lock()
        self._open: Batch | None = None
        self._spare: list[Batch] = []
        self._in_flight = 0
        """Batches that are closed and not written yet."""

    def take(
        self, slot: Slot, tensor: torch.Tensor, address: int, call: int, order: int, moment: tuple[Any, ...]
    ) -> list[Batch]:
        """Fills a row from a contiguous tensor; returns batches that are full now."""
        large: npt.NDArray[np.uint8] | None = None
        if slot.large:
            large = np.empty(SLAB_BYTES, np.uint8)
            native.measure_into(tensor, int(large.ctypes.data))
        with self._lock:
            batch, full = self._open, None
            if batch is None or batch.used + slot.arena_bytes > ARENA:
                batch, full = self._with_room(slot.arena_bytes)
            if slot.plans is not self.plans:
                slot.plans, slot.number = self.plans, self.plans.number(slot.plan)
            records = batch.records
            row = records.count
            at = row * ROW_BYTES
            source = place = -1
            if slot.gathers:
                source = batch.used
                if slot.on_device:
                    self._cuda.gather(batch, slot, tensor, address, source)
                else:
                    ctypes.memmove(batch.arena_address + source, address, slot.nbytes)
                batch.used = source + slot.arena_bytes
                if slot.kept:
                    place = source
                    batch.reserved += slot.nbytes
            elif slot.on_device:
                self._cuda.measure(batch, tensor, row)
            elif large is not None:
                ctypes.memmove(records.address + at + HEAD.size, large.ctypes.data, SLAB_BYTES)
            else:
                slot.take(address, slot.task_address, 0, records.address + at + HEAD.size)
            number = batch.moment_number if moment == batch.moment else batch.moment_of(moment)
            HEAD.pack_into(records.buffer, at, slot.number, call, order, number, source, place)
            done = self._filled(batch, row)
            return _NONE if done is full else [found for found in (full, done) if found is not None]

    def add(
        self,
        draft: Draft,
        plan: RecordPlan,
        late: Late | None,
        nbytes: int,
        measured: torch.Tensor | None,
        *,
        pending: int,
    ) -> list[Batch]:
        """Fills a row of what was taken already; `measured` is still to be measured. Returns batches that are full."""
        slab = np.zeros(SLAB_BYTES, np.uint8)
        if measured is not None:
            native.measure_into(measured, int(slab.ctypes.data))
        with self._lock:
            batch, full = self._with_room(0)
            number = self.plans.number(plan)
            records = batch.records
            row = records.count
            at = row * ROW_BYTES
            moment = batch.moment_of((draft.step, draft.epoch, draft.batch, draft.phase))
            HEAD.pack_into(records.buffer, at, number, draft.site.call, draft.order, moment, -1, -1)
            records.buffer[at + HEAD.size : at + ROW_BYTES] = slab.data
            if late is not None:
                records.late[row] = late
                batch.pending += nbytes
            done = self._filled(batch, row, pending)
            return [found for found in (full, done) if found is not None]

    def ripe(self, few: int, age: float) -> bool:
        """Whether the open batch is worth handing over at the end of a step."""
        batch = self._open
        if batch is None or self._in_flight >= MANY:
            return False
        return batch.records.count >= few or time.monotonic() - batch.opened >= age

    def close(self, older: float = 0.0) -> Batch | None:
        """Takes the open batch, if it has rows and is that old; what follows goes to another."""
        with self._lock:
            batch = self._open
            if batch is None or not batch.records.count or (older and time.monotonic() - batch.opened < older):
                return None
            return self._close(batch)

    def take_back(self, batch: Batch) -> None:
        """A batch that was written: its memory is used again."""
        with self._lock:
            self._in_flight -= 1
            if len(self._spare) < SPARE:
                self._spare.append(batch)

    def _with_room(self, nbytes: int) -> tuple[Batch, Batch | None]:
        """The open batch, with room for a row and for bytes in its arena; and one that had none and is closed now."""
        batch, full = self._open, None
        if batch is not None and batch.used + nbytes > ARENA:
            full, batch = self._close(batch), None
        if batch is None:
            if len(self.plans.all) >= MOST_PLANS:
                self.plans = Plans()
            batch = self._spare.pop() if self._spare else Batch(self.plans)
            batch.clear(self.plans)
            batch.opened = time.monotonic()
            self._open = batch
        return batch, full

    def _filled(self, batch: Batch, row: int, pending: int = 0) -> Batch | None:
        """Counts the row; the batch, if it is to be handed over now."""
        batch.records.count = row + 1
        self.taken += 1
        if row + 1 == batch.records.capacity or (pending and batch.pending >= pending):
            return self._close(batch)
        if row % LOOK == LOOK - 1 and self._in_flight < MANY and time.monotonic() - batch.opened >= AGE:
            return self._close(batch)
        return None

    def _close(self, batch: Batch) -> Batch:
        self._cuda.seal(batch)
        self._open = None
        self._in_flight += 1
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
