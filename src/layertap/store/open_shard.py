"""The shard that is being written: a tensor file, the room for a parquet file, and the rows that wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

import pyarrow as pa

from layertap.site import Record
from layertap.store.columns import RecordBatch
from layertap.store.folder import temporary_name
from layertap.store.parquetfile import ParquetFile, room_of
from layertap.store.row_columns import Rows, joined
from layertap.store.schema import FORMAT, to_table
from layertap.store.tensorfile import TensorFileWriter

TOGETHER = 4096
"""Rows that are made columns at once: each time takes a millisecond, however few they are."""
_METADATA = {"layertap_format": str(FORMAT)}


class OpenShard:
    """Tensors go to its file at once; records wait in memory until `write`."""

    def __init__(self, folder: Path, stem: str, *, header_bytes: int, durable: bool) -> None:
        self.stem = stem
        self.records = 0
        """Rows that wait."""
        self.opened = 0.0
        """When the first of them came."""
        self.parquet = folder / "records" / f"{stem}.parquet"
        self.tensors = folder / "tensors" / f"{stem}.safetensors"
        self._header_bytes, self._durable = header_bytes, durable
        self._waiting: list[list[tuple[Record, int]] | Any] = []
        self._rows_waiting: list[Rows] = []
        """Those that are no columns yet."""
        self._keys: set[str] = set()
        self._tensor_file: TensorFileWriter | None = None
        self._rows: ParquetFile | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of tensors in it."""
        return 0 if self._tensor_file is None else self._tensor_file.nbytes

    def add(self, record: Record, size: int) -> None:
        """Takes a record; an OSError where the disk has no room for it."""
        self._reserve(room_of(record), 1)
        self._make_columns()
        if not self._waiting or not isinstance(self._waiting[-1], list):
            self._waiting.append([])
        self._waiting[-1].append((record, size))
        self._count(1)

    def reserve_rows(self, batch: RecordBatch, start: int, stop: int) -> None:
        """Takes room on the disk for rows of a batch; an OSError where it has none."""
        rooms = batch.plans.rooms[batch.rows["plan"][start:stop]]
        self._reserve(int(rooms.sum()), stop - start)

    def add_rows(self, batch: RecordBatch, start: int, stop: int, keys: Sequence[str]) -> None:
        """Takes a copy of rows of a batch, for which room was reserved; they become columns with others."""
        rows = batch.taken(start, stop, keys)
        if len(rows):
            self._rows_waiting.append(rows)
            self._count(len(rows))
            if sum(map(len, self._rows_waiting)) >= TOGETHER:
                self._make_columns()

    def append(
        self, names: list[str], forms: Sequence[str], sizes: Sequence[int], data: Callable[[int], list[memoryview]]
    ) -> list[str]:
        """Writes tensors, of which `data` gives the bytes of the first few; returns their keys.

        They are fewer where the header is full. `forms` are those of `TensorFileWriter.form`. An OSError if the disk is
        full; the file then is as it was before.
        """
        keys = self._unused(names)
        ends = list(accumulate(sizes, initial=self.nbytes))
        entries = [
            f",{encode_basestring_ascii(key)}:{form}{begin},{end}]}}"
            for key, form, (begin, end) in zip(keys, forms, pairwise(ends), strict=True)
        ]
        if self._tensor_file is None:
            # An entry longer than the usual room (a very long path) makes its own.
            header_bytes = max(self._header_bytes, 512 + len(entries[0]))
            self._tensor_file = TensorFileWriter(
                temporary_name(self.tensors), header_bytes=header_bytes, metadata=_METADATA, durable=self._durable
            )
        fitting = self._tensor_file.fitting(entries)
        if fitting:
            keys = keys[:fitting]
            self._tensor_file.append("".join(entries[:fitting]).encode(), *data(fitting))
            self._keys.update(keys)
        return keys[:fitting]

    def _unused(self, names: list[str]) -> list[str]:
        """The names as keys; one that the file or a name before it has already is given a number."""
        given = set(names)
        if len(given) == len(names) and self._keys.isdisjoint(given):
            return names
        keys: list[str] = []
        met: set[str] = set()
        for name in names:
            taken = name in self._keys or name in met
            keys.append(f"{name}#{len(self._keys) + len(keys)}" if taken else name)
            met.add(keys[-1])
        return keys

    def write(self) -> None:
        """Gives both files their names: the tensors first, the records last."""
        assert self._rows is not None
        self._make_columns()
        if self._tensor_file:
            self._tensor_file.finish(self.tensors)
        self._rows.write(pa.concat_tables(list(self._tables())), self.parquet, durable=self._durable)

    def abandon(self) -> None:
        """Removes what was written."""
        for file in (self._tensor_file, self._rows):
            if file is not None:
                file.abandon()

    def _make_columns(self) -> None:
        waiting, self._rows_waiting = self._rows_waiting, []
        self._waiting += [rows.table(self.tensors.name) for rows in joined(waiting)]

    def _tables(self) -> Iterator[Any]:
        for waiting in self._waiting:
            yield to_table(waiting) if isinstance(waiting, list) else waiting

    def _reserve(self, nbytes: int, rows: int) -> None:
        if self._rows is None:
            self._rows = ParquetFile(temporary_name(self.parquet))
        self._rows.reserve(nbytes, rows)

    def _count(self, rows: int) -> None:
        if not self.records:
            self.opened = time.monotonic()
        self.records += rows
