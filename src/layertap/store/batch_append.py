"""The rows of a batch on their way into a run's shards: small kept tensors with one write for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from layertap.errors import RunError
from layertap.measure.fingerprint import fingerprint
from layertap.messages import tr
from layertap.store.columns import RecordBatch
from layertap.store.dtype import Bytes
from layertap.store.open_shard import OpenShard

TOGETHER = 1 << 20
"""Bytes of neighbouring tensors that are written at once."""


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
        batch, rows = self._batch, list(self._batch.waiting())
        together: list[int] = []
        for row in rows:
            if together and not self._joins(together, row):
                self._flush(together)
            if row in batch.late:
                self._late(row)
            else:
                together.append(row)
        self._flush(together)
        self._take(len(batch))
        self._commit_if_due()

    def _joins(self, together: Sequence[int], row: int) -> bool:
        """Whether a row's bytes lie behind those of the rows before it."""
        places, batch = self._batch.rows["place"], self._batch
        last = together[-1]
        return bool(
            row not in batch.late
            and places[row] == places[last] + batch.plan(last).nbytes
            and places[row] - places[together[0]] < TOGETHER
        )

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

    def _flush(self, rows: list[int]) -> None:
        if not rows:
            return
        batch = self._batch
        begin, last = int(batch.rows["place"][rows[0]]), rows[-1]
        end = int(batch.rows["place"][last]) + batch.plan(last).nbytes
        assert batch.arena is not None
        self._append(rows, batch.arena[begin:end])
        rows.clear()

    def _append(self, rows: Sequence[int], data: Bytes) -> None:
        """Writes the tensors of rows that lie behind each other."""
        batch, done = self._batch, 0
        plans = [batch.plan(row) for row in rows]
        sizes = [plan.nbytes for plan in plans]
        while done < len(rows):
            left = slice(done, None)
            # A row must not be left without room when its tensor is in the file already.
            if self._reserve(rows[-1] + 1) <= rows[-1]:
                if len(rows) - done > 1:
                    self._each(rows[left], sizes[left], data)
                    return
                self._take(rows[-1])
                if self._start > rows[-1]:
                    return  # it is lost
                continue
            try:
                keys = self._writer.open_shard.append(
                    [batch.name(row) for row in rows[left]],
                    [plan.kept_dtype for plan in plans[left]],
                    [plan.kept_shape for plan in plans[left]],
                    sizes[left],
                    data,
                )
            except OSError as error:
                if len(rows) - done > 1:  # perhaps the disk has room for some of them
                    self._each(rows[left], sizes[left], data)
                else:
                    self._take(rows[done])
                    self._lose(rows[done], tr("store.tensor_of", value=batch.name(rows[done]).partition("/")[2]), error)
                return
            for row, key in zip(rows[left], keys, strict=False):
                self._keys[row] = key
            data = data[sum(sizes[done : done + len(keys)]) :]
            done += len(keys)
            if done < len(rows):  # the header is full
                self._take(rows[done])
                self._switch(self._writer.make_room)
            elif self._writer.due:
                self._take(rows[-1] + 1)
                self._switch(self._writer.commit)

    def _each(self, rows: Sequence[int], sizes: Sequence[int], data: Bytes) -> None:
        begin = 0
        for row, size in zip(rows, sizes, strict=True):
            self._append([row], data[begin : begin + size])
            begin += size

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
