"""Records as columns: rows that are filled by machine code, and become an arrow table without an object each.

A row has a few numbers of its own (which plan, which call, which place in the order) and the slab of measure/slab.py.
Everything else is the same for many rows, and stands once in a `RecordPlan` or a `Moment`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES
from layertap.site import Record, Sharding, Site
from layertap.store.dtype import Bytes
from layertap.store.schema import SCHEMA, SHARDING, WHOLE, to_records

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


class Moment(NamedTuple):
    """When records were made: what they share that is not in their plan."""

    step: int
    epoch: int | None
    batch: int | None
    phase: str


@dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """What many records have in common; `call` of the site is not part of it."""

    path: str
    role: str
    leaf: str
    kind: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    sharding: Sharding | None
    asked: bool
    count: int
    """Values: a complex number has two."""
    kept: str = "stats"
    kept_shape: tuple[int, ...] = ()
    kept_dtype: str = ""
    nbytes: int = 0
    """Bytes kept of each."""

    @cached_property
    def site(self) -> str:
        """Without the number of a call."""
        return str(Site(path=self.path, role=self.role, leaf=self.leaf))


class Plans:
    """Plans by number. They only become more; their columns are kept, so that a batch costs what is new in it."""

    def __init__(self) -> None:
        self.all: list[RecordPlan] = []
        self._numbers: dict[RecordPlan, int] = {}
        self._table: Any = None
        self._counts = np.empty(0, np.int64)
        self._wholes = np.empty(0, np.bool_)
        self._kinds, self._tables = np.empty(0, np.int64), np.empty(0, np.uint64)

    def number(self, plan: RecordPlan) -> int:
        """The plan's number; equal plans have one."""
        found = self._numbers.get(plan)
        if found is None:
            found = self._numbers[plan] = len(self.all)
            self.all.append(plan)
        return found

    def table(self) -> Any:
        """One row a plan, in columns of `SCHEMA` and `count`, `nbytes`."""
        known = 0 if self._table is None else self._table.num_rows
        new = self.all[known:]
        if new:
            part = pa.Table.from_arrays(
                [pa.array([_OF_PLAN[name](plan) for plan in new], SCHEMA.field(name).type) for name in _OF_PLAN],
                names=list(_OF_PLAN),
            )
            self._table = part if self._table is None else pa.concat_tables([self._table, part]).combine_chunks()
        return self._table

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many values the tensors of each plan have."""
        new = self.all[len(self._counts) :]
        if new:
            self._counts = np.concatenate([self._counts, np.array([plan.count for plan in new], np.int64)])
        return self._counts

    def reading(
        self, kind_of: Callable[[str], tuple[int, int]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Of each plan the count of values, and the two numbers that `kind_of` knows of its dtype."""
        new = self.all[len(self._kinds) :]
        if new:
            found = [kind_of(plan.dtype) for plan in new]
            self._kinds = np.concatenate([self._kinds, np.array([kind for kind, _ in found], np.int64)])
            self._tables = np.concatenate([self._tables, np.array([table for _, table in found], np.uint64)])
        return self.counts, self._kinds, self._tables

    @property
    def wholes(self) -> npt.NDArray[np.bool_]:
        """Of which plans the tensor itself is kept."""
        new = self.all[len(self._wholes) :]
        if new:
            self._wholes = np.concatenate([self._wholes, np.array([plan.kept == "tensor" for plan in new], np.bool_)])
        return self._wholes


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

    def waiting(self) -> Iterator[int]:
        """The rows of which bytes are kept, or that wait for something, in their order."""
        placed = np.flatnonzero(self.rows["place"][: self.count] >= 0).tolist()
        yield from sorted({*placed, *self.late}) if self.late else placed

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
                ["" for _ in places] if texts is None else [texts[place - start] for place in places.tolist()],
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
        where = {place: at for at, place in enumerate(places.tolist())}
        told = {where[row]: found for row, found in self._measured.items() if row in where}
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
        columns["kept_fingerprint"] = self._fingerprints(where, rows["plan"], numbers["fingerprint"])
        return columns

    def _fingerprints(self, where: dict[int, int], plans: npt.NDArray[Any], own: npt.NDArray[Any]) -> Any:
        whole = self.plans.wholes[plans]
        values = np.where(whole, own, np.uint64(0))
        for row, fingerprint in self._kept_fingerprints.items():
            if row in where:
                values[where[row]], whole[where[row]] = fingerprint, True
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


def _of_sharding(name: str) -> Callable[[RecordPlan], Any]:
    return lambda plan: getattr(plan.sharding or WHOLE, name)


def _plainly(name: str) -> Callable[[RecordPlan], Any]:
    return lambda plan: getattr(plan, name)


_OF_PLAN: dict[str, Callable[[RecordPlan], Any]] = {
    **{
        name: _plainly(name)
        for name in (
            *("site", "path", "role", "leaf", "kind", "rank", "shape", "dtype", "device", "asked"),
            *("kept", "kept_shape", "kept_dtype", "nbytes"),
        )
    },
    **{name: _of_sharding(name) for name in SHARDING},
}
