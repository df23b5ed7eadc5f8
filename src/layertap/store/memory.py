"""A run that is never written: the same interface as `RunWriter`, for small captures and tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from layertap.errors import RunError
from layertap.measure.fingerprint import fingerprint
from layertap.messages import tr
from layertap.result import jsonable
from layertap.site import Receipt, Record
from layertap.store.columns import RecordBatch
from layertap.store.dtype import Bytes, size_of
from layertap.store.given import as_bytes
from layertap.store.schema import FORMAT, kept_nothing, to_table
from layertap.store.session import closed_as, iso_time


class MemoryWriter:
    """Keeps a run in memory.

        writer = MemoryWriter(info={"model": "GPT2"})
        writer.add(record, data)
        writer.close(receipt)
        run = Run(writer)

    The `Run` is a snapshot of what was committed up to then. `name` is what it is called in texts.
    """

    def __init__(
        self,
        *,
        info: dict[str, Any],
        rank: int = 0,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
    ) -> None:
        self.path = None
        self.name = tr("store.in_memory") if name is None else name
        self.rank = rank
        self.lost = 0
        self.problems: list[str] = []
        self.records = 0
        self.bytes = 0
        self.info: dict[str, Any] = {
            **jsonable(info),
            "format": FORMAT,
            "status": "recording",
            "session": "memory",
            "rank": rank,
            "started": iso_time(clock()),
            "finished": None,
            "sessions": [],
        }
        self.tables: list[Any] = []
        """The committed shards, as arrow tables."""
        self._clock = clock
        self._pending: list[tuple[Record, int]] = []
        self._tensors: dict[str, Bytes | Callable[[], Bytes]] = {}

    def add(self, record: Record, data: Any = None) -> None:
        """Takes one record and the kept tensor's bytes, which belong to the run from now on: they are not copied.

        In place of bytes a function may be given that reads them anew each time they are asked for: so a run in memory
        can represent files that would not fit there.
        """
        if self.info["status"] != "recording":
            raise RunError(tr("store.closed", site=record.site))
        if data is None:
            self._pending.append((kept_nothing(record), 0))
            return
        key = f"{record.step}/{record.site}#{len(self._tensors)}"
        if callable(data):
            size = size_of(record.kept_dtype, record.kept_shape) or 0
            self._tensors[key] = data
        else:
            view = as_bytes(record, data)
            size = len(view)
            self._tensors[key] = np.frombuffer(view, np.uint8)
        self._pending.append((replace(record, file="memory", key=key), size))

    def add_batch(self, batch: RecordBatch) -> None:
        """Takes the rows of a batch; the bytes of small tensors are copied out of it."""
        if self.info["status"] != "recording":
            raise RunError(tr("store.closed_many", count=len(batch)))
        self.commit()  # records that came alone were before these
        keys, failure = [""] * len(batch), None
        for row in batch.waiting():
            try:
                data = batch.arrive(row)
                if data is None:
                    continue
                plan = batch.plan(row)
                if plan.kept != "tensor" or row in batch.unsketched:
                    batch.kept_fingerprint(row, fingerprint(data, plan.kept_dtype))
                keys[row] = f"{batch.name(row)}#{len(self._tensors)}"
                self._tensors[keys[row]] = data if row in batch.late else data.copy()
                self.bytes += len(data)
            except Exception as error:  # noqa: BLE001 - the rows after it are taken all the same
                batch.lose(row)
                failure = failure or error
            finally:
                batch.written(row)
        table = batch.taken(0, len(batch), keys).table("memory")
        self.tables.append(table)
        self.records += table.num_rows
        if failure is not None:
            raise failure

    def commit(self) -> None:
        if self._pending:
            self.tables.append(to_table(self._pending))
            self.records += len(self._pending)
            self.bytes += sum(size for _, size in self._pending)
            self._pending = []

    def settle(self) -> None:
        """Nothing that was committed can be gone (see `RunWriter`)."""
        self.commit()

    def close(self, receipt: Receipt | None = None, **more_info: Any) -> None:
        if self.info["status"] != "recording":
            return
        self.commit()
        self.info.update(jsonable(more_info))
        self.info.update(
            status=closed_as(receipt),
            finished=iso_time(self._clock()),
            lost=self.lost,
            problems=list(self.problems),
            receipt=None if receipt is None else jsonable(receipt.to_dict()),
        )

    def tensor_bytes(self, key: str) -> Bytes:
        """A copy: what a reader does to its tensor must not change the run."""
        held = self._tensors[key]
        return held() if callable(held) else held.copy()
