"""The small columns of all records, in memory: enough to say which sites there are and where each record lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layertap.errors import CorruptRun
from layertap.site import Site

NONE = -(1 << 63)
"""Stands for "no epoch" and "no batch"."""

_NUMBERS = ("step", "rank", "order", "epoch", "batch")
_COLUMNS = ("site", "phase", "asked", *_NUMBERS)


class Index:
    """Where the records of a run lie. Each shard is read through `attempt`, which gives None for one that cannot be."""

    def __init__(self, shards: Sequence[Any], attempt: Callable[..., Any]) -> None:
        codes: dict[str, int] = {}
        found = [attempt(_part, shard, number, codes) for number, shard in enumerate(shards)]
        parts: list[dict[str, npt.NDArray[Any]]] = [part for part in found if part is not None]
        self.sites = tuple(Site.parse(text) for text in codes)
        """All sites, asked for or not, as they were met."""
        self._columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
        self._codes = {str(site): code for code, site in enumerate(self.sites)}
        self._order: npt.NDArray[np.int64] | None = None

    def values(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """One column of the given rows; `NONE` where there is no value."""
        return self._columns[name][rows]

    def place(self, row: int) -> tuple[int, int]:
        """The shard of a row, and its number in there."""
        return int(self._columns["shard"][row]), int(self._columns["row"][row])

    def find(self, site: Site | str) -> npt.NDArray[np.int64]:
        """The rows of a site in order of execution; those asked for, or if there are none the others."""
        code = self._codes.get(str(site), -1)
        order = self._sorted()
        rows = order[self._columns["site"][order] == code] if len(order) else order
        asked = rows[self._columns["asked"][rows]] if len(rows) else rows
        return asked if len(asked) else rows

    def unasked(self) -> npt.NDArray[np.int64]:
        order = self._sorted()
        return order[~self._columns["asked"][order]] if len(order) else order

    def sites_asked(self) -> tuple[Site, ...]:
        """The sites that were asked for, each where it first came."""
        order = self._sorted()
        if not len(order):
            return ()
        codes = self._columns["site"][order[self._columns["asked"][order]]]
        _, first = np.unique(codes, return_index=True)
        return tuple(self.sites[code] for code in codes[np.sort(first)])

    def steps(self) -> npt.NDArray[np.int64]:
        return np.unique(self._columns["step"]) if self._columns else np.empty(0, np.int64)

    def _sorted(self) -> npt.NDArray[np.int64]:
        # By step, rank, order. The rank comes before the order, because in a pipeline each rank counts from 0 and
        # rank 1 carries on where rank 0 ended; where ranks hold the same sites, rank 0 decides alone.
        if self._order is None:
            columns = self._columns
            self._order = (
                np.lexsort((columns["order"], columns["rank"], columns["step"])) if columns else np.empty(0, np.int64)
            )
        return self._order


def _part(shard: Any, number: int, codes: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    table = shard.read(_COLUMNS, encoded=("site", "phase"))
    part: dict[str, npt.NDArray[Any]] = {}
    for name in _NUMBERS:
        part[name] = _whole_numbers(table.column(name))
    part["asked"] = _whole_numbers(table.column("asked")) != 0
    texts, local = _encoded(table.column("site"))
    for text in texts:
        if text not in codes:
            try:
                Site.parse(text)
            except ValueError as error:
                raise CorruptRun(f"{shard.name}: {error}") from None
    part["site"] = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)[local]
    phases, local = _encoded(table.column("phase"))
    part["phase"] = np.array(phases, np.str_)[local] if phases else np.empty(0, np.str_)
    part["shard"] = np.full(table.num_rows, number, np.int64)
    part["row"] = np.arange(table.num_rows)
    return part


def _encoded(column: Any) -> tuple[list[str], npt.NDArray[np.int64]]:
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no rows at all
        return [], np.empty(0, np.int64)
    return array.dictionary.to_pylist(), _whole_numbers(pa.chunked_array([array.indices]))


def _whole_numbers(column: Any) -> npt.NDArray[np.int64]:
    # By way of the buffers: pyarrow's own to_numpy and fill_null(int) import pandas, which takes longer than the rest.
    none = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(NONE.to_bytes(8, "little", signed=True))])[0]
    array = column.cast(pa.int64()).fill_null(none).combine_chunks()
    return (
        np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)
        if len(array)
        else np.empty(0, np.int64)
    )
