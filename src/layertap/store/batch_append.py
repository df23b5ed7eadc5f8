"""The rows of a batch on their way into a run's shards: the kept tensors of its arena with one write for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from layertap.errors import RunError
from layertap.measure.fingerprint import fingerprint
from layertap.messages import tr
from layertap.store.columns import RecordBatch
from layertap.store.dtype import Bytes
from layertap.store.open_shard import OpenShard


class Shards(Protocol):
    """What a `RunWriter` lets a batch do."""

    lost: int

    @property
    def open_shard(self) -> OpenShard: ...
    @property
    def due(self) -> bool: ...
    def commit(self) -> None: ...
    def make_room(self) -> None: ...
    def failed(self, what: str, error: OSError) -> RunError: ...


class BatchAppender:
    """Takes a batch row by row where it must, and many at a time where it can."""

    def __init__(self, writer: Shards, batch: RecordBatch) -> None:
        self.failure: Exception | None = None
        """The first error; the rows without one are written all the same."""
        self._writer, self._batch = writer, batch
        self._keys = [""] * len(batch)
        self._start = 0
        """The first row that is not in a shard yet."""
        self._reserved = 0
        """The first row for which the open shard's parquet file has no room reserved yet."""

    def run(self) -> None:
        rows, start = self._batch.waiting(), 0
        for place in [place for place, row in enumerate(rows) if row in self._batch.late] if self._batch.late else ():
            self._append(rows[start:place])
            self._late(rows[place])
            start = place + 1
        self._append(rows[start:])
        self._take(len(self._batch))
        self._commit_if_due()

    def _late(self, row: int) -> None:
        try:
            data = self._batch.arrive(row)
            if data is not None:
                plan = self._batch.plan(row)
                if plan.kept != "tensor" or row in self._batch.unsketched:
                    self._batch.kept_fingerprint(row, fingerprint(data, plan.kept_dtype))
                self._append([row], data)
        except Exception as error:  # noqa: BLE001 - the rest of the batch must arrive, and its memory be given back
            self._batch.lose(row)
            self.failure = self.failure or error
        finally:
            self._batch.written(row)

    def _append(self, rows: Sequence[int], data: Bytes | None = None) -> None:
        """Writes the tensors of rows: from the arena, or the bytes that are given of one."""
        batch = self._batch
        while rows:
            # A row must not be left without room when its tensor is in the file already.
            if self._reserve(rows[-1] + 1) <= rows[-1]:
                if len(rows) > 1:
                    self._each(rows)
                    return
                self._take(rows[-1])
                if self._start > rows[-1]:
                    return  # it is lost
                continue
            try:
                keys = self._writer.open_shard.append(
                    batch.names(rows), batch.forms(rows), batch.sizes(rows), self._reader(rows, data)
                )
            except OSError as error:
                if len(rows) > 1:  # perhaps the disk has room for some of them
                    self._each(rows)
                    return
                self._take(rows[0])
                if self._writer.open_shard.records:  # committed, they take less room than was reserved for them
                    self._switch(self._writer.commit)
                    continue
                self._lose(rows[0], tr("store.tensor_of", value=batch.name(rows[0]).partition("/")[2]), error)
                return
            for row, key in zip(rows, keys, strict=False):
                self._keys[row] = key
            last, rows = rows[-1], rows[len(keys) :]
            if rows:  # the header is full
                self._take(rows[0])
                self._switch(self._writer.make_room)
            elif self._writer.due:
                self._take(last + 1)
                self._switch(self._writer.commit)

    def _reader(self, rows: Sequence[int], data: Bytes | None) -> Callable[[int], list[memoryview]]:
        return lambda count: self._batch.pieces(rows[:count]) if data is None else [data.data]

    def _each(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._append([row])

    def _take(self, stop: int) -> None:
        """Puts the rows up to there into the shard that has their tensors."""
        while self._start < stop:
            end = min(stop, self._reserve(stop))
            if end > self._start:
                self._writer.open_shard.add_rows(self._batch, self._start, end, self._keys)
                self._start = end

    def _reserve(self, stop: int) -> int:
        """Reserves room for the rows up to there, or as far as the disk has some; returns how far.

        Where it has none at all, what is pending is committed, which takes less room than was reserved for it. If that
        does not help, the next row is lost.
        """
        while self._reserved < stop:
            size, failure = stop - self._reserved, OSError()
            while size:
                try:
                    self._writer.open_shard.reserve_rows(self._batch, self._reserved, self._reserved + size)
                    self._reserved += size
                    break
                except OSError as error:
                    size, failure = size // 2, error
            if size:
                continue
            if self._reserved > self._start:
                break
            if self._writer.open_shard.records:
                self._switch(self._writer.commit)
            else:
                name = self._batch.name(self._start).partition("/")[2]
                self._lose(self._start, tr("store.record_of", name=name), failure)
                break
        return self._reserved

    def _lose(self, row: int, what: str, error: OSError) -> None:
        """Gives the row up; those before it are in a shard."""
        self._batch.lose(row)
        self._start = row + 1
        trouble = self._writer.failed(what, error)
        trouble.__cause__ = error
        self.failure = self.failure or trouble
        self._reserved = self._start

    def _switch(self, to_next: Callable[[], None]) -> None:
        """Ends the open shard; rows that are not in it need room in the next one."""
        try:
            to_next()
        except RunError as error:  # its rows are lost, and counted
            self.failure = self.failure or error
        self._reserved = self._start

    def _commit_if_due(self) -> None:
        if self._writer.due:
            self._switch(self._writer.commit)
