"""Tensors that several modes have in common lie on the disk once.

A finished run keeps its own tensors in its own file, and finds the others in hard links to the files of the runs that
had them first. Each link has the name that the file has there, and a shard of the same name contains the rows whose
tensors are in it: so every run is complete by itself, and stays so when another is removed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from layertap.errors import CorruptRun
from layertap.store.parquetfile import ParquetFile
from layertap.store.schema import FORMAT
from layertap.store.tensorfile import TensorEntry, TensorFileWriter, read_bytes, read_header
from layertap.sweeping.language import FILE as TOKENS
from layertap.sweeping.task import digest_of

Identity = tuple[int, str, tuple[int, ...]]
"""Fingerprint, dtype and shape of what was kept."""


@dataclass(slots=True)
class Pool:
    """All tensors of the finished runs by identity, and where each is."""

    places: dict[Identity, tuple[Path, str]] = field(default_factory=dict)
    """Identity → the file and the tensor's name in it."""
    files: dict[str, Path] = field(default_factory=dict)
    """The files that are shared as a whole, by their contents."""
    _headers: dict[Path, dict[str, TensorEntry]] = field(default_factory=dict)

    def add(self, run: Path) -> None:
        """Takes the tensors of a run that is complete."""
        for parquet in sorted((run / "records").glob("[0-9]*.parquet")):
            for identity, file, key in _kept(pq.read_table(parquet, columns=_COLUMNS)):
                self.places.setdefault(identity, (run / "tensors" / file, key))
        for path in _whole_files(run):
            self.files.setdefault(_contents(path), path)

    def holds(self, place: tuple[Path, str], source: Path, entry: TensorEntry) -> bool:
        """Whether the tensor at that place is this one; one that cannot be read any more is not."""
        try:
            return _equal(source, entry, *self.read(*place))
        except (OSError, KeyError, CorruptRun):
            return False

    def read(self, path: Path, key: str) -> tuple[TensorEntry, Any]:
        if path not in self._headers:
            self._headers[path] = read_header(path, str(path))
        entry = self._headers[path][key]
        return entry, read_bytes(path, str(path), entry.begin, entry.end, mapped=True)


_COLUMNS = ["kept", "kept_fingerprint", "kept_dtype", "kept_shape", "file", "key"]


def share(run: Path, pool: Pool) -> int:
    """Replaces what a new run has in common with the pool, and with itself, by links; returns the bytes spared.

    The run is not in use by anybody yet. Where the file system has no hard links it stays as it is.
    """
    spared = 0
    for parquet in sorted((run / "records").glob("[0-9]*.parquet")):
        spared += _share_shard(run, parquet, pool)
    for path in _whole_files(run):
        first = pool.files.get(_contents(path))
        if first is not None:
            size = path.stat().st_size
            temporary = path.with_name(f".{path.name}.tmp")
            with suppress(OSError):
                os.link(first, temporary)
                os.replace(temporary, path)
                spared += size
    return spared


def _whole_files(run: Path) -> list[Path]:
    return [path for path in (run / TOKENS,) if path.is_file()]


def _contents(path: Path) -> str:
    return f"{path.name} {digest_of(path)}"


