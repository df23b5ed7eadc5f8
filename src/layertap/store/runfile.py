"""`run.json`: what is known of a run as a whole. One file for each rank (`run.3.json`), one entry for each session.

The file's top level is the newest session; the sessions before it stand in `sessions`. A session whose status is still
`recording` was never closed: the run is being written, or its process died.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from layertap.durable import replacing
from layertap.errors import CorruptRun, NewerFormat
from layertap.files import parse_json, read_bytes, reason
from layertap.messages import tr
from layertap.result import jsonable
from layertap.store.schema import FORMAT

MAX_BYTES = 64 << 20
"""A larger run.json is refused: it is nothing that layertap wrote."""

_NAME = re.compile(r"run(?:\.([1-9]\d{0,8}))?\.json")


def run_file(folder: Path, rank: int) -> Path:
    """Where a rank writes what it knows of the run."""
    return folder / (f"run.{rank}.json" if rank else "run.json")


def rank_of(name: str) -> int | None:
    """The rank whose run file has this name; None for any other file.

    >>> rank_of("run.json"), rank_of("run.3.json"), rank_of("run.03.json")
    (0, 3, None)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1] or 0)


def run_files(folder: Path) -> dict[int, Path]:
    """The run files of a folder by rank."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    found = {rank: folder / name for name in names if (rank := rank_of(name)) is not None}
    return dict(sorted(found.items()))


def read_run_file(path: Path, name: str = "") -> dict[str, Any]:
    """Reads and checks one run file; errors call it `name`."""
    name = name or str(path)
    try:
        data = parse_json(read_bytes(path, MAX_BYTES))
    except OSError as error:
        raise CorruptRun(tr("store.unreadable", name=name, strerror=error.strerror or error)) from None
    except ValueError as error:
        raise CorruptRun(tr("store.run_not_json", name=name, error=reason(error))) from None
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise CorruptRun(tr("store.run_format", name=name))
    if data["format"] > FORMAT:
        raise NewerFormat(tr("store.run_newer", name=name, data=data["format"], format=FORMAT))
    sessions = data.setdefault("sessions", [])
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise CorruptRun(tr("store.run_sessions", name=name))
    for key in ("parameter_dtypes", "computes_in"):
        found = data.get(key) or []
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise CorruptRun(tr("store.run_names", name=name, key=key))
    if not isinstance(data.get("artefact") or "", str):
        raise CorruptRun(tr("store.run_artefact", name=name))
    return data


def write_session(path: Path, session: Mapping[str, Any], *, keep: bool = True, durable: bool = True) -> str:
    """Puts a session into a run file, in place of its own older version, atomically.

    A new session goes to the top level and the one that was there joins `sessions`; `keep=False` forgets the others.
    A file that is damaged is put aside under another name; what is lost with it is returned, and noted in the session.
    """
    with _one_at_a_time(path.parent):
        others: list[dict[str, Any]] = []
        lost = ""
        if keep and path.exists():
            try:
                old = read_run_file(path)
                others = [*old.pop("sessions"), old]
            except CorruptRun as error:
                aside = path.with_name(f"{path.name}.damaged")
                os.replace(path, aside)
                lost = tr("store.run_aside", error=error, name=aside.name)
                session = {**session, "problems": [*session.get("problems", ()), lost]}
        names = [other.get("session") for other in others]
        mine = dict(jsonable(session))
        if mine["session"] in names:
            others[names.index(mine["session"])] = mine
        else:
            others.append(mine)
        *earlier, newest = others
        text = json.dumps({**newest, "sessions": earlier}, indent=1, allow_nan=False)
        with replacing(path, durable=durable) as file:
            file.write(text.encode() + b"\n")
    return lost


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    # Records need no locks: every file has one writer. Only run.json is shared, by sessions of one rank that overlap,
    # and it is read, changed and replaced. The lock is on the folder itself, so no lock file is left behind; where it
    # cannot be had within two seconds, writing without it is the smaller evil.
    fd = -1
    with suppress(ImportError, OSError):
        import fcntl

        fd = os.open(folder, os.O_RDONLY)
        for _ in range(200):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)
