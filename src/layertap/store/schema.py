"""The columns of a record, and the way from records to arrow tables and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, make_dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from layertap.measure.definition import BUCKETS
from layertap.site import Record, Sharding, Site, Statistics

FORMAT = 2
"""The version of the format that this layertap writes, and the newest that it reads. See FORMAT.md."""

FORMAT_KEY = b"layertap_format"
"""Where a parquet file's schema metadata states its version."""

REPLACES_KEY = b"layertap_replaces"
"""Where it says which shards it represents: a JSON list of [name, first row, rows]."""

_NUMBERS = ("mean", "std", "min", "max", "abs_mean", "abs_max", "l2")
_COUNTS = ("nan", "pos_inf", "neg_inf", "zero")
SHARDING = (
    *("placements", "global_shape", "offset", "mesh_shape", "mesh_names"),
    *("mesh_coordinate", "mesh_origin"),
)
"""The columns of a record's `Sharding`."""
IN_WHOLE = ("fingerprint_in_whole", "sketch_in_whole")
"""What a part adds to fingerprint and sketch of the whole."""
SKETCHES = ("sketch", "sketch_in_whole")
SKETCH_BYTES = 4 * BUCKETS
ADDED = {"mesh_coordinate": (), "mesh_origin": -1, **dict.fromkeys(IN_WHOLE)}
"""Columns that the first files of format 2 do not have, and what replaces them."""


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
        _field("placements", pa.list_(pa.string())),
        *(_field(name, pa.list_(pa.int64())) for name in ("global_shape", "offset", "mesh_shape")),
        _field("mesh_names", pa.list_(pa.string())),
        _field("mesh_coordinate", pa.list_(pa.int64())),
        _field("mesh_origin", pa.int64()),
        _field("count", pa.int64()),
        *(_field(name, pa.float64()) for name in _NUMBERS),
        *(_field(name, pa.int64()) for name in _COUNTS),
        _field("first", pa.list_(pa.float64())),
        _field("fingerprint", pa.uint64()),
        _field("sketch", pa.binary()),
        _field("fingerprint_in_whole", pa.uint64(), nullable=True),
        _field("sketch_in_whole", pa.binary(), nullable=True),
        _field("kept", pa.string()),
        _field("kept_shape", pa.list_(pa.int64())),
        _field("kept_dtype", pa.string()),
        _field("kept_fingerprint", pa.uint64(), nullable=True),
        _field("asked", pa.bool_()),
        _field("file", pa.string()),
        _field("key", pa.string()),
        _field("nbytes", pa.int64()),
    ],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)

_NEW = ("kept_fingerprint", *SHARDING[1:], *IN_WHOLE)
_FORMAT_1 = pa.schema(
    [
        _field("placements", pa.string()) if field.name == "placements" else field
        for field in SCHEMA
        if field.name not in _NEW
    ]
)

REPETITIVE = [
    *("site", "path", "role", "leaf", "kind", "phase", "dtype", "device", "kept", "kept_dtype", "file"),
    *(f"{name}.list.element" for name in ("shape", "kept_shape", *SHARDING[:-1])),
]
"""Columns (as parquet paths) worth a dictionary; a sketch never repeats, and numbers are small enough."""


def schema_of(version: int) -> Any:
    """The columns that a file of this version of the format has."""
    return _FORMAT_1 if version == 1 else SCHEMA


