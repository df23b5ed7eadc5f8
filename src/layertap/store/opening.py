"""What a run's folder holds when it is opened: the files that say what made it, its shards, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertap.errors import CorruptRun, NewerFormat, NotARun
from layertap.store.runfile import read_run_file, run_files
from layertap.store.shards import RETRIES, Shard, inside, list_shards, open_shards


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    files: dict[int, dict[str, Any]]
    """By rank: what its run.json says."""
    shards: list[Shard]
    problems: list[str]


def open_folder(folder: Path, since: str = "") -> OpenedFolder:
    """Opens a run's folder; with `since` only that shard and what its writer wrote after it."""
    names = list_shards(folder)
    paths = run_files(folder)
    if not paths and not names:
        there = "holds no run.json" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
        raise NotARun(f"{folder}: {there}; a run is the folder that was given to layertap.record")
    files: dict[int, dict[str, Any]] = {}
    problems: list[str] = []
    for rank, path in paths.items():
        try:
            files[rank] = _run_file(folder, path)
        except (CorruptRun, NewerFormat) as error:
            # What a newer layertap wrote is not to be guessed at. A damaged file is like a missing one: the records
            # are readable. With neither there is nothing to open.
            if not files and (isinstance(error, NewerFormat) or not names):
                raise
            problems.append(f"{error}; the records are readable")
    if not paths:
        problems.append(f"{folder}/run.json: missing; the records are readable, what made them is not known")
    shards = _open_shards(folder, names, since, problems)
    return OpenedFolder(files, shards, problems)


def _open_shards(folder: Path, names: tuple[str, ...], since: str, met: list[str]) -> list[Shard]:
    writer, _, first = since.rpartition("-")
    for _ in range(RETRIES):
        problems: list[str] = []
        # A writer numbers its shards upwards, and a merged shard comes after those that it stands for.
        named = ((name, *name.removesuffix(".parquet").rpartition("-")[::2]) for name in names)
        wanted = [
            name for name, theirs, number in named if not since or (theirs == writer and int(number) >= int(first))
        ]
        shards = open_shards(folder, wanted, problems)
        before, names = names, list_shards(folder)
        if not problems or names == before:
            break  # else small shards were merged in between
    met += problems
    return [shard for shard in shards if not since or shard.numbers[1] >= int(first)]


def problems_of(session: dict[str, Any]) -> list[str]:
    """What a writer's own file says is missing."""
    name = f"session {session.get('session')} of rank {session.get('rank')}"
    receipt, problems, told = session.get("receipt"), session.get("problems"), []
    if not isinstance(receipt, dict):
        receipt = {}
    if receipt.get("error"):
        told.append(f"{name} met an error: {receipt['error']}; what came after it may be missing")
    elif session.get("status") != "complete":
        told.append(
            f"{name} was never closed: it is still recording, or its process died; its last records may be missing"
        )
    problems = [str(problem) for problem in problems] if isinstance(problems, list) else []
    if receipt.get("lost") and not problems:
        problems.append(f"{name}: {receipt['lost']} record(s) could not be written")
    return [*told, *problems]


def _run_file(folder: Path, path: Path) -> dict[str, Any]:
    return read_run_file(inside(folder, path.name), name=str(path))
