"""The footer of a Parquet file, as far as a reader must know it before it trusts the file.

Read here and not by pyarrow: its metadata of a column chunk lets a C++ exception escape on some damaged footers, which
ends the process. The footer is a struct in Thrift's compact protocol; fields are known by their numbers.
"""

from __future__ import annotations

import os
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
        footer = _parsed(file.read(length))
    return [[_chunk(column) for column in group.get(1, [])] for group in footer.get(4, [])]


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


def _parsed(data: bytes) -> dict[int, Any]:
    """The fields that are asked for here, by their numbers; a ValueError where the bytes are no Thrift struct.

    One function, as a run of a million records has a hundred thousand structs: the place is its local variable.
    """
    try:
        return _fields_of(data)
    except IndexError:
        raise ValueError(tr("store.footer_end")) from None


def _fields_of(data: bytes) -> dict[int, Any]:
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        byte = data[at]
        at += 1
        if byte < 128:
            return byte
        found, shift = byte & 127, 7
        while shift <= 63:
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise ValueError(tr("store.footer_number"))

    def fields(wanted: dict[int, Any], depth: int) -> dict[int, Any]:
        nonlocal at
        if depth > _DEPTH:
            raise ValueError(tr("store.nested"))
        found: dict[int, Any] = {}
        number = 0
        while head := data[at]:
            at += 1
            if head >= 16:
                number += head >> 4
            else:
                coded = varint()
                number = (coded >> 1) ^ -(coded & 1)
            kind = head & 15
            if 4 <= kind <= 6:
                coded = data[at]
                if coded < 128:
                    at += 1
                else:
                    coded = varint()
                if number in wanted:
                    found[number] = (coded >> 1) ^ -(coded & 1)
            elif kind == 8:
                size = data[at]
                if size < 128:
                    at += 1
                else:
                    size = varint()
                at += size
                if at > end:
                    raise ValueError(tr("store.footer_text"))
                if number in wanted:
                    found[number] = data[at - size : at]
            elif kind == 1 or kind == 2:
                found[number] = kind == 1
            elif kind == 12:
                known = fields(wanted.get(number, _NOTHING), depth + 1)
                if number in wanted:
                    found[number] = known
            else:
                known = value(kind, wanted.get(number, _NOTHING), depth)
                if number in wanted:
                    found[number] = known
        at += 1
        return found

    def value(kind: int, wanted: dict[int, Any], depth: int) -> Any:
        nonlocal at
        if kind == 12:
            return fields(wanted, depth + 1)
        if 4 <= kind <= 6:
            coded = varint()
            return (coded >> 1) ^ -(coded & 1)
        if kind == 8:
            size = varint()
            at += size
            if at > end:
                raise ValueError(tr("store.footer_text"))
            return data[at - size : at]
        if kind == 9 or kind == 10:
            head = data[at]
            at += 1
            count = varint() if head >> 4 == 15 else head >> 4
            if count > end:
                raise ValueError(tr("store.footer_list"))
            return [value(head & 15, wanted, depth + 1) for _ in range(count)]
        if kind not in _SIZES:
            raise ValueError(tr("store.footer_type", kind=kind))
        at += _SIZES[kind]
        return data[at - 1]

    return fields(_WANTED, 0)


_NOTHING: dict[int, Any] = {}
_STATISTICS: dict[int, Any] = {5: _NOTHING}
_CHUNK: dict[int, Any] = {**dict.fromkeys((1, 3, 5, 6, 11), _NOTHING), 12: _STATISTICS}
_WANTED: dict[int, Any] = {4: {1: {3: _CHUNK}}}
"""What is kept of a footer: its row groups, their columns, and of each what `Chunk` has."""
_SIZES = {1: 1, 2: 1, 3: 1, 7: 8}
"""Bytes of what has no length of its own: a truth value in a list, a byte, a double."""
