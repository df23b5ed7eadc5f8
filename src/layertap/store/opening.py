"""What a run's folder holds when it is opened: the files that say what made it, its shards, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertap.errors import CorruptRun, NewerFormat, NotARun
from layertap.messages import tr
from layertap.result import Note
from layertap.store.runfile import read_run_file, run_files
from layertap.store.shards import RETRIES, Shard, inside, list_shards, open_shards


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    files: dict[int, dict[str, Any]]
    """By rank: what its run.json says."""
    shards: list[Shard]
    problems: list[str]


def open_folder(folder: Path, since: str = "", url: str = "") -> OpenedFolder:
    """Opens a run's folder; with `since` only that shard and what its writer wrote after it.

    `url` is where it is in object storage, if it does.
    """
    names = list_shards(folder)
    paths = run_files(folder)
    if not paths and not names and url:
        raise NotARun(tr("storage.no_objects", url=url))
    if not paths and not names:
        there = (
            tr("store.no_run_json")
            if folder.is_dir()
            else tr("store.not_folder")
            if folder.exists()
            else tr("store.missing")
        )
        raise NotARun(tr("store.not_run", folder=folder, there=there))
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
            problems.append(Note("store.readable", error=error))
    if not paths:
        problems.append(Note("store.run_json_missing", folder=folder))
    shards = _open_shards(folder, names, since, problems)
    return OpenedFolder(files, shards, problems)


def _open_shards(folder: Path, names: tuple[str, ...], since: str, met: list[str]) -> list[Shard]:
    writer, _, first = since.rpartition("-")
    for _ in range(RETRIES):
        problems: list[str] = []
        # A writer numbers its shards upwards, and a merged shard comes after those that it represents.
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
    name = tr("store.session_of_rank", session=session.get("session"), session2=session.get("rank"))
    receipt, problems, notes = session.get("receipt"), session.get("problems"), []
    if not isinstance(receipt, dict):
        receipt = {}
    if receipt.get("error"):
        notes.append(Note("store.session_error", name=name, receipt=receipt["error"]))
    elif session.get("status") != "complete":
        notes.append(Note("store.session_open", name=name))
    problems = [str(problem) for problem in problems] if isinstance(problems, list) else []
    if receipt.get("lost") and not problems:
        problems.append(Note("store.session_lost", name=name, receipt=receipt["lost"]))
    return [*notes, *problems]


def _run_file(folder: Path, path: Path) -> dict[str, Any]:
    return read_run_file(inside(folder, path.name), name=str(path))
