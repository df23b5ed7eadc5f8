"""The footer of a Parquet file, as far as a reader must know it before it trusts the file.

Read here and not by pyarrow: its metadata of a column chunk lets a C++ exception escape on some damaged footers, which
ends the process. The footer is a struct in Thrift's compact protocol; fields are known by their numbers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertap.files import open_regular
from layertap.messages import tr

_MAGIC = b"PAR1"
_DEPTH = 16
_BYTE_ARRAY = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One column of one row group."""

    path: str
    """The column's path in the schema: `shape.list.element`."""
    text: bool
    """Whether its values are strings of bytes."""
    dictionary: bool
    """Whether values that repeat stand in it once."""
    values: int
    unpacked: int
    """Bytes, without compression."""
    largest: int | None
    """Of an int64 column, by the footer's statistics."""


def read_chunks(path: Path) -> list[list[Chunk]]:
    """The columns of every row group; a ValueError where the footer is damaged."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - 8, 0))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or not 0 < length <= size - 12:
            raise ValueError(tr("store.no_footer"))
        file.seek(size - 8 - length)
        footer = _FooterReader(file.read(length)).fields(0)
    groups = footer.get(4, [])
    return [[_chunk(column) for column in group.get(1, [])] for group in groups]


def _chunk(column: dict[int, Any]) -> Chunk:
    known = column[3]
    largest = known.get(12, {}).get(5)
    whole = isinstance(largest, bytes) and len(largest) == 8
    return Chunk(
        path=b".".join(known[3]).decode(),
        text=known[1] == _BYTE_ARRAY,
        dictionary=11 in known,
        values=int(known[5]),
        unpacked=int(known[6]),
        largest=int.from_bytes(largest, "little", signed=True) if whole else None,
    )


class _FooterReader:
    """Thrift's compact protocol: structs as {field number: value}."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def fields(self, depth: int) -> dict[int, Any]:
        if depth > _DEPTH:
            raise ValueError(tr("store.nested"))
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        plain: dict[int, Callable[[], Any]] = {
            1: self._byte,
            2: self._byte,
            3: self._byte,
            4: self._signed,
            5: self._signed,
            6: self._signed,
            7: self._double,
            8: self._binary,
        }
        if kind in plain:
            return plain[kind]()
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._data):
                raise ValueError(tr("store.footer_list"))
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.fields(depth + 1)
        raise ValueError(tr("store.footer_type", kind=kind))

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise ValueError(tr("store.footer_end"))
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found
            if shift > 63:
                raise ValueError(tr("store.footer_number"))

    def _signed(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)

    def _binary(self) -> bytes:
        size = self._varint()
        if size > len(self._data) - self._at:
            raise ValueError(tr("store.footer_text"))
        self._at += size
        return self._data[self._at - size : self._at]

    def _double(self) -> float:
        self._at += 8
        return float(struct.unpack("<d", self._data[self._at - 8 : self._at])[0])
