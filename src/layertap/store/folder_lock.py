"""One process at a time in one folder: the second one gets a folder of its own."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from layertap.errors import RunError
from layertap.messages import tr

log = logging.getLogger("layertap")

Beside = Callable[[Path, bool], Iterator[Path]]
"""The folders to try instead of one that is taken, by another process or (True) by this one."""

_held: set[Path] = set()
"""The locks of this process: against itself a POSIX lock does not hold."""


def _below(folder: Path, ours: bool) -> Iterator[Path]:
    own = f"process-{os.getpid()}"
    return (folder / (own if number == 1 else f"{own}-{number}") for number in itertools.count(1))


class FolderLock:
    """A folder that is this process's own as long as the claim lasts; by an advisory lock, which dies with it.

    By `lockf`: a lock by `flock` is inherited, so forked DataLoader workers, which outlive a killed training for some
    seconds, would keep the training that is started again out of its folder.
    """

    def __init__(self, folder: Path, rank: int, beside: Beside = _below) -> None:
        self._fd = -1
        self._name = f".layertap-{rank}.lock"
        taken = Path(os.path.abspath(folder)) / self._name in _held
        for self.folder in itertools.chain([folder], beside(folder, taken)):
            if self._lock():
                break
        if self.folder != folder:
            message = tr("store.in_use", folder=folder, own=self.folder)
            log.warning("layertap: %s", message)

    def release(self) -> None:
        """Gives the folder up."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self.folder / self._name)
            os.close(self._fd)
            self._fd = -1
        _held.discard(self._path)

    @property
    def _path(self) -> Path:
        return Path(os.path.abspath(self.folder)) / self._name

    def _lock(self) -> bool:
        path = self._path
        if path in _held:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = _locked(path)
        except OSError as error:
            raise RunError(tr("store.unwritable", folder=self.folder, strerror=error.strerror or error)) from error
        if fd is None:
            return False
        _held.add(path)
        self._fd = fd
        return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)  # the locks stay the parent's


def _locked(path: Path) -> int | None:
    """The open lock file; -1 where there are no locks; None when another process has it."""
    try:
        import fcntl
    except ImportError:  # not on POSIX: there is no such lock, and one process is the usual case
        return -1
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return None
        except OSError:  # a file system without locks
            return fd
        # The owner before us removes the file when it ends: a lock on a file that is gone excludes no other process.
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                return fd
        os.close(fd)
