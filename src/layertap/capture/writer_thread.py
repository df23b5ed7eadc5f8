"""The thread that completes batches and writes them, so that the model's own thread waits for no disk."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from layertap.capture.gathering import AGE, Batch, Gathering, complete
from layertap.capture.room import Room
from layertap.measure import native
from layertap.messages import tr
from layertap.site import Receipt, Record
from layertap.store.columns import RecordBatch

IDLE = 2.0
"""Seconds without work after which the writer commits what it has, so that readers see it."""
_COMMIT, _END = object(), object()

log = logging.getLogger("layertap")


class Writer(Protocol):
    """What a sink writes to: a run on disk or in memory. One with `add_batch` takes the rows of a batch as they are."""

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def add(self, record: Record, data: npt.NDArray[np.uint8] | None) -> None: ...
    def commit(self) -> None: ...
    def close(self, receipt: Receipt | None, **info: Any) -> None: ...


class WriterThread:
    """Takes batches and actions from its queue, in their order, until its end."""

    def __init__(self, writer: Writer, gathering: Gathering, room: Room) -> None:
        self.queue: queue.Queue[Batch | Callable[[], None] | object] = queue.Queue()
        self.done = 0
        """Records that have arrived."""
        self.error = ""
        self.failure: Exception | None = None
        """The first error of writing."""
        self._writer, self._gathering, self._room = writer, gathering, room
        self._thread = threading.Thread(target=self._work, name="layertap-writer", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Waits until all that is in the queue is written, and can be read."""
        self.queue.put(_COMMIT)
        self.queue.join()

    def end(self) -> None:
        self.queue.put(_END)
        self._thread.join()

    def fail(self, error: Exception) -> None:
        """Keeps the first error of writing, and says it."""
        if not self.error:
            self.error, self.failure = f"{type(error).__name__}: {error}", error
            log.error(tr("capture.log_record"), self.error)

    def _work(self) -> None:
        native.limit_threads(max(1, (os.cpu_count() or 1) // 4))  # the model needs the others
        last = time.monotonic()
        while True:
            try:
                item = self.queue.get(timeout=AGE)
            except queue.Empty:
                self._try(self._look_round)
                if time.monotonic() - last >= IDLE:
                    self._try(self._writer.commit)
                    last = time.monotonic()
                continue
            if isinstance(item, Batch):
                self._try(self._write, item)
                self._arrived(item)
            elif callable(item):
                self._try(item)
            elif item is not _END:
                self._try(self._writer.commit)
            last = time.monotonic()
            self.queue.task_done()
            if item is _END:
                return
            del item  # or its tensors would live until the next one comes

    def _look_round(self) -> None:
        """Where no record has come for a while, what waits in the open batch is fetched from here."""
        batch = self._gathering.close(older=AGE)
        if batch is not None:
            try:
                self._write(batch)
            finally:
                self._arrived(batch)

    def _write(self, batch: Batch) -> None:
        complete(batch)
        add_batch = getattr(self._writer, "add_batch", None)
        if add_batch is not None:
            add_batch(batch.records)
            return
        failure: Exception | None = None
        for record, data in _one_by_one(batch.records):
            try:
                if isinstance(record, Exception):
                    raise record
                self._writer.add(record, data)
            except Exception as error:  # noqa: BLE001 - the records after it are written all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def _arrived(self, batch: Batch) -> None:
        for row in list(batch.records.late):
            batch.records.written(row)
        self._room.release(batch.reserved)
        with self._room.changed:
            self.done += len(batch.records)
            self._room.changed.notify_all()
        self._gathering.take_back(batch)

    def _try(self, action: Callable[..., None], *given: Batch) -> None:
        # This thread must outlive any error: a producer may be waiting for room that only it can make.
        try:
            action(*given)
        except Exception as error:  # noqa: BLE001
            self.fail(error)


def _one_by_one(batch: RecordBatch) -> Any:
    """The records of a batch as objects, each with its bytes, or the error that came in their place."""
    start = 0
    for row in batch.waiting():
        yield from ((record, None) for record in batch.objects(start, row))
        start = row + 1
        try:
            data = batch.arrive(row)
            yield batch.objects(row, row + 1)[0], data
        except Exception as error:  # noqa: BLE001
            yield error, None
        finally:
            batch.written(row)
    yield from ((record, None) for record in batch.objects(start, len(batch)))
