"""Bytes and names that survive a power cut: a file is synced before it gets its name, its folder after.

Until a file is synced the system may keep its contents in memory for half a minute, and it may write the name before
the contents: after a power cut the file is then empty, or full of zeros, under its proper name.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)
"""What file systems without such a thing (some network and FUSE mounts) answer; there is nothing to wait for then."""


def sync(fd: int) -> None:
    """Waits until what was written to an open file is on the disk."""
    if sys.platform == "darwin":  # there, fsync leaves it in the disk's own memory
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:  # a disk that has no such command
            os.fsync(fd)
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno in _UNABLE:
            return
        raise
    try:
        sync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, *, durable: bool) -> None:
    """Makes a folder and those above it; each new name is synced in the folder that holds it."""
    new = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        new.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    if durable:
        for path in reversed(new):
            sync_folder(path.parent)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` in one step at the end; on any error `path` stays as it was."""
    # A name that cannot be foreseen, and never through a link that is already there.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            if durable:
                file.flush()
                sync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)
