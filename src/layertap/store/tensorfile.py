"""safetensors files: written as a stream into reserved header room, read with suspicion. No pickle anywhere.

The safetensors library wants all tensors of a file in memory before it writes; a run is larger than memory. So the room
for the header is reserved at the start (the format allows a header to be padded with spaces), tensors are appended as
they come, and the header is filled in at the end.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from layertap.durable import sync, sync_folder
from layertap.errors import CorruptRun
from layertap.files import open_regular, parse_json, reason
from layertap.messages import tr
from layertap.store.dtype import SAFETENSORS, SIZES, Bytes, stored_as
from layertap.store.locked_file import LockedFile
from layertap.store.mapped import map_bytes

MAX_HEADER = 100_000_000
"""The longest header that safetensors allows."""
AT_ONCE = 1024
"""Pieces that the system takes in one call."""

_ITEM_SIZES = {name: SIZES[dtype] for dtype, name in SAFETENSORS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a file."""

    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]
    begin: int
    end: int
    """Where its bytes lie, from the start of the file."""


class TensorFileWriter(LockedFile):
    """Appends tensors to a file that becomes valid safetensors with `finish()`.

    Writes go to the file at once and unbuffered: nothing piles up in memory, and a write that failed (disk full) can be
    taken back by truncating, because no buffer still holds a part of it.
    """

    def __init__(self, path: Path, *, header_bytes: int, metadata: dict[str, str], durable: bool = True) -> None:
        self._durable = durable
        self.nbytes = 0
        self._broken = False
        self._header = json.dumps({"__metadata__": metadata}, separators=(",", ":"))[:-1].encode()
        self._entries: list[bytes] = []
        self._used = len(self._header) + 1
        self._start = _aligned(8 + max(header_bytes, self._used))
        super().__init__(path)
        try:
            _write_all(self._fd, memoryview(bytes(self._start)))  # so that the header finds room on a disk that is full
        except OSError:
            self.abandon()
            raise

    @staticmethod
    def entry(key: str, dtype: str, shape: tuple[int, ...], begin: int, nbytes: int) -> bytes:
        """The tensor's part of the header, with the comma before it."""
        value = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]}
        return f",{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}".encode()

    @staticmethod
    @lru_cache(maxsize=4096)
    def form(dtype: str, shape: tuple[int, ...], nbytes: int) -> str:
        """What the entries of tensors of this type and shape have between their key and where their bytes lie."""
        name, stored = stored_as(dtype, shape, nbytes)
        return TensorFileWriter.entry("", name, stored, 0, 0).decode()[len(',"":') : -len("0,0]}")]

    def fitting(self, entries: Sequence[str] | Sequence[bytes]) -> int:
        """For how many of these entries, from the first, the header has room. They are ASCII."""
        used = 8 + self._used
        if used + sum(map(len, entries)) <= self._start:
            return len(entries)
        for count, entry in enumerate(entries):
            used += len(entry)
            if used > self._start:
                return count
        return len(entries)

    def append(self, entry: bytes, *data: memoryview) -> bool:
        """Writes one tensor, or several with all their entries; False, and nothing written, if the header is full.

        Tensors that do not lie behind each other are given one by one: they are written together all the same.
        """
        if not self.fitting([entry]):
            return False
        try:
            _write_all(self._fd, *data)
        except OSError:
            self._broken = True  # until the part of the tensor that did get written is taken back
            os.ftruncate(self._fd, self._start + self.nbytes)
            os.lseek(self._fd, self._start + self.nbytes, os.SEEK_SET)
            self._broken = False
            raise
        self._entries.append(entry)
        self._used += len(entry)
        self.nbytes += sum(map(len, data))
        return True

    def finish(self, path: Path) -> None:
        """Fills the header in and gives the file its name. May be called again after an interrupt (Ctrl-C)."""
        if self._broken:
            raise OSError(tr("store.part_left", name=self.path.name))
        if self._fd >= 0:
            header = self._header + b"".join(self._entries) + b"}"
            length = self._start - 8
            os.lseek(self._fd, 0, os.SEEK_SET)
            _write_all(self._fd, memoryview(length.to_bytes(8, "little") + header.ljust(length)))
            if self._durable:
                sync(self._fd)
            self._close()
        if self.path != path:
            os.replace(self.path, path)
            self.path = path
        if self._durable:
            sync_folder(path.parent)


