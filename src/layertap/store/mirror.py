"""A run in object storage, as far as it has been read: a temporary folder that looks like the run's own.

Parquet files are copied when the run is opened, each once in the life of the process, since a name is never written
twice. Of a tensor file only the header is copied, when the first of its tensors is asked for; a tensor is one range.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from layertap.errors import CorruptRun
from layertap.messages import tr
from layertap.store.dtype import Bytes
from layertap.store.runfile import rank_of
from layertap.store.shards import is_shard
from layertap.store.storage import Storage

IN_MEMORY = 256 << 20
_AT_ONCE = 8
_FIRST = 64 << 10
"""Bytes of a tensor file that are read at first: most headers are in there whole."""


class Mirror:
    """What has been read of one URL."""

    def __init__(self, url: str) -> None:
        self.storage = Storage(url)
        self.folder = Path(tempfile.mkdtemp(prefix="layertap-read-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        for name in ("records", "tensors"):
            (self.folder / name).mkdir()
        self._tensors: Mapping[str, int] = {}

    @property
    def url(self) -> str:
        return self.storage.url

    def refresh(self) -> None:
        """Copies what has come since: run.json anew, Parquet files that are not here yet."""
        # The tensor files last: a shard's are put before its records, so none that is needed is missing.
        files = {name: size for name, size in self.storage.sizes().items() if rank_of(name) is not None}
        shards = {name: size for name, size in self.storage.sizes("records").items() if is_shard(name)}
        self._tensors = self.storage.sizes("tensors")
        for name in {path.name for path in self.folder.glob("run*.json")} - files.keys():
            (self.folder / name).unlink()
        for name in {path.name for path in (self.folder / "records").iterdir()} - shards.keys():
            (self.folder / "records" / name).unlink()
        wanted = [*files, *(f"records/{name}" for name, size in shards.items() if not self._has(name, size))]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: self.storage.get(name, self.folder / name), wanted))

    def tensor_file(self, name: str) -> Path | None:
        """A file with the header of a tensor file and as long as it, and nothing else; None where there is none."""
        size = self._tensors.get(name)
        if size is None:
            return None
        path = self.folder / "tensors" / name
        if not path.exists():
            head = bytes(self.storage.read(f"tensors/{name}", 0, min(size, _FIRST)))
            length = 8 + int.from_bytes(head[:8], "little")
            if len(head) < length <= size:
                head += bytes(self.storage.read(f"tensors/{name}", len(head), length))
            with path.open("wb") as file:
                file.write(head[: min(length, len(head))])
                file.truncate(size)
        return path

    def is_empty(self, name: str) -> bool | None:
        """Whether a tensor file has no bytes; None where there is no such file."""
        size = self._tensors.get(name)
        return None if size is None else size == 0

    def read(self, name: str, begin: int, end: int) -> Bytes:
        """The bytes of a tensor; of a large one in a map of a temporary file, which may be larger than memory."""
        if end - begin > IN_MEMORY:
            raw = self._paged(f"tensors/{name}", begin, end)
        else:
            raw = self.storage.read(f"tensors/{name}", begin, end)
        if len(raw) != end - begin:
            raise CorruptRun(
                tr("store.short_read", file=f"{self.url}/tensors/{name}", count=len(raw), size=end - begin, begin=begin)
            )
        return raw

    def _paged(self, name: str, begin: int, end: int) -> Bytes:
        with tempfile.TemporaryFile() as file:
            self.storage.read_into(name, begin, end, file)
            file.flush()
            size = os.fstat(file.fileno()).st_size
            if not size:
                return np.empty(0, np.uint8)
            # Copied on writing, so that what is handed out can be changed, as other tensors can.
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), np.uint8)

    def _has(self, name: str, size: int) -> bool:
        path = self.folder / "records" / name
        return path.exists() and path.stat().st_size == size


_MIRRORS: dict[str, Mirror] = {}


def mirror_of(url: str) -> Mirror:
    """The mirror of a URL, as it is now."""
    url = url.rstrip("/")
    found = _MIRRORS.get(url)
    if found is None:
        found = _MIRRORS[url] = Mirror(url)
    found.refresh()
    return found
