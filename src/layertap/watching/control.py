"""A running watch is changed through its folder: whoever can write there needs neither the process nor its machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from layertap.watching.config import file_options

FILES = ("watch.toml", "watch.json")
CHANGEABLE = ("schedule", "phases", "ring", "triggers", "rules", "actions", "after")
COMMANDS = ("dump", "stop")
EVERY = 1.0
"""Seconds between two looks at the folder: one `stat` each."""


class Control:
    """Looks for a file that was written since the training began, or since the last look."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._stamps: dict[str, int] = {}
        self._next = 0.0

    def begin(self, folder: Path) -> None:
        """What is in the folder already was meant for an earlier session."""
        self._folder = folder
        self._stamps = {name: _stamp(folder / name) for name in FILES}

    def look(self) -> dict[str, Any] | None:
        """The options in a file that is new; None without any. BadArgument: it cannot be read."""
        now = time.monotonic()
        if self._folder is None or now < self._next:
            return None
        self._next = now + EVERY
        for name in FILES:
            stamp = _stamp(self._folder / name)
            if stamp and stamp != self._stamps[name]:
                self._stamps[name] = stamp
                return file_options(self._folder / name)
        return None


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
