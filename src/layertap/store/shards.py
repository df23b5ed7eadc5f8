"""The parquet files of a run, opened with suspicion: whatever is wrong with one is a CorruptRun that names it.

A run may come from anywhere, and its folder may hold anything. Nothing outside the folder is opened (names are checked,
links are resolved), nothing but regular files, and pyarrow's errors, of which there are many kinds, end here.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from layertap.errors import CorruptRun, LayertapError, NewerFormat
from layertap.files import check_unpacked, open_regular
from layertap.messages import tr
from layertap.site import Record
from layertap.store.footer import read_chunks
from layertap.store.schema import (
    ADDED,
    FORMAT,
    FORMAT_KEY,
    RECORD,
    REPLACES_KEY,
    SCHEMA,
    SKETCH_BYTES,
    SKETCHES,
    TEXTS,
    schema_of,
    to_records,
    upgrade,
)

_NAME = re.compile(r"(\d{1,9})-([0-9A-Za-z]+-[0-9a-f]+)-(\d{6,9})\.parquet")
RETRIES = 5
"""A folder is listed again so many times if small shards were merged while they were opened."""
_TENSOR_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*\.safetensors")


class Shard:
    """One parquet file. Opening it reads and checks its footer only."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = f"{folder}/records/{name}"
        self.stem = name.removesuffix(".parquet")
        rank, _, rest = self.stem.partition("-")
        self.rank, self.session = int(rank), rest.rpartition("-")[0]
        self._path = inside(folder, "records", name)
        metadata = self._guarded(lambda: pq.read_metadata(self._path))
        schema = self._guarded(metadata.schema.to_arrow_schema)
        self._version = self._check(schema)
        self.replaces = self._replaced(schema)
        """Small shards that this one was merged from → their first row in it, and their rows. Whatever is left of them
        is not to be read."""
        self._metadata = metadata
        self._chunks = self._guarded(lambda: read_chunks(self._path))
        self._repeats = self._guarded(self._bounded)
        self.groups: tuple[int, ...] = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        """Rows of each row group."""
        if min(self.groups, default=0) < 0 or sum(self.groups) != metadata.num_rows:
            raise CorruptRun(
                tr("store.rows_parts", name=self.name, num_rows=metadata.num_rows, groups=sum(self.groups))
            )

    @property
    def rows(self) -> int:
        return sum(self.groups)

    def _replaced(self, schema: Any) -> dict[str, tuple[int, int]]:
        writer = self.stem.rpartition("-")[0]
        try:
            entries = json.loads((schema.metadata or {}).get(REPLACES_KEY, b"[]"))
            found = {name: (first, rows) for name, first, rows in entries}
            whole = all(
                name.rpartition("-")[0] == writer and type(first) is int and type(rows) is int and min(first, rows) >= 0
                for name, (first, rows) in found.items()
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise CorruptRun(tr("store.replaces_damaged", name=self.name))
        return found

    def merged_into(self) -> Shard | None:
        """The shard that this one was merged into since it was opened."""
        writer = self.stem.rpartition("-")[0]
        names = list_shards(self._folder)
        for _ in range(RETRIES):
            for shard in reversed(open_shards(self._folder, [name for name in names if name.startswith(writer)], [])):
                if self.stem in shard.replaces:
                    return shard
            before, names = names, list_shards(self._folder)
            if names == before:
                break  # else that one was merged in its turn
        return None

    @property
    def numbers(self) -> tuple[int, int]:
        """The first and the last place in its session's order; of a merged shard, of what it was merged from."""
        all_numbers = [int(name.rpartition("-")[2]) for name in self.replaces or (self.stem,)]
        return min(all_numbers), max(all_numbers)

    @property
    def keeps_tensors(self) -> bool:
        """Whether a record in it has bytes in a tensor file, by the footer's statistics; False where it has none."""
        return any((chunk.largest or 0) > 0 for group in self._chunks for chunk in group if chunk.path == "nbytes")

    def read(self, columns: Sequence[str], group: int | None = None, encoded: Sequence[str] = ()) -> Any:
        """Columns of the whole shard or of one row group; those in `encoded` come as dictionaries."""
        if not self._path.exists() and (merged := self.merged_into()) is not None:
            first, rows = merged.replaces[self.stem]
            before = sum(self.groups[:group]) if group is not None else 0
            table = merged.read(columns, None, encoded)
            return table.slice(first + before, rows if group is None else self.groups[group])
        table = self._guarded(lambda: self._read(list(columns), group, list(encoded)))
        for name in columns:
            column = table.column(name)
            parts = [column, column.combine_chunks().flatten()] if pa.types.is_list(column.type) else [column]
            if not SCHEMA.field(name).nullable and any(part.null_count for part in parts):
                raise CorruptRun(tr("store.column_empty", name=self.name, name2=name))
        return table

    def _read(self, columns: list[str], group: int | None, encoded: list[str]) -> Any:
        here = [name for name in columns if name in schema_of(self._version).names and name not in self._absent]
        # A text that occurs once in the file and in a million rows is read as it stands, and only then spread out.
        repeated = [name for name in here if name in self._repeats]
        with open_regular(self._path) as source:
            file = pq.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=list({*encoded, *(self._repeats[name] for name in repeated)}),
                page_checksum_verification=True,
                pre_buffer=False,
            )
            # In this thread alone: a thread of arrow's holds on to Python's objects for a moment after the call, and
            # where the program ends in that moment it aborts.
            table = file.read(here, False) if group is None else file.read_row_group(group, here, False)
        expected = self.rows if group is None else self.groups[group]
        if table.num_rows != expected:
            raise ValueError(tr("store.rows_expected", num_rows=table.num_rows, expected=expected))
        table.validate(full=True)  # offsets and UTF-8 too: what arrow trusts later must be checked once
        for name in repeated:
            if name not in encoded:
                self._spreads(name, table.column(name))
                kind = schema_of(self._version).field(name).type
                place = table.column_names.index(name)
                table = table.set_column(place, name, table.column(name).cast(kind))
        for name in SKETCHES:
            if name in table.column_names:
                self._sketches(table.column(name))
        whole = self._version == FORMAT and len(here) == len(columns)
        return table.select(columns) if whole else upgrade(table, columns)

    def _bounded(self) -> dict[str, str]:
        """Refuses a file that says of itself that it is far larger in memory; gives the columns that repeat texts."""
        repeats: dict[str, str] = {}
        unpacked = 0
        for chunk in (chunk for group in self._chunks for chunk in group):
            # A run of equal numbers takes no room on disk, whatever its length.
            unpacked += max(chunk.unpacked, 8 * chunk.values)
            if chunk.text and chunk.dictionary:
                repeats[chunk.path.partition(".")[0]] = chunk.path
        check_unpacked(self.name, unpacked, os.stat(self._path).st_size)
        return repeats

    def _spreads(self, name: str, column: Any) -> None:
        total = 0
        for chunk in column.chunks:
            chunk = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
            lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
            total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        check_unpacked(tr("store.column", name=self.name, name2=name), total, os.stat(self._path).st_size)

    def _sketches(self, column: Any) -> None:
        sizes = pc.unique(pc.binary_length(column)).to_pylist()
        if odd := set(sizes) - {None, 0, SKETCH_BYTES}:
            raise ValueError(tr("store.sketch_bytes", value=min(odd)))

    def _check(self, schema: Any) -> int:
        """The version of the format, if all of its columns are there."""
        version = (schema.metadata or {}).get(FORMAT_KEY)
        if version is None or not version.isdigit() or len(version) > 9:
            raise CorruptRun(tr("store.not_ours", name=self.name))
        if int(version) > FORMAT:
            raise NewerFormat(tr("store.shard_newer", name=self.name, version=int(version), format=FORMAT))
        self._absent = frozenset(ADDED) - set(schema.names)
        for field in schema_of(int(version)):
            if field.name in self._absent:
                continue
            if schema.names.count(field.name) != 1:
                raise CorruptRun(tr("store.column_missing", name=self.name, name2=field.name))
            found = schema.field(field.name).type
            if found != field.type:
                raise CorruptRun(
                    tr("store.column_type", name=self.name, name2=field.name, found=found, value=field.type)
                )
        return int(version)

    def _guarded(self, work: Any) -> Any:
        try:
            return work()
        except LayertapError:
            raise
        except Exception as error:  # noqa: BLE001 - pyarrow raises a dozen kinds for a damaged file
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise CorruptRun(tr("store.not_parquet", name=self.name, value=reason[0][:200])) from None