def _share_shard(run: Path, parquet: Path, pool: Pool) -> int:
    table = pq.read_table(parquet)
    own = f"{parquet.stem}.safetensors"
    source = run / "tensors" / own
    if not source.exists():
        return 0
    header = read_header(source, str(source))
    rows = table.num_rows
    files, keys = table.column("file").to_pylist(), table.column("key").to_pylist()
    mine: dict[Identity, str] = {}
    elsewhere: dict[Path, list[int]] = {}
    spared = 0
    identities = {key: identity for identity, _, key in _kept(table)}
    for row in range(rows):
        key = keys[row]
        if not files[row]:
            continue
        identity, entry = identities[key], header[key]
        place = pool.places.get(identity)
        if place is not None and place[0].name != own and pool.holds(place, source, entry):
            elsewhere.setdefault(place[0], []).append(row)
            keys[row] = place[1]
            spared += entry.end - entry.begin
        elif identity in mine and _equal(source, entry, *pool.read(source, mine[identity])):
            keys[row] = mine[identity]
            spared += entry.end - entry.begin
        else:
            mine.setdefault(identity, key)
    if not spared:
        return 0
    links = [(path, run / "tensors" / path.name) for path in elsewhere]
    try:
        for path, link in links:
            if not link.exists():
                os.link(path, link)
    except OSError:  # another file system, or one without links
        for _, link in links:
            with suppress(OSError):
                link.unlink()
        return 0
    for path, link in links:
        for row in elsewhere[path]:
            files[row] = link.name
    table = _with(table, files, keys)
    gone = {row for members in elsewhere.values() for row in members}
    _write_own(run, parquet, table, [row for row in range(rows) if row not in gone], source, header)
    for path, members in elsewhere.items():
        _append(run / "records" / f"{path.stem}.parquet", table.take(pa.array(members, pa.int64())))
    return spared


def _write_own(
    run: Path, parquet: Path, table: Any, rows: Sequence[int], source: Path, header: dict[str, TensorEntry]
) -> None:
    """Writes the shard again with what is its own; without rows it is removed."""
    own = table.take(pa.array(rows, pa.int64()))
    files, names = own.column("file").to_pylist(), own.column("key").to_pylist()
    keys = list(dict.fromkeys(key for key, file in zip(names, files, strict=True) if file))
    if keys:
        entries, begin = [], 0
        for key in keys:
            entry = header[key]
            entries.append(TensorFileWriter.entry(key, entry.dtype, entry.shape, begin, entry.end - entry.begin))
            begin += entry.end - entry.begin
        header_bytes = 512 + sum(map(len, entries))
        out = TensorFileWriter(
            source.with_name(f".{source.name}.tmp"),
            header_bytes=header_bytes,
            metadata={"layertap_format": str(FORMAT)},
            durable=False,
        )
        try:
            for key, text in zip(keys, entries, strict=True):
                entry = header[key]
                out.append(text, memoryview(read_bytes(source, str(source), entry.begin, entry.end).data))
            out.finish(source)
        except BaseException:
            out.abandon()
            raise
    else:
        source.unlink()
    if own.num_rows:
        _write(parquet, own)
    else:
        parquet.unlink()


def _append(path: Path, table: Any) -> None:
    """Adds rows to the shard of a linked file."""
    if path.exists():
        before = pq.read_table(path)
        table = pa.concat_tables([before, table]).replace_schema_metadata(before.schema.metadata)
    _write(path, table)


def _write(path: Path, table: Any) -> None:
    file = ParquetFile(path.with_name(f".{path.name}.tmp"))
    try:
        file.write(table, path, durable=False)
    except BaseException:
        file.abandon()
        raise


def _with(table: Any, files: list[str], keys: list[str]) -> Any:
    for name, values in (("file", files), ("key", keys)):
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values, pa.string()))
    return table


def _kept(table: Any) -> Any:
    """Identity, file and key of each row that kept something whose bytes are known by a checksum."""
    columns = [table.column(name).to_pylist() for name in _COLUMNS]
    for kept, fingerprint, dtype, shape, file, key in zip(*columns, strict=True):
        if kept != "stats" and file and fingerprint is not None:
            yield (fingerprint, dtype, tuple(shape)), file, key


def _equal(path: Path, one: TensorEntry, other: TensorEntry, values: Any) -> bool:
    """Whether the bytes are the same: a fingerprint is no proof against intent."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    mine = read_bytes(path, str(path), one.begin, one.end, mapped=True)
    return bool((mine == values).all())


def disk_bytes(folders: Sequence[Path]) -> int:
    """What the files in these folders take together, each counted once however often it is linked."""
    seen: dict[tuple[int, int], int] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                stat = path.stat()
                seen[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(seen.values())


def state_of(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Names, sizes and times of a folder's files: what changes when anybody writes into it."""
    stats = ((str(path.relative_to(folder)), path.stat()) for path in folder.rglob("*") if path.is_file())
    return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
