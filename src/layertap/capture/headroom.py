"""How much memory the process may still take, so that the recorder gives way before the model has to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARE_OF_LIMIT = 4
"""Under a limit that ends the process (RLIMIT_AS, a container's) the recorder holds a quarter of what is free."""
SHARE_OF_MACHINE = 2
"""Of the machine's free memory, which the system can still make more of, at most half."""

_UNLIMITED = 1 << 60


def allowance(held: int) -> int:
    """How many bytes a recorder that holds `held` bytes now may hold in all.

    What is free is taken as it would be without the recorder, so the allowance does not shrink by being used.
    """
    hard = min(_hard_limits(), default=_UNLIMITED)
    return min((hard + held) // SHARE_OF_LIMIT, (_of_machine() + held) // SHARE_OF_MACHINE)


def _hard_limits() -> Iterator[int]:
    """What each limit on the process leaves free."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = [int(field) for field in Path("/proc/self/statm").read_text().split()]
        page = os.sysconf("SC_PAGE_SIZE")
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                yield max(0, most - used * page)
    yield from _of_containers()


def _of_containers() -> Iterator[int]:
    """Of the process's control group and those above it, in both versions of the interface."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, most, used = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, most, used = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # no such file at the root; "max" where there is no limit
                free = int((group / most).read_text()) - int((group / used).read_text()) + _given_back(group)
                if free < _UNLIMITED:
                    yield max(0, free)
            if group == root:
                break


def _given_back(group: Path) -> int:
    """What the group's memory holds of files that can be read again: the system drops it when it is needed."""
    with suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0


def _of_machine() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return _UNLIMITED
