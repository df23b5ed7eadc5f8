"""What one pytest session has written: read by the plugin, which reports it, and by `assert_matches`, which does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class GoldenSession:
    """One run of pytest."""

    update: bool
    """Whether `--layertap-update` was given."""
    written: dict[str, str] = field(default_factory=dict)
    """Path → what became of the golden that was there: `new`, or the verdict on it."""
    unchanged: list[str] = field(default_factory=list)
    """Goldens that would have been written just as they are."""
    engine: str | None = None
    """What `--layertap-engine` says."""
    address: str | None = None
    _opened: list[Any] = field(default_factory=list)

    def workers(self) -> Any:
        """The engine that the session's comparisons share: Ray is started once, when the first of them asks."""
        if not self._opened:
            from layertap.engine import open_engine

            manager = open_engine(self.engine, self.address)
            self._opened += [manager.__enter__(), manager]
        return self._opened[0]

    def close(self) -> None:
        """Ends what was started for the session."""
        if self._opened:
            self._opened.pop().__exit__(None, None, None)
            self._opened.clear()

    def due(self, path: Path) -> bool:
        """Whether a golden is to be written. Once: tests that share one are compared with what the first wrote."""
        name = str(path.resolve())
        return self.update and name not in self.written and name not in self.unchanged


_sessions: list[GoldenSession] = []


def begin(session: GoldenSession) -> None:
    _sessions.append(session)


def end(session: GoldenSession) -> None:
    _sessions.remove(session)


def current() -> GoldenSession | None:
    """The innermost session; pytest may run inside pytest, where a plugin is tested."""
    return _sessions[-1] if _sessions else None
