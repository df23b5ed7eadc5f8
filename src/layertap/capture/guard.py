"""Around layertap's own work in a tap: it is timed, and an error in it does not reach the user's loop."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol


class Guarded(Protocol):
    """Whose work it is."""

    overhead: float

    def stop_on(self, error: Exception, path: str) -> bool:
        """Ends recording after an error of layertap's own; returns whether it is kept from the user's code."""


class Inside:
    """One stay inside a tap. A class, not a generator: it is entered for every call of every module."""

    __slots__ = ("_path", "_recorder", "_start")

    def __init__(self, recorder: Guarded, path: str) -> None:
        self._recorder, self._path = recorder, path

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        suppressed = isinstance(error, Exception) and self._recorder.stop_on(error, self._path)
        self._recorder.overhead += time.perf_counter() - self._start
        return suppressed
