"""Many small shards made into one: a run that was flushed at each step would else consist of thousands of files.

The new shard says in its metadata which ones it replaces, and a reader that sees it leaves those out. So it takes their
place in one step, when it gets its name; they are removed after that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from layertap.durable import sync_folder
from layertap.store.folder import temporary_name
from layertap.store.parquetfile import ParquetFile
from layertap.store.schema import FORMAT, REPLACES_KEY
from layertap.store.tensorfile import TensorEntry, TensorFileWriter, read_bytes, read_header

SMALL_ROWS = 2000
SMALL_BYTES = 4 << 20
"""A shard with fewer records and fewer bytes of tensors than these is worth merging."""
MERGED = 128
"""So many neighbouring small shards become one, at the end or while the run is written."""
FEW = 8
"""Fewer are left as they are."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A shard that is on the disk."""

    records: int
    bytes: int
    committed: float

    def __add__(self, other: Committed) -> Committed:
        return Committed(self.records + other.records, self.bytes + other.bytes, max(self.committed, other.committed))


def small_neighbours(committed: Mapping[str, Committed], before: float) -> Iterator[list[str]]:
    """Groups of neighbouring small shards that were committed before that time: who read them has let go of them."""
    stems: list[str] = []
    for stem, shard in [*committed.items(), ("", None)]:
        small = shard is not None and shard.records < SMALL_ROWS and shard.bytes < SMALL_BYTES
        if small and shard is not None and shard.committed < before:
            stems.append(stem)
            if len(stems) < MERGED:
                continue
        if len(stems) >= FEW:
            yield stems
        stems = []


def merge(folder: Path, stems: Sequence[str], new: str, *, durable: bool) -> None:
    """Writes the shards `stems` anew as the one shard `new`, and removes them. If that fails, they are as they were."""
    tables = [pq.read_table(folder / "records" / f"{stem}.parquet", page_checksum_verification=True) for stem in stems]
    table = pa.concat_tables(tables)
    tensors = folder / "tensors" / f"{new}.safetensors"
    rows = ParquetFile(temporary_name(folder / "records" / f"{new}.parquet"))
    try:
        table = _with_tensors(folder, table, tensors, durable=durable)
        names = json.dumps(_replaced(tables, stems)).encode()
        table = table.replace_schema_metadata({**table.schema.metadata, REPLACES_KEY: names})
        rows.write(table, folder / "records" / f"{new}.parquet", durable=durable)
    except BaseException:
        rows.abandon()
        with suppress(OSError):
            tensors.unlink()
        raise
    if durable:
        sync_folder(folder / "records")
    for part, end in (("records", "parquet"), ("tensors", "safetensors")):
        for stem in stems:
            with suppress(OSError):  # one that stays is left out by readers, and removed when the run is continued
                (folder / part / f"{stem}.{end}").unlink()


def _replaced(tables: Sequence[Any], stems: Sequence[str]) -> list[tuple[str, int, int]]:
    """Each shard with its rows, and what these stood for themselves: a file that could not be removed must not come
    back, and who has it open finds its rows here."""
    found, begin = [], 0
    for table, stem in zip(tables, stems, strict=True):
        earlier = json.loads(table.schema.metadata.get(REPLACES_KEY, b"[]"))
        found += [(name, begin + first, rows) for name, first, rows in earlier]
        found.append((stem, begin, table.num_rows))
        begin += table.num_rows
    return found


def _with_tensors(folder: Path, table: Any, path: Path, *, durable: bool) -> Any:
    """Copies the tensors of all rows into one file, and gives the rows its name and their new keys."""
    files, keys = table.column("file").to_pylist(), table.column("key").to_pylist()
    headers: dict[str, dict[str, TensorEntry]] = {}
    used: set[str] = set()
    moves: list[tuple[Path, TensorEntry, bytes]] = []
    nbytes = 0
    for row, (file, key) in enumerate(zip(files, keys, strict=True)):
        if not file:
            continue
        source = folder / "tensors" / file
        if file not in headers:
            headers[file] = read_header(source, str(source))
        entry = headers[file][key]
        size = entry.end - entry.begin
        if key in used:
            key = f"{key.partition('#')[0]}#{row}"
        used.add(key)
        files[row], keys[row] = path.name, key
        moves.append((source, entry, TensorFileWriter.entry(key, entry.dtype, entry.shape, nbytes, size)))
        nbytes += size
    if not moves:
        return table
    header_bytes = 512 + sum(len(text) for _, _, text in moves)
    out = TensorFileWriter(
        temporary_name(path), header_bytes=header_bytes, metadata={"layertap_format": str(FORMAT)}, durable=durable
    )
    try:
        for source, entry, text in moves:
            out.append(text, memoryview(read_bytes(source, str(source), entry.begin, entry.end).data))
        out.finish(path)
    except BaseException:
        out.abandon()
        raise
    for name, values in (("file", files), ("key", keys)):
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values, pa.string()))
    return table
