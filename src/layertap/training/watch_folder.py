"""Whose folder a run is: one process of a rank at a time, and what was recorded there before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from layertap.errors import LayertapError
from layertap.store import Run

_claimed: dict[Path, int] = {}
"""Folders of this process. A POSIX lock does not hold against its own process, and a forked worker does not inherit it:
what is needed, since workers may outlive a killed training for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A folder that this process alone writes to, for its rank."""

    path: Path
    note: str = ""
    """Why it is not the folder that was asked for."""
    last_step: int | None = None
    """The last step that is recorded there already."""


def claim(path: Path, rank: int, model: str) -> Claim:
    """Takes a folder for this process; where it is taken, one beside it."""
    asked, note = path, ""
    if _key(path, rank) in _claimed:
        path = path.with_name(f"{path.name}-{model}")
        number = 1
        while _key(path, rank) in _claimed:
            number += 1
            path = path.with_name(f"{asked.name}-{model}-{number}")
        note = f"{asked} is another watch of this process; this one writes to {path}"
    elif not _lock(path, rank):
        path = path.with_name(f"{path.name}-pid{os.getpid()}")
        note = f"another process is writing to {asked}; this one writes to {path}"
        _lock(path, rank)
    _claimed.setdefault(_key(path, rank), -1)
    return Claim(path=path, note=note, last_step=_last_step(path))


def release(path: Path, rank: int) -> None:
    """Gives a folder back."""
    fd = _claimed.pop(_key(path, rank), -1)
    if fd >= 0:
        os.close(fd)


def _lock(path: Path, rank: int) -> bool:
    """Whether the folder could be locked, or knows no locks."""
    try:
        import fcntl

        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / f".watch-{rank}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (ImportError, OSError):
        return True  # no such system, or a folder that cannot be written: the writer will say so
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return False
    except OSError:
        os.close(fd)  # a file system without locks
        return True
    _claimed[_key(path, rank)] = fd
    return True


def _key(path: Path, rank: int) -> Path:
    return Path(os.path.abspath(path)) / str(rank)


def _last_step(path: Path) -> int | None:
    try:
        steps = Run(path).index.steps()
    except LayertapError:
        return None
    return int(steps[-1]) if len(steps) else None
