"""Records as columns: rows that are filled by machine code, and become an arrow table without an object each.

A row has a few numbers of its own (which plan, which call, which place in the order) and the slab of measure/slab.py.
Everything else is the same for many rows, and occurs once in a `RecordPlan` or a `Moment`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES
from layertap.site import Record
from layertap.store.dtype import Bytes
from layertap.store.plans import Moment, Plans, RecordPlan
from layertap.store.schema import IN_WHOLE, SCHEMA, to_records

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
        return self.names([row])[0]

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
        return to_records(self.table(start, stop))

    def table(
        self, start: int, stop: int, files: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Any:
        """The rows from `start` to `stop` that are not lost, in the columns of `SCHEMA`.

        `files` and `keys` say where the kept tensor of each row lies, lost rows included.
        """
        places = start + np.flatnonzero(self.rows["source"][start:stop] != LOST)
        rows = self.rows[places]
        columns = {**self._of_plans(rows), **self._of_moments(rows), **self._numbers(places, rows)}
        for name, texts in (("file", files), ("key", keys)):
            columns[name] = pa.array(
                [""] * len(places) if texts is None else [texts[place - start] for place in places.tolist()],
                pa.string(),
            )
        return pa.Table.from_arrays([columns[field_.name] for field_ in SCHEMA], schema=SCHEMA)

    def _of_plans(self, rows: npt.NDArray[np.void]) -> dict[str, Any]:
        taken = self.plans.table().take(pa.array(rows["plan"]))
        columns = {name: taken.column(name).combine_chunks() for name in taken.column_names}
        calls = np.ascontiguousarray(rows["call"])
        if calls.any():
            numbered = pc.binary_join_element_wise(columns["site"], pa.array(calls).cast(pa.string()), "@")
            columns["site"] = pc.if_else(pa.array(calls != 0), numbered, columns["site"])
        return columns

    def _of_moments(self, rows: npt.NDArray[np.void]) -> dict[str, Any]:
        index = pa.array(rows["moment"])
        return {
            name: pa.array([getattr(moment, name) for moment in self.moments], SCHEMA.field(name).type).take(index)
            for name in Moment._fields
        }

    def _numbers(self, places: npt.NDArray[np.int64], rows: npt.NDArray[np.void]) -> dict[str, Any]:
        count = self.plans.counts[rows["plan"]]
        numbers: dict[str, npt.NDArray[Any]] = {name: np.ascontiguousarray(rows[name]) for name in _NUMBERS}
        numbers |= _statistics(count, rows)
        first = rows["first"].copy()
        sketches: list[bytes] | None = None
        told: dict[int, Measurement] = {}
        kept: dict[int, int] = {}
        if self._measured or self._kept_fingerprints:
            where = {place: at for at, place in enumerate(places.tolist())}
            told = {where[row]: found for row, found in self._measured.items() if row in where}
            kept = {where[row]: found for row, found in self._kept_fingerprints.items() if row in where}
        for at, found in told.items():
            for name in _OF_STATISTICS:
                numbers[name][at] = getattr(found.statistics, name)
            numbers["fingerprint"][at] = found.fingerprint
            first[at, : len(found.statistics.first)] = found.statistics.first
        if any(not found.sketch for found in told.values()):
            sketches = rows["sketch"].tolist()
        elif told:
            rows = rows.copy()
        for at, found in told.items():
            if sketches is not None:
                sketches[at] = found.sketch
            else:
                rows["sketch"][at] = np.frombuffer(found.sketch, rows["sketch"].dtype)[0]
        columns = {name: pa.array(values) for name, values in numbers.items()}
        columns["count"] = pa.array(count)
        columns["sketch"] = _binary(rows["sketch"]) if sketches is None else pa.array(sketches, pa.binary())
        columns["first"] = _heads(first, np.minimum(count, FIRST))
        columns["kept_fingerprint"] = self._fingerprints(kept, rows["plan"], numbers["fingerprint"])
        for name, of in zip(IN_WHOLE, ("fingerprint", "sketch"), strict=True):
            sums = {at: getattr(found.in_whole, of, None) for at, found in told.items()}
            kind = SCHEMA.field(name).type
            columns[name] = pa.array(map(sums.get, range(len(rows))), kind) if sums else pa.nulls(len(rows), kind)
        return columns

    def _fingerprints(self, kept: dict[int, int], plans: npt.NDArray[Any], own: npt.NDArray[Any]) -> Any:
        whole = self.plans.wholes[plans]
        values = np.where(whole, own, np.uint64(0))
        for at, fingerprint in kept.items():
            values[at], whole[at] = fingerprint, True
        return pa.array(values, mask=~whole)


def _statistics(count: npt.NDArray[np.int64], rows: npt.NDArray[np.void]) -> dict[str, npt.NDArray[Any]]:
    """What `Statistics.of` makes of the sums, for all rows at once."""
    finite = count - rows["nan"] - rows["pos_inf"] - rows["neg_inf"]
    known, size = finite > 0, finite.astype(np.float64)
    mean, m2 = rows["mean"], rows["m2"]
    with np.errstate(all="ignore"):
        found = {
            "mean": mean,
            "std": np.where(m2 > 0, np.sqrt(np.where(m2 > 0, m2, 0.0) / size), 0.0),
            "min": rows["min"],
            "max": rows["max"],
            "abs_mean": rows["abs_sum"] / size,
            "abs_max": np.maximum(np.abs(rows["min"]), np.abs(rows["max"])),
        }
        l2 = np.where(known, np.sqrt(m2 + size * mean * mean), 0.0)
    return {name: np.where(known, values, np.nan) for name, values in found.items()} | {"l2": l2}


def _binary(values: npt.NDArray[np.void]) -> Any:
    size = values.dtype.itemsize
    offsets = np.arange(0, size * (len(values) + 1), size, dtype=np.int32)
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _heads(values: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> Any:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = values[np.arange(values.shape[1]) < lengths[:, None]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


_NUMBERS = ("call", "order", "nan", "pos_inf", "neg_inf", "zero", "fingerprint")
_OF_STATISTICS = (
    *("mean", "std", "min", "max", "abs_mean", "abs_max", "l2"),
    *("nan", "pos_inf", "neg_inf", "zero"),
)
