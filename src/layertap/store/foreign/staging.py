"""Files that appear together: all of them are written under temporary names, then all are renamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from layertap.errors import RunError
from layertap.words import printable

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
        lines = [f"wrote {len(self.files)} file(s) in the {self.layout} layout to {self.path}"]
        reasons: dict[str, list[str]] = {}
        for item in self.left_out:
            reasons.setdefault(item.why, []).append(item.site)
        for why, sites in reasons.items():
            shown = ", ".join(sites if len(sites) <= 4 else [*sites[:3], f"... ({len(sites)})"])
            lines.append(f"left out: {shown}: {why}")
        return printable("\n".join([*lines, *(f"note: {note}" for note in self.notes)]))


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

    def __enter__(self) -> Staging:
        with self._trouble(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.files:
            with suppress(OSError):
                self._temporary(name).unlink()

    @contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write; it gets its name when all are committed."""
        self.files.append(name)
        with self._trouble(self.folder / name), open(self._temporary(name), "wb") as file:
            yield file
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
        """Gives all files their names, and removes those that this export replaces and did not write anew."""
        for name in self.files:
            with self._trouble(self.folder / name):
                os.replace(self._temporary(name), self.folder / name)
        for name in set(stale) - set(self.files):
            with self._trouble(self.folder / name):
                (self.folder / name).unlink()

    def done(self, path: Path) -> Exported:
        return Exported(
            path=path,
            layout=self.layout,
            files=tuple(self.files),
            left_out=tuple(self.left_out),
            notes=tuple(self.notes),
        )

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.tmp"

    @contextmanager
    def _trouble(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"{path}: cannot be written ({error.strerror or error}); nothing was exported") from error
