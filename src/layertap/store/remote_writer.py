"""Writing a run into object storage: shards are made in a folder of this machine and put one by one."""

from __future__ import annotations

import logging
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from layertap.errors import RunError, RunExists
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt
from layertap.store.runfile import rank_of, run_file
from layertap.store.storage import Storage
from layertap.store.writer import RunWriter

log = logging.getLogger("layertap")


class RemoteWriter(RunWriter):
    """A `RunWriter` for a URL. A shard's tensors are put first and its Parquet file last, which is the commit.

    What cannot be put stays in the folder of this machine and is tried again with the next shard and at the end. What
    is left then is counted as lost, and `problems` names the folder, which is kept.
    """

    def __init__(
        self, url: str, *, info: dict[str, Any], rank: int = 0, exists: Literal["error", "append", "replace"] = "error"
    ) -> None:
        self.storage = Storage(url)
        self._waiting: dict[str, int] = {}
        """Shards that are not put yet → their records."""
        self._scratch = Path(tempfile.mkdtemp(prefix="layertap-"))
        folder = self._scratch / "run"
        folder.mkdir()
        try:
            self._prepare(folder, rank, info.get("world_size"), exists)
            # What counts is what has been put: this machine's disk need not keep it over a power cut.
            super().__init__(folder, info=info, rank=rank, exists="append", durability="none")
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def commit(self) -> None:
        shard, number = self._open, self._number
        records = shard.records
        super().commit()
        if self._number > number and records:
            self._waiting[shard.stem] = records
        self._deliver()

    def settle(self) -> None:
        try:
            self.commit()
        except RunError as error:
            log.error("layertap: %s", error)
        self._deliver()
        if self._waiting:
            rows = sum(self._waiting.values())
            self.records -= rows
            self._note(
                rows, Note("storage.left_here", shards=len(self._waiting), url=self.storage.url, folder=self.path)
            )

    def close(self, receipt: Receipt | None = None, **more_info: Any) -> None:
        super().close(receipt, **more_info)
        if not self._waiting:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _compact(self, before: float) -> None:
        """Shards that are put stay as they are: a merged one would be put a second time."""

    def _write_session(self, keep: bool = True) -> None:
        super()._write_session(keep)
        file = run_file(self.path, self.rank)
        self.storage.put(file, file.name)

    def _deliver(self) -> None:
        for stem in list(self._waiting):
            tensors, rows = self.path / "tensors" / f"{stem}.safetensors", self.path / "records" / f"{stem}.parquet"
            try:
                if tensors.exists():
                    self.storage.put_new(tensors, f"tensors/{tensors.name}")
                self.storage.put_new(rows, f"records/{rows.name}")
            except (RunError, OSError) as error:
                log.warning("layertap: %s", tr("storage.put_later", stem=stem, url=self.storage.url, why=error))
                return
            del self._waiting[stem]
            for file in (tensors, rows):
                with suppress(OSError):
                    file.unlink(missing_ok=True)

    def _prepare(self, folder: Path, rank: int, world_size: int | None, exists: str) -> None:
        """What `folder.prepare` does for a folder of this machine."""
        found = {name: self.storage.sizes(name) for name in ("", "records", "tensors")}
        files = [name for name in found[""] if _ours(rank_of(name), rank, world_size)]
        shards = [
            f"{below}/{name}"
            for below in ("records", "tensors")
            for name in found[below]
            if _ours(_rank_of_shard(name), rank, world_size)
        ]
        if exists == "replace":
            for name in (*files, *shards):  # run.json goes first, so that the rest does not pass for a complete run
                self.storage.delete(name)
        elif exists == "append":
            mine = run_file(folder, rank)
            if mine.name in found[""]:
                self.storage.get(mine.name, mine)
        elif files or shards:
            raise RunExists(tr("store.exists", folder=self.storage.url))


def _ours(other: int | None, rank: int, world_size: int | None) -> bool:
    """Whether files of that rank are this writer's to replace: rank 0 also answers for ranks that are no more."""
    if other is None:
        return False
    return other == rank or (rank == 0 and world_size is not None and other >= world_size)


def _rank_of_shard(name: str) -> int | None:
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else None
