"""Files that appear together: all are written into a folder of their own, which then takes the other's place."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from layertap.durable import sync, sync_folder
from layertap.errors import RunError
from layertap.messages import printable, tr
from layertap.result import Note

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something of a run that an export has no place for."""

    site: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote, and what it did not."""

    path: Path
    layout: str
    files: tuple[str, ...]
    """Names, in the order in which they were written."""
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    """Where the layout says something else than the run: a widened dtype, an epoch that was not known."""

    def __str__(self) -> str:
        lines = [tr("formats.wrote", count=len(self.files), layout=self.layout, path=self.path)]
        reasons: dict[str, list[str]] = {}
        for item in self.left_out:
            reasons.setdefault(item.why, []).append(item.site)
        for why, sites in reasons.items():
            shown = ", ".join(sites if len(sites) <= 4 else [*sites[:3], f"... ({len(sites)})"])
            lines.append(Note("formats.left_out", shown=shown, why=why))
        return printable("\n".join([*lines, *(tr("formats.note", note=note) for note in self.notes)]))


@dataclass(slots=True)
class Staging:
    """An export under way; used as a context, it leaves nothing behind when it fails.

    with Staging(folder, "layers") as out:
        with out.file("layer_1_output.pt") as file: ...
        out.commit(stale=["layer_2_output.pt"])
    """

    folder: Path
    layout: str
    progress: Progress | None = None
    total: int = 0
    """How many files there will be."""
    files: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: bool = True
    """Whether the folder is the export's own; otherwise its files come into a folder that holds others'."""
    _scratch: Path = field(init=False)

    def __enter__(self) -> Staging:
        with self._trouble(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # A name that cannot be guessed, and only this user may write in it: an existing link is not followed.
            folder = self.folder.resolve()
            beside = self.whole and os.stat(folder.parent).st_dev == os.stat(folder).st_dev
            beside = beside and os.access(folder.parent, os.W_OK)
            self._scratch = Path(tempfile.mkdtemp(prefix=".layertap-export-", dir=folder.parent if beside else folder))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    @contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write; it gets its name when all are committed."""
        self.files.append(name)
        with self._trouble(self.folder / name), open(self._scratch / name, "xb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        if self.progress is not None:
            self.progress(len(self.files), max(self.total, len(self.files)))

    def leave_out(self, site: object, why: str) -> None:
        item = LeftOut(site=str(site), why=why)
        if item not in self.left_out:
            self.left_out.append(item)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def commit(self, stale: Collection[str] = ()) -> None:
        """Gives all files their names, and removes those that this export replaces and did not write anew.

        If the folder is the export's own, the new one takes its place at once, where the system can do that: a
        process that is killed leaves all of the old export or all of the new. Elsewhere the old files go before the new
        ones come: it leaves a part of one of them, never some of both.
        """
        with self._trouble(self.folder):
            if not (self.whole and self._exchange({*stale, *self.files})):
                for name in sorted({*stale, *self.files}):
                    (self.folder / name).unlink(missing_ok=True)
                for name in self.files:
                    os.replace(self._scratch / name, self.folder / name)
            sync_folder(self.folder)

    def _exchange(self, ours: Collection[str]) -> bool:
        """Puts the new files, and the others that the folder holds, in its place; False if that cannot be done."""
        folder = self.folder.resolve()
        others = [path for path in folder.iterdir() if path.name not in ours]
        if any(path.is_dir() and not path.is_symlink() for path in others):
            return False
        try:
            for path in others:
                os.link(path, self._scratch / path.name, follow_symlinks=False)
            shutil.copystat(folder, self._scratch)
            sync_folder(self._scratch)
            swap(self._scratch, folder)
        except OSError:  # a file system or a system that cannot, or a folder that others may not rename
            for path in others:
                (self._scratch / path.name).unlink(missing_ok=True)
            return False
        # What came into the old folder meanwhile belongs to somebody else.
        for path in self._scratch.iterdir():
            if path.name not in ours and not (folder / path.name).exists():
                os.rename(path, folder / path.name)
        return True

    def done(self, path: Path) -> Exported:
        return Exported(
            path=path,
            layout=self.layout,
            files=tuple(self.files),
            left_out=tuple(self.left_out),
            notes=tuple(self.notes),
        )

    @contextmanager
    def _trouble(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(tr("formats.unwritable", path=path, strerror=error.strerror or error)) from error


def swap(one: Path, other: Path) -> None:
    """Exchanges two folders in one step (Linux); an OSError where that is not to be had."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        raise OSError(errno.ENOSYS, "no renameat2 here") from None
    here = -100  # AT_FDCWD
    exchange = 2  # RENAME_EXCHANGE
    if rename(here, os.fsencode(one), here, os.fsencode(other), exchange):
        raise OSError(ctypes.get_errno(), "the folders cannot be exchanged", str(one))
