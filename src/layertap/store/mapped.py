"""Bytes of a file through a map, for one pass over them, by mapped.c: a file that is cut meanwhile is an error.

Without the guard the first byte behind the new end would end the process (SIGBUS). Where no compiler was at hand when
the package was built, nothing is mapped, and such a pass holds a copy of each tensor in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from layertap.store.dtype import Bytes

LIBRARY = Path(__file__).with_name("_mapped.dylib" if sys.platform == "darwin" else "_mapped.so")
_LOCK = threading.RLock()
_guarded: dict[int, int] = {}
"""Where each array that was handed out begins → the number of its range."""


def available() -> bool:
    """Whether the compiled library is there."""
    return _library() is not None


def map_bytes(fd: int, begin: int, end: int) -> Bytes | None:
    """The bytes of an open file; writing to them never reaches the disk. None where nothing can be mapped."""
    library = _library()
    if library is None:
        return None
    page = begin - begin % mmap.ALLOCATIONGRANULARITY
    pages = _MappedPages(fd, end - page, access=mmap.ACCESS_COPY, offset=page)
    whole = np.frombuffer(pages, np.uint8)
    raw: Bytes = whole[begin - page :]
    with _LOCK:
        number = library.layertap_guard(whole.ctypes.data, len(whole))
        if number < 0:
            return None  # so many are mapped already
        pages.guarded = raw.ctypes.data
        _guarded[pages.guarded] = number
    return raw


def release(raw: Bytes, begin: int, end: int) -> None:
    """Takes the pages of a map that lie wholly between two of its bytes out of this process's memory.

    They stay in the file, and are read from there again when they are asked for. What is no map is left alone.
    """
    pages, base = _pages_of(raw)
    if pages is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    size = mmap.PAGESIZE
    first, last = -(-(base + begin) // size) * size, (base + end) // size * size
    if base + end == len(pages):
        last = base + end  # the last page holds nothing else
    if last > first:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def _pages_of(raw: Bytes) -> tuple[mmap.mmap | None, int]:
    """The map that bytes lie in, and where they begin in it."""
    owner: Any = raw
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    held = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    if not isinstance(held, mmap.mmap):
        return None, 0
    return held, raw.ctypes.data - owner.ctypes.data


def was_cut(raw: Bytes) -> bool:
    """Whether the file behind these bytes was cut since they were mapped; then some of them are zeros."""
    library = _library()
    with _LOCK:
        number = _guarded.get(raw.ctypes.data) if library is not None and len(raw) else None
        return library is not None and number is not None and library.layertap_cut(number) != 0


class _MappedPages(mmap.mmap):
    """A map whose guard ends before its pages go: the system may give their place to anybody."""

    guarded = 0

    def __del__(self) -> None:
        if self.guarded:
            with _LOCK:
                _library().layertap_release(_guarded.pop(self.guarded))


def _new_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # another thread may have held it


@lru_cache(maxsize=1)
def _library() -> Any:
    if not LIBRARY.exists():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.layertap_guard.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    library.layertap_guard.restype = ctypes.c_int
    library.layertap_cut.argtypes = (ctypes.c_int,)
    library.layertap_cut.restype = ctypes.c_int
    library.layertap_release.argtypes = (ctypes.c_int,)
    library.layertap_release.restype = None
    return library
