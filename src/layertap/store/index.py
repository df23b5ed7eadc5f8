"""The small columns of all records, in memory: enough to say which sites there are and where each record lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layertap.errors import CorruptRun
from layertap.site import Site

NONE = -(1 << 63)
"""Stands for "no epoch" and "no batch"."""

_NUMBERS = ("step", "rank", "order", "epoch", "batch")
_TEXTS = ("phase", "dtype", "kept")
_COLUMNS = ("site", "asked", "shape", "fingerprint", *_NUMBERS, *_TEXTS)

Rows = npt.NDArray[np.int64]


class Index:
    """Where the records of a run lie. Each shard is read through `attempt`, which gives None for one that cannot be."""

    def __init__(self, shards: Sequence[Any], attempt: Callable[..., Any]) -> None:
        self._codes: dict[str, dict[str, int]] = {name: {} for name in ("site", *_TEXTS)}
        self._shapes: dict[bytes, int] = {}
        found = [attempt(_part, shard, number, self._codes, self._shapes) for number, shard in enumerate(shards)]
        parts: list[dict[str, npt.NDArray[Any]]] = [part for part in found if part is not None]
        self.sites = tuple(Site.parse(text) for text in self._codes["site"])
        """All sites, asked for or not, as they were met."""
        self._names = {name: np.array([*codes, ""], np.str_) for name, codes in self._codes.items() if name != "site"}
        names = list(parts[0]) if parts else []
        self._columns = {name: _joined([part.pop(name) for part in parts]) for name in names}
        self._codes["site"] = {str(site): code for code, site in enumerate(self.sites)}
        self._gone = np.zeros(len(self._columns["row"]) if parts else 0, np.bool_)

    def __len__(self) -> int:
        """How many rows there are, with those that were left out."""
        return len(self._gone)

    def values(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """One column of the given rows; `NONE` where there is no value. Sites come as their numbers in `sites`."""
        found = self._columns[name][rows]
        if name in _NUMBERS:
            return found.astype(np.int64, copy=False)
        return self._names[name][found] if name in self._names else found

    def code(self, site: Site | str) -> int:
        """The number of a site in `sites`, or -1."""
        return self._codes["site"].get(str(site), -1)

    def find(self, site: Site | str) -> Rows:
        """The rows of a site in order of execution; those asked for, or if there are none the others."""
        code = self.code(site)
        order, codes = self._by_site
        rows = order[np.searchsorted(codes, code, "left") : np.searchsorted(codes, code, "right")]
        asked = rows[self._columns["asked"][rows]] if len(rows) else rows
        return asked if len(asked) else rows

    def asked(self) -> Rows:
        """The rows that were asked for, in order of execution."""
        order = self.ordered
        asked = self._columns["asked"][order] if len(order) else np.empty(0, np.bool_)
        return order if asked.all() else order[asked]

    def unasked(self) -> Rows:
        order = self.ordered
        return order[~self._columns["asked"][order]] if len(order) else order

    def sites_asked(self) -> tuple[Site, ...]:
        """The sites that were asked for, each where it first came."""
        rows = self.asked()
        if not len(rows):
            return ()
        codes = self._columns["site"][rows]
        _, first = np.unique(codes, return_index=True)
        return tuple(self.sites[code] for code in codes[np.sort(first)])

    def steps(self) -> Rows:
        return np.unique(self._columns["step"]).astype(np.int64) if self._columns else np.empty(0, np.int64)

    def leave_out(self, rows: Rows) -> None:
        """Forgets rows that turned out to be unreadable; the others keep their numbers."""
        self._gone[rows] = True
        for name in ("ordered", "_by_site"):
            self.__dict__.pop(name, None)

    @property
    def unread(self) -> int:
        """How many rows were left out."""
        return int(self._gone.sum())

    def left(self, rows: Rows) -> Rows:
        """Those of the rows that were not left out."""
        return rows[~self._gone[rows]]

    def same(self, rows: Rows, other: Index, others: Rows) -> npt.NDArray[np.bool_]:
        """Row for row, whether two records are known to be bit-identical: fingerprint, dtype and shape, not 0.

        A foreign folder without tensors has fingerprints of 0, which prove nothing; neither do those of all zeros.
        """
        found = self.same_shapes(rows, other, others)
        if not len(rows):
            return found
        ours, theirs = self._columns, other._columns
        marks = ours["fingerprint"][rows]
        found &= (marks == theirs["fingerprint"][others]) & (marks != 0)
        shared = np.array([other._codes["dtype"].get(name, -1) for name in self._codes["dtype"]])
        found &= shared[ours["dtype"][rows]] == theirs["dtype"][others]
        return found

    def same_shapes(self, rows: Rows, other: Index, others: Rows) -> npt.NDArray[np.bool_]:
        """Row for row, whether two records are known to be of one shape."""
        if not len(rows):
            return np.empty(0, np.bool_)
        shapes = np.array([-1 if shape == _UNKNOWN else other._shapes.get(shape, -1) for shape in self._shapes])
        found: npt.NDArray[np.bool_] = shapes[self._columns["shape"][rows]] == other._columns["shape"][others]
        return found

    @cached_property
    def ordered(self) -> Rows:
        """All rows in order of execution."""
        # By step, rank, order. The rank comes before the order, because in a pipeline each rank counts from 0 and
        # rank 1 carries on where rank 0 ended; where ranks hold the same sites, rank 0 decides alone.
        columns = self._columns
        if not columns:
            return np.empty(0, np.int64)
        order = np.lexsort((columns["order"], columns["rank"], columns["step"]))
        return order[~self._gone[order]]

    @cached_property
    def _by_site(self) -> tuple[Rows, Rows]:
        """All rows by site, and their sites: so each of a thousand sites is found without a look at a million rows."""
        codes = self._columns["site"][self.ordered] if self._columns else self.ordered
        places = np.argsort(codes, kind="stable")
        return self.ordered[places], codes[places]


_AXES = 6
"""Axes of a shape that are held here; what has more, or longer ones, is compared by its record."""
_OTHER = -2
_WEIGHTS = np.array([0x9E3779B97F4A7C15**axis % 2**64 for axis in range(1, _AXES + 1)], np.uint64)
"""By which the axes of a shape become one number that few others have."""
_UNKNOWN = np.full(_AXES, _OTHER, np.int32).tobytes()


def _part(
    shard: Any, number: int, codes: dict[str, dict[str, int]], shapes: dict[bytes, int]
) -> dict[str, npt.NDArray[Any]]:
    table = shard.read(_COLUMNS, encoded=("site", *_TEXTS))
    part: dict[str, npt.NDArray[Any]] = {}
    for name in _NUMBERS:
        part[name] = _narrow(integers_of(table.column(name)))
    part["asked"] = _narrow(integers_of(table.column("asked")) != 0)
    for name, known in codes.items():
        texts, local = encoded(table.column(name))
        for text in texts:
            if name == "site" and text not in known:
                try:
                    Site.parse(text)
                except ValueError as error:
                    raise CorruptRun(f"{shard.name}: {error}") from None
        numbers = np.array([known.setdefault(text, len(known)) for text in texts], np.int32)
        part[name] = _narrow(numbers[local] if len(local) else np.empty(0, np.int32))
    part["fingerprint"] = fingerprints(table.column("fingerprint"))
    distinct, local = _distinct(_shapes(table.column("shape")))
    part["shape"] = _narrow(np.array([shapes.setdefault(shape, len(shapes)) for shape in distinct], np.int32)[local])
    part["shard"] = np.broadcast_to(np.int32(number), table.num_rows)
    part["row"] = np.arange(table.num_rows, dtype=np.int32)
    return part


def _narrow(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column in as little memory as it fits into: one value where all are equal, else 32 bits for whole numbers."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(column[0].copy(), len(column))
    limits = np.iinfo(np.int32)
    if column.dtype == np.int64 and len(column) and limits.min <= column.min() and column.max() <= limits.max:
        return column.astype(np.int32)
    return column.copy()  # what arrow read may be a small part of what it holds


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The parts of a column one after the other, narrow where they are."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    alike = all(part.strides == (0,) and part[0] == parts[0][0] for part in parts)
    return np.broadcast_to(parts[0][0].copy(), sum(map(len, parts))) if alike else np.concatenate(parts)


def _distinct(shapes: npt.NDArray[np.int32]) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """The distinct ones of some shapes, as their bytes, and for each shape the number of its own."""
    keys = (shapes.astype(np.uint64) * _WEIGHTS).sum(axis=1, dtype=np.uint64)
    _, first, places = np.unique(keys, return_index=True, return_inverse=True)
    if not np.array_equal(shapes[first[places]], shapes):  # two shapes with one key
        first, places = np.arange(len(shapes)), np.arange(len(shapes))
    return [shape.tobytes() for shape in shapes[first]], places.reshape(-1)


def _shapes(column: Any) -> npt.NDArray[np.int32]:
    """A row for each shape: its axes, then -1; `_OTHER` for one that does not fit."""
    column = column.combine_chunks()
    found = np.full((len(column), _AXES), -1, np.int32)
    if not len(column):
        return found
    ends = _numbers(pa.chunked_array([column.offsets]), np.int32)
    flat = _numbers(pa.chunked_array([column.values]), np.int64)
    lengths = np.diff(ends)
    odd = np.flatnonzero(lengths > _AXES)
    if len(flat):
        large = (flat < 0) | (flat > np.iinfo(np.int32).max)
        if large.any():
            odd = np.union1d(odd, np.searchsorted(ends, np.flatnonzero(large), "right") - 1)
    usual = np.ones(len(column), np.bool_)
    usual[odd] = False
    for axis in range(_AXES):
        here = usual & (lengths > axis)
        found[here, axis] = flat[ends[:-1][here] + axis]
    found[odd] = _OTHER
    return found


def encoded(column: Any) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The texts of a column, each once, and for each row the number of its text."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no rows at all
        return [], np.empty(0, np.int64)
    return array.dictionary.to_pylist(), integers_of(pa.chunked_array([array.indices]))


def as_arrow(rows: Rows) -> Any:
    """Row numbers for arrow, by way of the buffers too."""
    whole = np.ascontiguousarray(rows, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def fingerprints(column: Any) -> npt.NDArray[np.uint64]:
    """An arrow column of fingerprints."""
    return _numbers(column, np.uint64)


def _numbers(column: Any, kind: type) -> npt.NDArray[Any]:
    """A column without empty values as it is in memory."""
    array = column.combine_chunks()
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), np.dtype(kind).itemsize * array.offset)


def integers_of(column: Any) -> npt.NDArray[np.int64]:
    """An arrow column of whole numbers or booleans; `NONE` where there is no value."""
    # By way of the buffers: pyarrow's own to_numpy and fill_null(int) import pandas, which takes longer than the rest.
    none = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(NONE.to_bytes(8, "little", signed=True))])[0]
    array = column.cast(pa.int64()).fill_null(none).combine_chunks()
    return (
        np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)
        if len(array)
        else np.empty(0, np.int64)
    )