def upgrade(table: Any, columns: Sequence[str]) -> Any:
    """A table of an older file with the given columns as this version has them."""
    for name in columns:
        if name == "placements" and table.schema.field(name).type == pa.string():
            texts = table.column(name).to_pylist()
            lists = pa.array([[text] if text else [] for text in texts], SCHEMA.field(name).type)
            table = table.set_column(table.column_names.index(name), name, lists)
        elif name in _NEW and name not in table.column_names:
            kind = SCHEMA.field(name).type
            empty: Any = None if name == "kept_fingerprint" else ADDED.get(name, ())
            table = table.append_column(SCHEMA.field(name), pa.array([empty] * table.num_rows, kind))
    return table.select(list(columns))


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
        elif name in SHARDING:
            source = [record.sharding or WHOLE for record in rows]
        columns[name] = [getattr(item, name) for item in source]
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def to_records(table: Any) -> list[Record]:
    """The way back; a value that cannot be is a ValueError or TypeError here, and the caller knows the file.

    Column by column, so that a million records take seconds. Without the columns `SKETCHES` they have none.
    """
    columns = {name: _values(table.column(name)) for name in table.column_names}
    columns.setdefault("sketch", [b""] * table.num_rows)
    columns.setdefault("sketch_in_whole", [None] * table.num_rows)
    known = {text: _site(text) for text in set(columns["site"])}
    # The parts of the site and `abs_max` follow from the rest; the columns are there for SQL.
    columns["statistics"] = list(map(_statistics, *(columns[name] for name in _STATISTICS)))
    columns["site"] = [known[text] for text in columns["site"]]
    columns["sharding"] = [None] * table.num_rows
    if any(columns["placements"]):
        parts = zip(*(columns[name] for name in SHARDING), strict=True)
        columns["sharding"] = [
            Sharding(**dict(zip(SHARDING, part, strict=True))) if part[0] else None for part in parts
        ]
    return list(map(_record, *(columns[name] for name in _RECORD)))


def maker(kind: type) -> Callable[..., Any]:
    """Makes objects of a frozen class from its fields in their order, in a seventh of the time that its own way takes.

    A frozen class sets each field by a call. Its twin, which is not frozen, has the same slots, so an object of it may
    become one of the class.
    """
    twin: Any = make_dataclass(f"_{kind.__name__}", [(field.name, Any) for field in fields(kind)], slots=True)

    def make(*values: Any) -> Any:
        made = twin(*values)
        made.__class__ = kind
        return made

    return make


@lru_cache(maxsize=1 << 16)
def _site(text: str) -> Site:
    return Site.parse(text)


def _values(column: Any) -> list[Any]:
    """The values of a column as Python has them; lists as tuples, of which equal ones are one object."""
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # no rows at all
        return []
    if pa.types.is_dictionary(column.type):
        values = column.dictionary.to_pylist()
        return [values[index] for index in column.indices.to_pylist()]
    if pa.types.is_list(column.type):
        flat = column.flatten().to_pylist()
        if not flat:
            return [()] * len(column)
        seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        offsets = column.offsets.to_pylist()
        first = offsets[0]
        lists = (tuple(flat[begin:end]) for begin, end in pairwise([at - first for at in offsets]))
        return [seen.setdefault(item, item) for item in lists]
    return list(column.to_pylist())


_PLAIN = (
    *("kind", "order", "step", "epoch", "batch", "phase", "rank", "shape", "dtype", "device"),
    *("fingerprint", "sketch", *IN_WHOLE),
    *("kept", "kept_shape", "kept_dtype", "kept_fingerprint", "asked", "file", "key"),
)
_STATISTICS = tuple(field.name for field in fields(Statistics))
_RECORD = tuple(field.name for field in fields(Record))
_statistics, _record = maker(Statistics), maker(Record)
WHOLE = Sharding(placements=())
TEXTS = ("site", "kind", "phase", "dtype", "device", "kept", "kept_dtype", "file")
"""Columns in which few texts stand many times."""
RECORD = ("site", *_PLAIN, *_STATISTICS, *SHARDING)
"""The columns that a record is made of; those for SQL are left."""


def kept_nothing(record: Record) -> Record:
    """The record without its tensor, whatever was hoped for."""
    if record.kept == "stats" and not record.file:
        return record
    return replace(record, kept="stats", kept_shape=(), kept_dtype="", kept_fingerprint=None, file="", key="")
