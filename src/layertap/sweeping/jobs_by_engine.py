"""Jobs of a sweep by the workers of an engine: each starts the mode's process on its machine, and hands back its end.

The folder of the sweep must be there under the same name. A job whose worker dies is begun again in another folder,
since the process of the first may still write for a moment.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from layertap.engine import Engine, Recipe
from layertap.messages import tr
from layertap.sweeping.processes import POLL, Job


def run_jobs_by(
    engine: Engine, jobs: Sequence[Job], at_once: int, threads: int, notify: Callable[[Job, str], None]
) -> Iterator[Job]:
    """The jobs with what became of them, in their order."""

    def started() -> Iterator[Job]:
        for job in jobs:
            notify(job, "started")
            yield job

    ends = engine.map(
        _run,
        started(),
        here=None,
        there=lambda: Recipe(prepare=_nothing),
        called=lambda job: job.name,
        processors=threads,
        at_once=at_once,
    )
    for job, end in zip(jobs, ends, strict=True):
        job.outcome, job.error, job.log, job.seconds, job.peak = end[:5]
        if missing := [name for name in end.files if not (job.folder / name).exists()]:
            job.error = job.error or tr("engine.not_shared", folder=job.folder, name=missing[0])
        yield job


# What follows runs in a worker.


class _JobEnd(NamedTuple):
    """What became of a job."""

    outcome: dict[str, Any]
    error: str
    log: str
    seconds: float
    peak: int
    files: tuple[str, ...]
    """What it left in its folder."""


def _nothing(_: object) -> None:
    return None


def _run(_: None, job: Job) -> _JobEnd:
    job.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="try-", dir=job.folder))

    def moved(value: Any, old: Path, new: Path) -> Any:
        return json.loads(json.dumps(value, default=str).replace(_as_json(old), _as_json(new)))

    tried = replace(
        job,
        folder=folder,
        task=moved(dict(job.task), job.folder, folder),
        command=tuple(moved(list(job.command), job.folder, folder)),
        environment=moved(dict(job.environment), job.folder, folder),
    )
    try:
        tried.start()
        while not tried.done():
            time.sleep(POLL)
    finally:
        tried.kill()
    files = tuple(sorted(path.name for path in folder.iterdir()))
    for name in files:
        place = job.folder / name
        if place.is_dir():
            shutil.rmtree(place)
        os.replace(folder / name, place)
    folder.rmdir()
    return _JobEnd(moved(tried.outcome, folder, job.folder), tried.error, tried.log, tried.seconds, tried.peak, files)


def _as_json(path: Path) -> str:
    return json.dumps(str(path))[1:-1]
