"""The columns of a record, and the way from records to arrow tables and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from layertap.site import Record, Site, Statistics

FORMAT = 1
"""The version of the format that this layertap writes, and the newest that it reads. See FORMAT.md."""

FORMAT_KEY = b"layertap_format"
"""Where a parquet file's schema metadata says its version."""

_NUMBERS = ("mean", "std", "min", "max", "abs_mean", "abs_max", "l2")
_COUNTS = ("nan", "pos_inf", "neg_inf", "zero")


def _field(name: str, kind: Any, nullable: bool = False) -> Any:
    return pa.field(name, kind, nullable=nullable)


SCHEMA = pa.schema(
    [
        _field("site", pa.string()),
        _field("path", pa.string()),
        _field("role", pa.string()),
        _field("leaf", pa.string()),
        _field("call", pa.int32()),
        _field("kind", pa.string()),
        _field("order", pa.int64()),
        _field("step", pa.int64()),
        _field("epoch", pa.int64(), nullable=True),
        _field("batch", pa.int64(), nullable=True),
        _field("phase", pa.string()),
        _field("rank", pa.int32()),
        _field("shape", pa.list_(pa.int64())),
        _field("dtype", pa.string()),
        _field("device", pa.string()),
        _field("placements", pa.string()),
        _field("count", pa.int64()),
        *(_field(name, pa.float64()) for name in _NUMBERS),
        *(_field(name, pa.int64()) for name in _COUNTS),
        _field("first", pa.list_(pa.float64())),
        _field("fingerprint", pa.uint64()),
        _field("sketch", pa.binary()),
        _field("kept", pa.string()),
        _field("kept_shape", pa.list_(pa.int64())),
        _field("kept_dtype", pa.string()),
        _field("asked", pa.bool_()),
        _field("file", pa.string()),
        _field("key", pa.string()),
        _field("nbytes", pa.int64()),
    ],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)

REPETITIVE = [
    *("site", "path", "role", "leaf", "kind", "phase", "dtype", "device", "placements", "kept", "kept_dtype", "file"),
    *("shape.list.element", "kept_shape.list.element"),
]
"""Columns (as parquet paths) worth a dictionary; a sketch never repeats, and numbers are small enough."""


def to_table(records: Sequence[tuple[Record, int]]) -> Any:
    """Records, each with the number of bytes kept of it, as an arrow table of `SCHEMA`."""
    rows = [record for record, _ in records]
    statistics = [record.statistics for record in rows]
    sites = [record.site for record in rows]
    columns: dict[str, list[Any]] = {"site": [str(site) for site in sites], "nbytes": [size for _, size in records]}
    for field in SCHEMA:
        name = field.name
        if name in columns:
            continue
        source: list[Any] = rows
        if name in ("path", "role", "leaf", "call"):
            source = sites
        elif name in ("count", "first", *_NUMBERS, *_COUNTS):
            source = statistics
        columns[name] = [getattr(item, name) for item in source]
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def to_records(table: Any) -> Iterator[Record]:
    """The way back; a value that cannot be is a ValueError or TypeError here, and the caller knows the file."""
    columns = [table.column(field.name).to_pylist() for field in SCHEMA]
    names = SCHEMA.names
    sites: dict[str, Site] = {}
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        text = row["site"]
        if (site := sites.get(text)) is None:
            site = sites[text] = Site.parse(text)
        # The parts of the site and `abs_max` follow from the rest; the columns are there for SQL.
        statistics = Statistics(
            first=tuple(row["first"]),
            **{name: row[name] for name in ("count", *_NUMBERS, *_COUNTS) if name != "abs_max"},
        )
        yield Record(
            site=site,
            statistics=statistics,
            shape=tuple(row["shape"]),
            kept_shape=tuple(row["kept_shape"]),
            **{name: row[name] for name in _PLAIN},
        )


_PLAIN = (
    *("kind", "order", "step", "epoch", "batch", "phase", "rank", "dtype", "device", "placements"),
    *("fingerprint", "sketch", "kept", "kept_dtype", "asked", "file", "key"),
)


def kept_nothing(record: Record) -> Record:
    """The record without its tensor, whatever was hoped for."""
    if record.kept == "stats" and not record.file:
        return record
    return replace(record, kept="stats", kept_shape=(), kept_dtype="", file="", key="")
