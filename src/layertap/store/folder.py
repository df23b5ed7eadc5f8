"""The folder before a run is written into it: refused, continued, or cleared of the run that it holds."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from layertap.errors import RunExists
from layertap.messages import tr
from layertap.store.locked_file import remove_abandoned
from layertap.store.runfile import run_files
from layertap.store.shards import open_shards

_FILE = re.compile(r"(\d+)-[0-9A-Za-z]+-[0-9a-f]+-\d{6,}\.(?:parquet|safetensors)")


def prepare(folder: Path, rank: int, world_size: int | None, exists: str) -> None:
    """Does what `exists` says about a run that this rank finds in the folder: "error", "append" or "replace"."""

    # Each rank answers for its own files; rank 0 also for those of ranks that the new run does not have, when it knows
    # how many there are: a run of 4 ranks must not inherit ranks 4 to 7 of the one it replaces.
    def ours(other: int) -> bool:
        return other == rank or (rank == 0 and world_size is not None and other >= world_size)

    runs = {other: path for other, path in run_files(folder).items() if ours(other)}
    files = [path for path in _own_files(folder) if ours(int(path.name.lstrip(".").split("-")[0]))]
    if exists == "replace":
        # run.json goes first: killed half-way, the rest must not pass for a complete run.
        for path in [*runs.values(), *sorted(files, key=lambda path: path.parent.name)]:
            path.unlink()
        return
    if exists == "append":
        _clean(folder, files)
        return
    if runs or any(not path.name.startswith(".") for path in files):
        raise RunExists(tr("store.exists", folder=folder))


def _clean(folder: Path, files: list[Path]) -> None:
    """Removes what a writer that died has left: temporary files, tensors without records, shards that were merged."""
    for path in files:
        if path.name.startswith("."):
            remove_abandoned(path)
    damaged: list[str] = []
    shards = open_shards(folder, [path.name for path in files if path.suffix == ".parquet"], damaged)
    for path in files:
        if path.name.startswith(".") or (path.suffix == ".parquet" and damaged):
            continue  # what a damaged file represents is not known
        stem = path.name.partition(".")[0]
        # A writer that lives holds the temporary parquet file until the shard has its records; so that is looked for
        # first, and the records after it.
        begun = temporary_name(folder / "records" / f"{stem}.parquet").exists()
        merged = any(stem in shard.replaces for shard in shards)
        if not begun and (merged or not (folder / "records" / f"{stem}.parquet").exists()):
            path.unlink(missing_ok=True)


def _own_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name in ("records", "tensors"):
        with suppress(FileNotFoundError):
            entries = sorted(os.listdir(folder / name))
            # `.x.parquet.tmp` is what a killed writer leaves behind.
            found += [
                folder / name / entry
                for entry in entries
                if _FILE.fullmatch(entry.removeprefix(".").removesuffix(".tmp"))
            ]
    return found


def temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
