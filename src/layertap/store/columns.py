"""Records as rows: filled by machine code, they become columns (row_columns.py) without an object each.

A row has a few numbers of its own (which plan, which call, which place in the order) and the slab of measure/slab.py.
Everything else is the same for many rows, and occurs once in a `RecordPlan` or a `Moment`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES
from layertap.site import Record
from layertap.store.dtype import Bytes
from layertap.store.plans import Moment, Plans, RecordPlan
from layertap.store.row_columns import Rows
from layertap.store.schema import to_records

CAPACITY = 1024
"""Rows of a batch."""

_SLAB_PART = [
    *((name, "<i8") for name in ("nan", "pos_inf", "neg_inf", "zero")),
    *((name, "<f8") for name in ("mean", "m2", "abs_sum", "min", "max")),
    ("fingerprint", "<u8"),
    ("first", "<f8", (FIRST,)),
    ("sketch", f"V{4 * BUCKETS}"),
    ("padding", f"V{SLAB_BYTES - 8 * (10 + FIRST) - 4 * BUCKETS}"),
]
HEAD = struct.Struct("<iiqiiq")
"""What a tap writes before the slab: plan, call, order, moment, and where in the batch's arena the bytes begin that are
to be measured (-1: none, -2: the row is lost) and that are kept (-1: none)."""
ROW = np.dtype(
    [
        ("plan", "<i4"),
        ("call", "<i4"),
        ("order", "<i8"),
        ("moment", "<i4"),
        ("source", "<i4"),
        ("place", "<i8"),
        *_SLAB_PART,
    ]
)
ROW_BYTES = ROW.itemsize
LOST = -2
assert HEAD.size + SLAB_BYTES == ROW_BYTES


@dataclass(frozen=True, slots=True)
class Late:
    """What a row waits for: `arrive` gives its measure (None if its slab is filled) and the bytes that are kept."""

    arrive: Callable[[], tuple[Measurement | None, Bytes | None]]
    done: Callable[[], None]
    """To be called when the bytes have been written: their memory may be used again."""


class RecordBatch:
    """Up to `capacity` rows. Filled by one thread at a time, then handed over as a whole."""

    def __init__(self, plans: Plans, capacity: int = CAPACITY) -> None:
        self.plans = plans
        self.capacity = capacity
        self.rows = np.empty(capacity, ROW)
        self.buffer = memoryview(self.rows).cast("B")  # type: ignore[arg-type]
        self.address = int(self.rows.ctypes.data)
        self.count = 0
        self.moments: list[Moment] = []
        self.late: dict[int, Late] = {}
        self.arena: Bytes | None = None
        """Where small tensors were copied at once; a row's `place` is an offset in it."""
        self._measured: dict[int, Measurement] = {}
        self._kept_fingerprints: dict[int, int] = {}

    def clear(self, plans: Plans) -> None:
        """Empties it for use anew."""
        self.plans, self.count = plans, 0
        self.moments = []
        self.late, self._measured, self._kept_fingerprints = {}, {}, {}

    def __len__(self) -> int:
        return self.count

    def plan(self, row: int) -> RecordPlan:
        return self.plans.all[int(self.rows["plan"][row])]

    def lose(self, row: int) -> None:
        """Marks a row that is not to be written."""
        self.rows["source"][row] = LOST

    def measured(self, row: int, measurement: Measurement) -> None:
        """Says what a row's slab does not hold."""
        self._measured[row] = measurement

    def kept_fingerprint(self, row: int, fingerprint: int) -> None:
        """Says the fingerprint of what was kept of a row, where that is not the tensor itself."""
        self._kept_fingerprints[row] = fingerprint

    def name(self, row: int) -> str:
        """The row's site as text, after its step."""
        call, moment = int(self.rows["call"][row]), int(self.rows["moment"][row])
        text = f"{self.moments[moment].step}/{self.plan(row).site}"
        return f"{text}@{call}" if call else text

    def names(self, rows: Sequence[int]) -> list[str]:
        """The same of many rows."""
        sites, steps, found = self.plans.sites, [f"{moment.step}/" for moment in self.moments], self.rows[rows]
        numbers = (found["plan"].tolist(), found["call"].tolist(), found["moment"].tolist())
        return [
            f"{steps[moment]}{sites[plan]}@{call}" if call else f"{steps[moment]}{sites[plan]}"
            for plan, call, moment in zip(*numbers, strict=True)
        ]

    def forms(self, rows: Sequence[int]) -> list[str]:
        """What the rows have in a tensor file's header between their name and the place of their bytes."""
        forms = self.plans.forms
        return [forms[plan] for plan in self.rows["plan"][rows].tolist()]

    def sizes(self, rows: Sequence[int]) -> list[int]:
        """How many bytes are kept of each row."""
        found: list[int] = self.plans.sizes[self.rows["plan"][rows]].tolist()
        return found

    def pieces(self, rows: Sequence[int]) -> list[memoryview]:
        """The bytes that are kept of rows in the arena, as few pieces as they lie in."""
        assert self.arena is not None
        begins = self.rows["place"][rows]
        ends = begins + self.plans.sizes[self.rows["plan"][rows]]
        apart = np.flatnonzero(begins[1:] != ends[:-1])
        first, last = begins[np.concatenate([[0], apart + 1])], ends[np.concatenate([apart, [-1]])]
        whole = self.arena.data
        return [whole[begin:end] for begin, end in zip(first.tolist(), last.tolist(), strict=True)]

    def waiting(self) -> list[int]:
        """The rows of which bytes are kept, or that wait for something, in their order."""
        placed: list[int] = np.flatnonzero(self.rows["place"][: self.count] >= 0).tolist()
        return sorted({*placed, *self.late}) if self.late else placed

    def arrive(self, row: int) -> Bytes | None:
        """Completes a row; the bytes that are kept of it, valid until `written` is called."""
        late = self.late.get(row)
        if late is None:
            assert self.arena is not None
            place = int(self.rows["place"][row])
            return self.arena[place : place + self.plan(row).nbytes]
        measurement, data = late.arrive()
        if measurement is not None:
            self._measured[row] = measurement
        return data

    @property
    def unsketched(self) -> set[int]:
        """Rows whose measure has statistics alone, and so no fingerprint."""
        return {row for row, found in self._measured.items() if not found.sketch}

    def written(self, row: int) -> None:
        """Lets go of what `arrive` gave."""
        late = self.late.pop(row, None)
        if late is not None:
            late.done()

    def objects(self, start: int, stop: int) -> list[Record]:
        """The rows as objects, for those who look at each."""
        return to_records(self.taken(start, stop).table())

    def taken(self, start: int, stop: int, keys: Sequence[str] | None = None) -> Rows:
        """A copy of the rows from `start` to `stop` that are not lost. `keys` are those of all rows of the batch."""
        places = start + np.flatnonzero(self.rows["source"][start:stop] != LOST)
        found = Rows(self.plans, self.moments, self.rows[places])
        if keys is not None:
            found.keys = [keys[place] for place in places.tolist()]
        if self._measured or self._kept_fingerprints:
            where = {place: at for at, place in enumerate(places.tolist())}
            found.measured = {where[row]: told for row, told in self._measured.items() if row in where}
            found.kept_fingerprints = {
                where[row]: told for row, told in self._kept_fingerprints.items() if row in where
            }
        return found
