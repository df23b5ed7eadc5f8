"""How much memory there is, and how much a process has taken at most; for the question how many may run at once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LEFT_ALONE = 1 << 29
"""Bytes that are left to the machine."""
FIRST_GUESS = 1 << 30
"""What a mode is taken to need before one has been seen."""


def available() -> int:
    """Bytes that can be had without swapping; without /proc half of what the machine has."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _group_limit())
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 4 << 30


def _group_limit() -> int:
    """What is left of a container's limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return 1 << 62
        return max(0, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 1 << 62


def peak_of(pid: int) -> int:
    """The most memory that a running process has held; 0 where that cannot be known."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return 0