def read_header(path: Path, name: str) -> dict[str, TensorEntry]:
    """All tensors of a file by key. Anything that safetensors forbids is a CorruptRun that calls the file `name`."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise _damaged(name, tr("store.header_size", length=length, size=size))
            if length > MAX_HEADER:
                raise _damaged(name, tr("store.header_max", length=length, max_header=MAX_HEADER))
            text = file.read(length)
    except OSError as error:
        raise _damaged(name, tr("store.cannot_read", strerror=error.strerror or error)) from None
    if not text.startswith(b"{"):
        raise _damaged(name, tr("store.header_json"))
    try:
        header = parse_json(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise _damaged(name, tr("store.header_json_why", error=reason(error))) from None
    header.pop("__metadata__", None)
    start, end = 8 + length, 0
    entries = {key: _entry(name, key, value, start) for key, value in header.items()}
    # One tensor after another, without gaps: this rules out overlaps, and bytes that belong to no tensor.
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin - start != end:
            raise _damaged(name, tr("store.tensor_begins", key=key, value=entry.begin - start, end=end))
        end = entry.end - start
    if start + end != size:
        raise _damaged(name, tr("store.tensors_end", value=start + end, size=size))
    return entries


def is_empty(path: Path) -> bool:
    """Whether not even a header is there: nothing but zeros, or nothing at all, is what a power cut may leave."""
    try:
        with open_regular(path, buffering=0) as file:
            return not any(file.read(8))
    except OSError as error:
        raise _damaged(str(path), tr("store.cannot_read_why", error=error)) from None


def read_bytes(path: Path, name: str, begin: int, end: int, *, mapped: bool = False) -> Bytes:
    """The bytes from `begin` to `end`, in memory of their own: what was checked stays, whatever becomes of the file.

    A map would be read from the disk later, and who holds it would find zeros if another program had cut the file by
    then. Only what one pass reads is `mapped`, since that is half the work and two tensors may not fit into memory;
    whoever makes the pass asks `was_cut` at its end.
    """
    size = end - begin
    try:
        with open_regular(path, buffering=0) as file:
            there = os.fstat(file.fileno()).st_size
            if there < end:
                raise _damaged(name, tr("store.cut", there=there, end=end))
            if size and mapped and (pages := map_bytes(file.fileno(), begin, end)) is not None:
                return pages
            raw = np.empty(size, np.uint8)
            unread = memoryview(raw.data)
            file.seek(begin)
            while unread:
                count = file.readinto(unread)
                if not count:
                    raise _damaged(name, tr("store.cut_reading", count=len(unread), end=end))
                unread = unread[count:]
    except (OSError, ValueError) as error:
        raise _damaged(name, tr("store.cannot_read_why", error=error)) from None
    return raw


def _write_all(fd: int, *data: memoryview) -> None:
    # One write may take less than it is given (Linux stops at 2 GiB).
    for start in range(0, len(data), AT_ONCE):
        pieces = list(data[start : start + AT_ONCE])
        while pieces:
            written = os.writev(fd, pieces) if len(pieces) > 1 else os.write(fd, pieces[0])
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if written:
                pieces[0] = pieces[0][written:]


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _damaged(name: str, what: str) -> CorruptRun:
    return CorruptRun(f"{name}: {what}")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(tr("store.duplicate_key"))
    return found


def _entry(name: str, key: str, value: Any, start: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        item_size = _ITEM_SIZES[dtype]
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise _damaged(name, tr("store.header_entry", key=key))
    if len(shape) > 64 or item_size * math.prod(shape) != end - begin:
        raise _damaged(name, tr("store.data_offsets", key=key, dtype=dtype, shape=shape, begin=begin, end=end))
    return TensorEntry(dtype=dtype, shape=tuple(shape), begin=start + begin, end=start + end)
