"""What one pytest session has written: read by the plugin, which reports it, and by `assert_matches`, which does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class GoldenSession:
    """One run of pytest."""

    update: bool
    """Whether `--layertap-update` was given."""
    written: dict[str, str] = field(default_factory=dict)
    """Path → what became of the golden that was there: `new`, or the verdict on it."""
    unchanged: list[str] = field(default_factory=list)
    """Goldens that would have been written just as they are."""

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
