"""The runs that are looked at, read again when they grow, and their comparisons, made beside the pages."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layertap.errors import LayertapError
from layertap.formats import open_run
from layertap.messages import printable, tr
from layertap.store import Run
from layertap.view.results import ResultFile, is_result
from layertap.view.vocabulary import Vocabulary

if TYPE_CHECKING:
    from layertap.compare import Report

LARGE = 3_000
"""With more records than this the first page does not wait for the comparison: it shows how far it is, and follows."""
PATIENCE = 15.0
"""Seconds that a page waits for a smaller one."""


class Side:
    """One run, from its folder. `run` is a snapshot; `refresh` takes another where something was written since."""

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        self.number = number
        self.lock = threading.RLock()
        """Held while the run is read: its caches are not made for several threads."""
        self._signature = _signature(source)
        self.run: Run = open_run(source)
        self.version = 1
        """Counts snapshots."""
        self.gone = ""
        """Why the folder cannot be read any more; what is shown was read before."""

    @property
    def name(self) -> str:
        return printable(os.path.basename(os.path.normpath(self.source)) or self.source)

    @property
    def live(self) -> bool:
        """Whether a process is, or was when it died, writing to it."""
        return any(session.get("status") != "complete" for session in self.run.sessions)

    def refresh(self) -> bool:
        """Whether there is a new snapshot."""
        found = _signature(self.source)
        if found == self._signature:
            return False
        with self.lock:
            try:
                run = open_run(self.source)
            except (LayertapError, OSError) as error:
                # Gone, or caught in the middle of being replaced: the next look sees more.
                gone = tr("view.gone", path=self.source, error=printable(str(error)))
                if gone == self.gone:
                    return False
                self.gone = gone
            else:
                self._signature, self.run, self.gone = found, run, ""
            self.version += 1
        return True


class Comparison:
    """One comparison, in a thread of its own, on snapshots of its own."""

    def __init__(self, sides: tuple[Side, Side], floors: Sequence[str], mapping: str | None) -> None:
        self.key = tuple(side.version for side in sides)
        self.done, self.total = 0, 0
        self.report: Report | None = None
        self.error = ""
        self._sides, self._floors, self._mapping = sides, list(floors), mapping
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="layertap-compare", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> bool:
        self.start()
        return self._ended.wait(seconds)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def _work(self) -> None:
        from layertap.compare import diff

        try:
            runs = [open_run(side.source) for side in self._sides]
            self.report = diff(*runs, floor=self._floors or None, mapping=self._mapping, progress=self._tell)
        except (LayertapError, OSError) as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001  the page shows it; a thread would only print it
            self.error = printable(f"{type(error).__name__}: {error}")
        finally:
            self._ended.set()

    def _tell(self, done: int, total: int) -> None:
        self.done, self.total = done, total


class Session:
    """All that one viewer shows."""

    def __init__(
        self,
        runs: Sequence[str],
        *,
        floors: Sequence[str] = (),
        mapping: str | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self._vocabulary = None if tokenizer is None else Vocabulary.read(tokenizer)
        self.results: list[ResultFile] = []
        sources: list[str] = []
        for source in runs:
            if is_result(source):
                self.results.append(ResultFile(source, len(self.results)))
                sources += self.results[-1].runs()
            else:
                sources.append(source)
        self.sides = [Side(source, number) for number, source in enumerate(sources)]
        self.scanner: Any = None
        """What runs a model, where one was given."""
        self.floors, self.mapping = tuple(floors), mapping
        self.caches: dict[tuple[Any, ...], Any] = {}
        """What pages have worked out of snapshots, by snapshot."""
        self._comparisons: dict[tuple[int, int], Comparison] = {}
        self._last: dict[tuple[int, int], Report] = {}
        self._lock = threading.Lock()
        self._looked = 0.0

    def refresh(self) -> None:
        """Looks for what was written since; not more often than every half second."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked < 0.5:
                return
            self._looked = now
        changed = [side.refresh() for side in self.sides]
        if any(changed):
            self.caches = {}
        for result in self.results:
            result.refresh()

    def texts_of(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token; nothing where no tokenizer was given."""
        return () if self._vocabulary is None else self._vocabulary.texts(ids)

    @property
    def version(self) -> str:
        """What changes when any run or result does."""
        versions = [*(side.version for side in self.sides), *(result.version for result in self.results)]
        return ".".join(map(str, versions))

    @property
    def live(self) -> bool:
        return any(side.live for side in self.sides)

    def comparison(self, a: int, b: int) -> Comparison:
        """The comparison of two runs as they are now; it is begun, or goes on."""
        sides = self.sides[a], self.sides[b]
        with self._lock:
            found = self._comparisons.get((a, b))
            if found is None or (found.ended and found.key != tuple(side.version for side in sides)):
                if found is not None and found.report is not None:
                    self._last[a, b] = found.report
                found = self._comparisons[a, b] = Comparison(sides, self.floors, self.mapping)
        return found

    def report(self, a: int, b: int, *, patience: float = PATIENCE) -> tuple[Report | None, Comparison]:
        """The newest report there is: of the snapshots of now, or of those before while these are being compared."""
        found = self.comparison(a, b)
        large = sum(self.sides[number].run.count for number in (a, b)) > LARGE
        last = self._last.get((a, b))
        found.wait(0.0 if large or last is not None else patience)
        return (found.report or (None if found.error else last)), found

    def cached(self, key: tuple[Any, ...], make: Any) -> Any:
        """What was made before for this key; all of it is forgotten when a run changes."""
        caches = self.caches
        if key not in caches:
            caches[key] = make()
        return caches[key]


def _signature(source: str) -> tuple[Any, ...]:
    """What changes when something is written."""
    path = Path(source)
    found: list[tuple[str, int, int]] = []
    for folder in (path, path / "records"):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    stat = entry.stat(follow_symlinks=False)
                    if not entry.is_dir(follow_symlinks=False):
                        found.append((entry.name, stat.st_mtime_ns, stat.st_size))
        except NotADirectoryError:
            stat = path.stat()
            found.append((path.name, stat.st_mtime_ns, stat.st_size))
            break
        except OSError:
            continue
    return tuple(sorted(found))
