"""Writing a run: records and tensors go in, and are safe from the moment their shard is committed."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from layertap.durable import make_folder, sync_folder
from layertap.errors import BadArgument, RunError
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt, Record
from layertap.store.batch_append import BatchAppender
from layertap.store.columns import RecordBatch
from layertap.store.compaction import MERGED, Committed, merge, small_neighbours
from layertap.store.folder import prepare
from layertap.store.given import as_bytes, with_fingerprint
from layertap.store.open_shard import OpenShard
from layertap.store.runfile import run_file, write_session
from layertap.store.schema import FORMAT, kept_nothing
from layertap.store.session import closed_as, iso_time, session_name
from layertap.store.tensorfile import TensorFileWriter

SHARD_BYTES = 256 << 20
SHARD_RECORDS = 20_000
SHARD_SECONDS = (10.0, 60.0)
"""A shard is committed at this age: the first at the start of a run, the second when the run is long."""
SETTLED = 120.0
"""Seconds for which a shard stays as it was committed while the run is written: somebody may be reading it."""
MAX_PROBLEMS = 100
"""So many problems are listed one by one in run.json; all are counted in `lost`."""
DURABILITIES = ("fsync", "none")
"""`fsync`: what is committed survives a power cut. `none`: only the death of the process."""
HEADER_BYTES = ((64 << 10) - 8, (4 << 20) - 8)
"""Room reserved for a tensor file's header: at first, and at most, growing when a shard ends because it was full.
With the 8 bytes before it a whole number of pages, so that the tensors begin on one."""


log = logging.getLogger("layertap")


class RunWriter:
    """Writes one rank's part of a run into a folder. For one thread at a time.

        writer = RunWriter("runs/a", info={"model": "GPT2"})
        writer.add(record, data)        # data: the bytes of the kept tensor, or None
        writer.close(receipt)

    Tensors go to disk at once; a record is safe when its shard is committed, which happens by itself (see the constants
    above) and in `commit()`. An OSError (disk full) surfaces as a RunError; shards already committed are untouched, and
    the writer can be used on: what was lost is counted in `lost`, named in `problems`. A commit waits for the disk,
    so that it outlives a power cut; with `durability="none"` it does not, for runs that are not worth it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        info: dict[str, Any],
        rank: int = 0,
        exists: Literal["error", "append", "replace"] = "error",
        session: str | None = None,
        durability: Literal["fsync", "none"] = "fsync",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if durability not in DURABILITIES:
            raise BadArgument(tr("store.durability", durability=durability, value=" or ".join(map(repr, DURABILITIES))))
        if exists not in ("error", "append", "replace"):
            raise BadArgument(tr("store.exists_choice", exists=exists))
        self.path = Path(path)
        self.rank = rank
        self.session = session or session_name(clock())
        self.lost = 0
        """Records that could not be written."""
        self.problems: list[str] = []
        """What went wrong, in words; also written to run.json."""
        self.records = 0
        """Records committed."""
        self.bytes = 0
        """Bytes of tensors committed."""
        self._clock = clock
        self._durable = durability == "fsync"
        self._started = time.monotonic()
        self._number = 0
        self._header_bytes = HEADER_BYTES[0]
        self._committed: dict[str, Committed] = {}
        self._merge_at = 2 * MERGED
        self._closed = False
        self._info: dict[str, Any] = {
            **info,
            "format": FORMAT,
            "status": "recording",
            "session": self.session,
            "rank": rank,
            "started": iso_time(clock()),
            "finished": None,
        }
        try:
            make_folder(self.path, durable=self._durable)
            prepare(self.path, rank, info.get("world_size"), exists)
            for name in ("records", "tensors"):
                make_folder(self.path / name, durable=self._durable)
            self._write_session(keep=exists == "append")
            self._open = self._new_shard()
        except OSError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(tr("store.path_unwritable", path=self.path, strerror=error.strerror or error)) from error

    @property
    def shard(self) -> str:
        """The name of the shard that is being written; what comes is in this one or in a later one."""
        return self._stem()

    def add(self, record: Record, data: Any = None) -> None:
        """Takes one record and, when its tensor is kept, the tensor's contiguous bytes (anything with a buffer)."""
        if self._closed:
            raise RunError(tr("store.path_closed", path=self.path, site=record.site))
        size = 0
        if data is None:
            record = kept_nothing(record)
        else:
            view = as_bytes(record, data)
            size = len(view)
            try:
                record = self._append(with_fingerprint(record, view), view)
            except RunError:  # the shard before this record could not be committed
                self.lost += 1
                raise
            except OSError as error:
                raise self.failed(tr("store.tensor_of_site", site=record.site), error) from error
        try:
            self._open.add(record, size)
        except OSError as error:
            raise self.failed(
                tr("store.tensor_of_site" if data is not None else "store.record_of_site", site=record.site), error
            ) from error
        if self.due:
            self.commit()

    def add_batch(self, batch: RecordBatch) -> None:
        """Takes the rows of a batch. What cannot be had or written costs its row; its error is raised in the end."""
        if self._closed:
            raise RunError(tr("store.path_closed_many", path=self.path, count=len(batch)))
        appending = BatchAppender(self, batch)
        appending.run()
        if appending.failure is not None:
            raise appending.failure

    def commit(self) -> None:
        """Makes everything added so far part of the run. The tensors first, the records last: they are the commit."""
        shard = self._open
        if not shard.records:
            return
        try:
            shard.write()
        except Exception as error:
            # Not only OSError: whatever pyarrow makes of a bad value must not leave half a shard that the next commit
            # would write again.
            with suppress(OSError):
                shard.tensors.unlink()
            self._next_shard(abandon=True)
            raise self._note(shard.records, Note("store.shard_unwritten", stem=shard.stem, error=error)) from error
        self.records += shard.records
        self.bytes += shard.nbytes
        self._committed[shard.stem] = Committed(shard.records, shard.nbytes, time.monotonic())
        self._next_shard()
        if self._durable:
            try:
                sync_folder(shard.parquet.parent)
            except OSError as error:
                # The shard is there and can be read; only whether it would survive a power cut is not known.
                self.problems.append(Note("store.not_synced", parquet=shard.parquet, error=error))
        if len(self._committed) >= self._merge_at:
            self._compact(time.monotonic() - SETTLED)

    def settle(self) -> None:
        """Commits what is left, and counts as lost what another program has removed: the folder may be gone."""
        try:
            self.commit()
        except RunError as error:
            log.error("layertap: %s", error)
        self._compact(math.inf)
        gone = [stem for stem in self._committed if not (self.path / "records" / f"{stem}.parquet").exists()]
        if gone:
            rows = sum(self._committed[stem].records for stem in gone)
            self.records -= rows
            self.bytes -= sum(self._committed[stem].bytes for stem in gone)
            self._note(rows, Note("store.shards_gone", count=len(gone)))
            for stem in gone:
                del self._committed[stem]

    def _compact(self, before: float) -> None:
        """Merges neighbouring small shards that were committed before that time: who read them has let go of them."""
        merged: dict[str, str] = {}
        for stems in small_neighbours(self._committed, before):
            new = self._stem()
            self._next_shard()  # nothing is in the open one here
            try:
                merge(self.path, stems, new, durable=self._durable)
            except Exception as error:  # noqa: BLE001 - the shards are as they were, which is all that matters
                log.warning(tr("store.not_compacted"), self.path, error)
                break
            merged |= dict.fromkeys(stems, new)
        shards: dict[str, Committed] = {}
        for stem, shard in self._committed.items():
            name = merged.get(stem, stem)
            shards[name] = shard if name not in shards else shards[name] + shard
        self._committed = shards
        self._merge_at = len(shards) + MERGED

    def taken_out(self, stem: str, records: int) -> bool:
        """Counts records that were taken out of a shard on purpose; returns whether the shard is of this session."""
        if stem not in self._committed:
            return False
        shard = self._committed[stem]
        self.records -= records
        self._committed[stem] = replace(shard, records=shard.records - records)
        if shard.records == records:
            del self._committed[stem]
        return True

    def close(self, receipt: Receipt | None = None, **more_info: Any) -> None:
        """Commits, and writes into run.json that the run is complete, with the receipt and whatever else is known."""
        if self._closed:
            return
        failure: RunError | None = None
        try:
            self.commit()
        except RunError as error:
            failure = error
        self._info.update(more_info)
        self._info.update(
            format=FORMAT,
            status=closed_as(receipt),
            session=self.session,
            rank=self.rank,
            finished=iso_time(self._clock()),
            lost=self.lost,
            problems=list(self.problems),
            receipt=None if receipt is None else receipt.to_dict(),
        )
        try:
            self._write_session()
        except OSError as error:
            raise RunError(
                tr("store.run_file_unwritable", path=run_file(self.path, self.rank), strerror=error.strerror or error)
            ) from error
        self._closed = True
        if failure is not None:
            raise failure

    def _write_session(self, keep: bool = True) -> None:
        lost = write_session(run_file(self.path, self.rank), self._info, keep=keep, durable=self._durable)
        if lost:
            self.problems.append(lost)

    @property
    def open_shard(self) -> OpenShard:
        """What is being written; for batch_append.py, as the next three."""
        return self._open

    @property
    def due(self) -> bool:
        """Whether the shard is large or old enough to be committed."""
        shard = self._open
        if shard.records >= SHARD_RECORDS or shard.nbytes >= SHARD_BYTES:
            return True
        now = time.monotonic()
        low, high = SHARD_SECONDS
        return bool(shard.records) and now - shard.opened >= min(high, max(low, (now - self._started) / 20))

    def make_room(self) -> None:
        """Commits, since the header of the shard's tensor file is full, and gives the next one more room."""
        self._header_bytes = min(4 * self._header_bytes, HEADER_BYTES[1])
        if self._open.records:
            self.commit()
        else:
            self._next_shard(abandon=True)

    def failed(self, what: str, error: OSError) -> RunError:
        """Counts a record that could not be written, and says so."""
        # The tensor that did not fit is taken back already; what came before it is whole, so it is committed now, while
        # the space that the tensor had taken is free again.
        trouble = self._note(1, Note("store.unwritten", what=what, error=error))
        if self._open.records:
            with suppress(RunError):
                self.commit()
        else:
            self._next_shard(abandon=True)
        return trouble

    def _append(self, record: Record, data: memoryview) -> Record:
        for _ in range(2):
            shard = self._open
            name, form = f"{record.step}/{record.site}", (record.kept_dtype, record.kept_shape, len(data))
            keys = shard.append([name], [TensorFileWriter.form(*form)], [len(data)], lambda _: [data])
            if keys:
                return replace(record, file=shard.tensors.name, key=keys[0])
            self.make_room()
        raise AssertionError("a fresh shard has room for any tensor")

    def _stem(self) -> str:
        return f"{self.rank}-{self.session}-{self._number:06d}"

    def _new_shard(self) -> OpenShard:
        return OpenShard(self.path, self._stem(), header_bytes=self._header_bytes, durable=self._durable)

    def _next_shard(self, abandon: bool = False) -> None:
        if abandon:
            self._open.abandon()
        self._number += 1
        self._open = self._new_shard()

    def _note(self, lost: int, what: str) -> RunError:
        self.lost += lost
        text = Note("store.lost", path=self.path, what=what, lost=lost)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)
        return RunError(text)