class MemoryShard:
    """A committed part of a `MemoryWriter`, read like a file."""

    def __init__(self, table: Any, number: int) -> None:
        self.name = tr("store.memory_shard", number=number)
        self.groups: tuple[int, ...] = (table.num_rows,)
        self.rows: int = table.num_rows
        self._table = table

    def read(self, columns: Sequence[str], group: int | None = None, encoded: Sequence[str] = ()) -> Any:
        table = self._table.select(list(columns))
        for name in encoded:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(name).dictionary_encode())
        return table


def open_shards(folder: Path, names: Sequence[str], problems: list[str]) -> list[Shard]:
    """The shards of a run in the order in which they were written, without those that a merged one represents."""
    found: list[Shard] = []
    for name in names:
        try:
            found.append(Shard(folder, name))
        except (CorruptRun, NewerFormat) as error:
            problems.append(str(error))
    replaced = {name for shard in found for name in shard.replaces}
    kept = [shard for shard in found if shard.stem not in replaced]
    return sorted(kept, key=lambda shard: (shard.session, shard.rank, shard.numbers))


def is_shard(name: str) -> bool:
    """Whether this is the name of a shard's Parquet file."""
    return _NAME.fullmatch(name) is not None


def list_shards(folder: Path) -> tuple[str, ...]:
    """The names of the parquet files that a run consists of, sessions by time, then ranks, then numbers."""
    names: list[tuple[str, int, int, str]] = []
    with suppress(OSError):
        found = [match for name in os.listdir(folder / "records") if (match := _NAME.fullmatch(name))]
        names += [(match[2], int(match[1]), int(match[3]), match[0]) for match in found]
    return tuple(name for *_, name in sorted(names))


