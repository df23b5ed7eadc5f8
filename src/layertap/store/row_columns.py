"""Rows of batches as the columns of an arrow table: many at a time, since each column costs as much for one as for some
hundred, while the model's own thread waits for the interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layertap.measure.definition import FIRST
from layertap.measure.result import Measurement
from layertap.store.plans import Moment, Plans
from layertap.store.schema import IN_WHOLE, SCHEMA


@dataclass(slots=True)
class Rows:
    """Rows with what they refer to; none of them is lost."""

    plans: Plans
    moments: Sequence[Moment]
    rows: npt.NDArray[np.void]
    keys: list[str] | None = None
    """Under which the kept tensor of each is in its file; empty where none is."""
    measured: dict[int, Measurement] = field(default_factory=dict)
    """What a row's slab does not hold."""
    kept_fingerprints: dict[int, int] = field(default_factory=dict)
    """The fingerprint of what was kept of a row, where that is not the tensor itself."""

    def __len__(self) -> int:
        return len(self.rows)

    def table(self, file: str = "") -> Any:
        """The rows in the columns of `SCHEMA`; `file` has the tensors that are kept."""
        rows, keys = self.rows, self.keys or [""] * len(self.rows)
        columns = {**self._of_plans(rows), **self._of_moments(rows), **self._numbers(rows)}
        columns["key"] = pa.array(keys, pa.string())
        columns["file"] = pa.array([file if key else "" for key in keys], pa.string())
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

    def _numbers(self, rows: npt.NDArray[np.void]) -> dict[str, Any]:
        count = self.plans.counts[rows["plan"]]
        numbers: dict[str, npt.NDArray[Any]] = {name: np.ascontiguousarray(rows[name]) for name in _NUMBERS}
        numbers |= _statistics(count, rows)
        first = rows["first"].copy()
        sketches: list[bytes] | None = None
        told = self.measured
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
        columns["kept_fingerprint"] = self._fingerprints(rows["plan"], numbers["fingerprint"])
        for name, of in zip(IN_WHOLE, ("fingerprint", "sketch"), strict=True):
            sums = {at: getattr(found.in_whole, of, None) for at, found in told.items()}
            kind = SCHEMA.field(name).type
            columns[name] = pa.array(map(sums.get, range(len(rows))), kind) if sums else pa.nulls(len(rows), kind)
        return columns

    def _fingerprints(self, plans: npt.NDArray[Any], own: npt.NDArray[Any]) -> Any:
        whole = self.plans.wholes[plans]
        values = np.where(whole, own, np.uint64(0))
        for at, fingerprint in self.kept_fingerprints.items():
            values[at], whole[at] = fingerprint, True
        return pa.array(values, mask=~whole)


def joined(parts: Sequence[Rows]) -> Iterator[Rows]:
    """The same rows in their order, those of the same plans together."""
    for _, group in groupby(parts, key=lambda part: id(part.plans)):
        same = list(group)
        rows = np.concatenate([part.rows for part in same])
        whole = Rows(same[0].plans, [], rows, keys=[])
        moments: list[Moment] = []
        begin = 0
        for part in same:
            end = begin + len(part)
            rows["moment"][begin:end] += len(moments)
            moments += part.moments
            assert whole.keys is not None
            whole.keys += part.keys or [""] * len(part)
            whole.measured |= {begin + at: found for at, found in part.measured.items()}
            whole.kept_fingerprints |= {begin + at: found for at, found in part.kept_fingerprints.items()}
            begin = end
        whole.moments = moments
        yield whole


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
