"""A parquet file in the making: its room on the disk is taken while the records come, and filled when they are written.

Without that, a disk that fills up is noticed when a whole shard is to be written, and all of its records are lost. With
it, the record for which there is no room is the first that is lost, and what came before it can still be committed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from layertap.durable import sync
from layertap.site import Record
from layertap.store.locked_file import LockedFile
from layertap.store.schema import REPETITIVE

ROW_GROUP = 2048
"""Rows that a reader must decode to get at one record."""
STEP = 64 << 10
"""Room is taken in steps of so many bytes."""
_FOOTER = 48 << 10
"""What a row group's part of the footer and its dictionaries take at most, besides the values themselves."""
_UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENODEV, errno.EBADF)


class ParquetFile(LockedFile):
    """A temporary file under a lock; `write` gives it its contents and its name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows = 0
        self._needed = 0
        self._room = 0

    def reserve(self, nbytes: int, rows: int = 1) -> None:
        """Takes room for more records; an OSError if the disk has none, and what was taken before is still there."""
        groups = -(-(self._rows + rows) // ROW_GROUP) - -(-self._rows // ROW_GROUP)
        needed = self._needed + nbytes + groups * _FOOTER
        if needed > self._room and hasattr(os, "posix_fallocate"):
            room = -(-needed // STEP) * STEP
            try:
                os.posix_fallocate(self._fd, self._room, room - self._room)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
            self._room = room
        self._needed, self._rows = needed, self._rows + rows

    def write(self, table: Any, path: Path, *, durable: bool) -> None:
        """Writes the records and gives the file its name. May be called again after an interrupt (Ctrl-C)."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with open(self._fd, "wb", closefd=False) as file:
            pq.write_table(
                table,
                file,
                row_group_size=ROW_GROUP,
                compression="zstd",
                use_dictionary=REPETITIVE,
                write_page_checksum=True,
            )
            file.flush()
            file.truncate()
        if durable:
            sync(self._fd)
        os.replace(self.path, path)
        self._close()


def room_of(record: Record) -> int:
    """What a row takes if nothing of it can be compressed."""
    texts = 3 * len(record.site.path) + 3 * len(record.site.leaf) + len(record.kind) + len(record.key)
    sketches = len(record.sketch) + len(record.sketch_in_whole or b"")
    return 640 + 4 * texts + sketches + 8 * (len(record.shape) + len(record.kept_shape))
