"""One process at a time in one folder: the second one gets a folder of its own."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("layertap")


class Claim:
    """A folder that is this process's own as long as the claim lasts; by an advisory lock, which dies with it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._fd = -1
        self._name = f".monitor-{rank}.lock"
        own = f"process-{os.getpid()}"
        for self.folder in (folder, *(folder / f"{own}{more}" for more in ("", "-2", "-3", "-4"))):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._lock():
                break
        if self.folder != folder:
            log.warning("layertap: %s is in use by another monitor; this one writes to %s", folder, self.folder)

    def release(self) -> None:
        """Gives the folder up."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self.folder / self._name)
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> bool:
        try:
            import fcntl
        except ImportError:  # not on POSIX: there is no such lock, and one process is the usual case
            return True
        while True:
            path = self.folder / self._name
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            except OSError:  # a file system without locks
                self._fd = fd
                return True
            # The owner before us removes the file when it ends: a lock on a file that is gone holds nobody off.
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    self._fd = fd
                    return True
            os.close(fd)
