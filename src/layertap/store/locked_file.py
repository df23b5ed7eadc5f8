"""Temporary files under a lock that dies with the process, so that leftovers can be distinguished from files in use."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal


class LockedFile:
    """A file that gets its proper name when it is whole; `abandon` removes it if it never is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = create_locked(path)

    def abandon(self) -> None:
        """Removes the file; what cannot be removed is left, since nothing refers to it."""
        with suppress(OSError):
            self._close()
            self.path.unlink()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def create_locked(path: Path) -> int:
    """Opens a temporary file under a lock that dies with the process, so that leftovers differ from live files."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
        for _ in range(100):
            if _lock(fd) != "held":
                break
            time.sleep(0.001)  # a session that cleans up is looking at it
        # Who cleaned up may have taken it for a leftover in the moment between its creation and its lock.
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def remove_abandoned(path: Path) -> bool:
    """Removes a temporary file whose writer is gone; False if the writer lives, or the file system has no locks."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        if _lock(fd) == "ours":
            path.unlink()
            return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _lock(fd: int) -> Literal["ours", "held", "none"]:
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except (ImportError, OSError):  # a file system without locks: leftovers stay, which costs space and nothing else
        return "none"
    return "ours"
