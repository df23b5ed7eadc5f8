"""Taking steps out of a run that has grown too large: whole steps, the older ones first, never half a record."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from layertap.store.folder import temporary_name
from layertap.store.parquetfile import ParquetFile
from layertap.store.schema import REPLACES_KEY
from layertap.store.tensorfile import TensorFileWriter, read_bytes, read_header


def shards_of(folder: Path, rank: int) -> list[str]:
    """The committed shards of one rank, in the order in which they were written."""
    return sorted(path.stem for path in (folder / "records").glob(f"{rank}-*.parquet"))


def size_of_shard(folder: Path, stem: str) -> int:
    """Bytes on disk, of its records and its tensors."""
    total = 0
    for path in _files(folder, stem):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def steps_of_shard(folder: Path, stem: str) -> frozenset[int]:
    """The steps that it has records of."""
    column = pq.read_table(_files(folder, stem)[0], columns=["step"]).column("step")
    return frozenset(pc.unique(column).to_pylist())


def drop_steps(folder: Path, stem: str, steps: Collection[int]) -> int:
    """Takes all records of these steps, and their tensors, out of a shard; returns how many records that were.

    The records go first, by one rename, then the tensors that none of them names any more: killed between the two, the
    run is whole, and a reader that has the old files open keeps them.
    """
    parquet, tensors = _files(folder, stem)
    table = pq.read_table(parquet)
    dropped = [step in steps for step in table.column("step").to_pylist()]
    kept = table.filter([not drop for drop in dropped])
    removed: int = table.num_rows - kept.num_rows
    if not removed:
        return 0
    if not kept.num_rows:
        parquet.unlink()
        tensors.unlink(missing_ok=True)
        return removed
    names = json.loads(kept.schema.metadata.get(REPLACES_KEY, b"[]"))
    if names:
        # What it was merged from must not come back; but whoever has that open finds none of its rows at their place.
        gone = json.dumps([(name, kept.num_rows, 0) for name, _, _ in names]).encode()
        kept = kept.replace_schema_metadata({**kept.schema.metadata, REPLACES_KEY: gone})
    ParquetFile(temporary_name(parquet)).write(kept, parquet, durable=True)
    if tensors.exists():
        _keep_tensors(tensors, {key for key in kept.column("key").to_pylist() if key})
    return removed


def _keep_tensors(path: Path, keys: set[str]) -> None:
    if not keys:
        path.unlink()
        return
    found = [(key, entry) for key, entry in read_header(path, path.name).items() if key in keys]
    header_bytes = 512 + sum(
        len(TensorFileWriter.entry(key, e.dtype, e.shape, e.begin, e.end)) + 32 for key, e in found
    )
    writer = TensorFileWriter(temporary_name(path), header_bytes=header_bytes, metadata=_metadata(path))
    try:
        for key, entry in sorted(found, key=lambda item: item[1].begin):
            view: Any = read_bytes(path, path.name, entry.begin, entry.end)
            data = memoryview(view)
            writer.append(TensorFileWriter.entry(key, entry.dtype, entry.shape, writer.nbytes, len(data)), data)
        writer.finish(path)
    except OSError:
        writer.abandon()
        raise


def _metadata(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header.get("__metadata__", {}))


def _files(folder: Path, stem: str) -> tuple[Path, Path]:
    return folder / "records" / f"{stem}.parquet", folder / "tensors" / f"{stem}.safetensors"
