"""Where a watch writes: one run for each training. A run that is there is gone on with only if this is its training."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from layertap.errors import LayertapError, RunError, RunExists
from layertap.messages import tr
from layertap.store.folder_lock import FolderLock
from layertap.store.recorded import recorded_steps
from layertap.store.runfile import read_run_file, run_file, run_files

_written: set[tuple[Path, int]] = set()
"""Folder and rank of the runs that this process has written."""


class RunFolder:
    """The folder of a training: claimed before it starts, settled when its optimizer shows whether it goes on."""

    def __init__(self, path: Path, rank: int, world: int, model: nn.Module, exists: str) -> None:
        self.model = type(model).__name__
        self._signature = signature(model)
        self._rank, self._world, self._exists = rank, world, exists
        self._folder_lock = self._locked(path)
        if exists == "error" and self._occupied(self.folder):
            self.release()
            raise RunExists(tr("watch.has_run", path=path))

    @property
    def folder(self) -> Path:
        return self._folder_lock.folder

    @property
    def why_elsewhere(self) -> str:
        """Why the folder is not the one that was asked for."""
        return tr("watch.in_use") if self.folder == self._first else tr("watch.other_training")

    @property
    def maybe_resumed(self) -> bool:
        """Whether there is a run that this training may turn out to go on with."""
        return self._exists in ("resume", "append") and any(self._steps(found)[1] is not None for found in self._runs())

    def settle(self, done: int | None, *, trained: bool) -> str:
        """Chooses the folder; returns what to do with a run in it.

        `trained`: the optimizer brought state along, or someone said so; `done`: the steps that it has made, if it
        counts them.
        """
        exists = self._exists
        if exists == "append" or not self._occupied(self.folder):
            exists = "append"
        elif exists == "replace":  # but never what this process has recorded itself
            self._move(next(found for found in self._siblings() if (found.absolute(), self._rank) not in _written))
        elif exists == "resume" and trained and (found := self._goes_on(done)) is not None:
            self._move(found)
            exists = "append"
        else:
            self._move(next(folder for folder in self._siblings() if not self._occupied(folder)))
            exists = "append"
        _written.add((self.folder.absolute(), self._rank))
        return exists

    def release(self) -> None:
        self._folder_lock.release()

    def last_step(self) -> int | None:
        """The last step that this rank has recorded in the folder already."""
        return self._steps(self.folder)[1]

    def _goes_on(self, done: int | None) -> Path | None:
        """The newest run of this training, as far as is known."""
        found = [folder for folder in self._runs() if self._is_same(folder, done)]
        return max(found, key=self._started) if found else None

    def _is_same(self, folder: Path, done: int | None) -> bool:
        meta = self._session(folder).get("meta")
        if not isinstance(meta, dict) or meta.get("parameters") != self._signature or meta.get("world") != self._world:
            return False
        first, last = self._steps(folder)
        if done is None or first is None or last is None:
            return True
        if (folder.absolute(), self._rank) in _written:  # nothing has crashed, so nothing is done twice
            return done > last
        return done >= first

    def _occupied(self, folder: Path) -> bool:
        if run_file(folder, self._rank).exists():
            return True
        for path in run_files(folder).values():  # of other ranks: of this launch, or of another
            meta = _read(path).get("meta")
            if not isinstance(meta, dict) or meta.get("world") != self._world:
                return True
        return False

    def _runs(self) -> Iterator[Path]:
        return itertools.takewhile(self._occupied, self._siblings())

    def _siblings(self) -> Iterator[Path]:
        first = self._first
        return (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in itertools.count(1))

    def _session(self, folder: Path) -> dict[str, Any]:
        return _read(run_file(folder, self._rank))

    def _started(self, folder: Path) -> str:
        return str(self._session(folder).get("started"))

    def _steps(self, folder: Path) -> tuple[int | None, int | None]:
        return recorded_steps(folder, self._rank)

    def _move(self, folder: Path) -> None:
        if folder != self.folder:
            claim, self._folder_lock = self._folder_lock, FolderLock(folder, self._rank, self._beside)
            claim.release()

    def _locked(self, path: Path) -> FolderLock:
        claim = FolderLock(path, self._rank, self._beside)
        self._first = claim.folder
        return claim

    def _beside(self, folder: Path, ours: bool) -> Iterator[Path]:
        name = f"{folder.name}-{self.model}" if ours else f"{folder.name}-pid{os.getpid()}"
        return (folder.with_name(name if number == 1 else f"{name}-{number}") for number in itertools.count(1))


def signature(model: nn.Module) -> str:
    """Distinguishes models by the names, shapes and dtypes of their parameters."""
    lines = [f"{name} {list(p.shape)} {p.dtype}" for name, p in model.named_parameters()]
    return hashlib.sha256("\n".join([type(model).__name__, *lines]).encode()).hexdigest()[:16]


def check_writable(path: Path) -> None:
    """Raises RunError where no run can be written, before anything is started."""
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise RunError(tr("watch.not_writable", path=path, strerror=error.strerror or error)) from error
    finally:
        if made and path.is_dir():
            path.rmdir()


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_run_file(path)
    except (LayertapError, RunError):
        return {}