def tensor_path(folder: Path, name: str) -> Path:
    """The tensor file that a record names, if that is a name and nothing more."""
    if not _TENSOR_NAME.fullmatch(name):
        raise CorruptRun(tr("store.file_name", folder=folder, name=name))
    return inside(folder, "tensors", name)


def inside(folder: Path, *parts: str) -> Path:
    """A regular file of the run, links followed but not out of the folder."""
    path = folder.joinpath(*parts)
    root = os.path.realpath(folder)
    real = os.path.realpath(path)
    if os.path.commonpath([root, real]) != root:
        raise CorruptRun(tr("store.link", path=path, real=real))
    try:
        regular = stat.S_ISREG(os.stat(real).st_mode)
    except FileNotFoundError:
        raise CorruptRun(tr("store.path_missing", path=path)) from None
    except OSError as error:
        raise CorruptRun(tr("store.path_unreadable", path=path, strerror=error.strerror or error)) from None
    if not regular:
        raise CorruptRun(tr("store.not_regular", path=path))
    return Path(real)


def decode(shard: Shard | MemoryShard, group: int, table: Any = None) -> list[Record]:
    """The records of a row group, or of the table that was read from it."""
    try:
        return to_records(shard.read(RECORD, group, TEXTS) if table is None else table)
    except CorruptRun:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptRun(f"{shard.name}: {error}") from None
