"""`sweep`: modes in, one result out. Read this first: plan, run what is not there yet, compare, judge."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layertap.engine import IN_PROCESS, Engine, EngineChoice, open_engine
from layertap.errors import BadArgument, LayertapError, RunExists
from layertap.files import parse_json, read_bytes, reason
from layertap.messages import tr
from layertap.store import Run
from layertap.store.folder_lock import FolderLock
from layertap.store.storage import on_this_machine
from layertap.sweeping.definition import Definition, ModeDefinition, read_definition, slug
from layertap.sweeping.environment import clean_environment
from layertap.sweeping.jobs_by_engine import run_jobs_by
from layertap.sweeping.judging import Finished, conclude
from layertap.sweeping.processes import Job, remove, run_jobs
from layertap.sweeping.result import Sweep
from layertap.sweeping.sensitivity import rank_modes, wanted
from layertap.sweeping.sharing import Pool, share, state_of
from layertap.sweeping.task import command_words, hash_of, task_of, write_json

Progress = Callable[[str, str, int, int], None]
"""Is given a mode's name (or what is being done), its state, how many are done and how many there are."""
OUTCOME = "mode.json"
RESULT = "sweep.json"
KINDS = ("record", "teach", "sensitivity", "inject")
"""Of jobs, each with a folder of its own while it lasts."""


def sweep(
    definition: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str],
    modes: str | Sequence[str] | None = None,
    *,
    reference: str | None = None,
    sites: Sequence[str] | None = None,
    jobs: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    sensitivity: bool | Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    engine: EngineChoice = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Runs one input through many modes, each in a process of its own, and compares all of them.

    `definition` is a TOML file, or a dictionary of the same shape; `modes` a preset, a list, or None for all.
    `reference` and `sites` replace the definition's, `changes` any of its keys. A mode whose run is in the folder
    `output` already is not run again, unless its definition or its files have changed, or `fresh` is set. At most
    `jobs` modes run at once, as memory allows, each for `timeout` seconds at most. A mode that fails does not stop the
    others: it is in the result with its error, and the verdict is then inconclusive. `engine="ray"` starts the modes'
    processes by the workers of the Ray cluster at `address`, or of this machine.
    """
    began = time.monotonic()
    name = "" if isinstance(definition, Mapping) else str(definition)
    defined = _changed(read_definition(definition), reference, sites, timeout, sensitivity, changes)
    chosen = defined.chosen(modes)
    folder = on_this_machine(output, "sweep")
    tell: Progress = progress or (lambda name, state, done, total: None)
    with _claimed(folder), open_engine(engine, address) as workers:
        plan = _SweepPlan(defined, folder, jobs, workers)
        finished = _run(plan, chosen, fresh=fresh, tell=tell)
        result = conclude(defined, finished, name=name, folder=folder, jobs=plan.jobs, tell=tell)
        result = _ranked_before(folder, result)
        result = rank_modes(plan, result, wanted(defined, result), tell)
        result = replace(result, seconds=time.monotonic() - began)
        result.to_json(folder / RESULT)
    return result


def _changed(
    defined: Definition,
    reference: str | None,
    sites: Sequence[str] | None,
    timeout: float | None,
    sensitivity: bool | Sequence[str] | None,
    changes: Mapping[str, Any] | None,
) -> Definition:
    if reference is not None:
        defined.mode(reference)
    given: dict[str, Any] = {"reference": reference, "timeout": timeout, "sensitivity": sensitivity, **(changes or {})}
    given["sites"] = (sites,) if isinstance(sites, str) else None if sites is None else tuple(sites)
    return replace(defined, **{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class _SweepPlan:
    """Where things lie, and how many processes and threads there are."""

    definition: Definition
    folder: Path
    asked: int | None
    engine: Engine = IN_PROCESS

    @property
    def threads(self) -> int:
        """Of each mode. The same whatever else runs, since other threads may give other bits."""
        return self.definition.threads or max(1, min(4, (os.cpu_count() or 1) // 2))

    @property
    def jobs(self) -> int:
        limit = self.asked or self.definition.jobs
        if limit and limit < 1:
            raise BadArgument(tr("sweeping.jobs", limit=limit))
        return limit or max(1, (os.cpu_count() or 1) // self.threads)

    def folder_of(self, mode: ModeDefinition) -> Path:
        return self.folder / slug(mode.name)

    def log_of(self, mode: ModeDefinition) -> Path:
        return self.folder / "logs" / f"{slug(mode.name)}.txt"

    def staging(self, mode: ModeDefinition, kind: str = "record") -> Path:
        # Absolute: a mode may change the working directory.
        return Path(os.path.abspath(self.folder)) / f".{kind}-{slug(mode.name)}"

    def timeout(self, mode: ModeDefinition) -> float:
        return mode.timeout or self.definition.timeout

    def job(self, mode: ModeDefinition, kind: str, **more: Any) -> Job:
        """A task of one mode in a worker."""
        place = self.staging(mode, kind)
        remove(place)
        task = task_of(self.definition, mode, place / "run", self.threads)
        return Job(
            name=mode.name,
            task={**task, "kind": kind, **more},
            folder=place,
            environment=clean_environment(mode.env, self.definition.inherit),
            timeout=self.timeout(mode),
        )

    def run(self, jobs: Sequence[Job], notify: Callable[[Job, str], None]) -> Iterator[Job]:
        """The jobs when they have ended."""
        if self.engine.remote:
            return run_jobs_by(self.engine, jobs, self.jobs, self.threads, notify)
        return run_jobs(jobs, self.jobs, notify)

    def record(self, mode: ModeDefinition) -> Job:
        job = self.job(mode, "record")
        if mode.command:
            run = str(job.folder / "run")
            job.command = tuple(
                word.replace("{run}", run).replace("{python}", sys.executable) for word in command_words(mode)
            )
            job.environment = {**job.environment, "LAYERTAP_RUN": run}
        return job


def _run(plan: _SweepPlan, chosen: Sequence[ModeDefinition], *, fresh: bool, tell: Progress) -> list[Finished]:
    """Runs the modes that are not there yet, the reference first; each is made part of the folder when it ends."""
    pool = Pool()
    finished: dict[str, Finished] = {}
    for mode in chosen:
        kept = None if fresh else _kept(plan, mode, pool)
        if kept is not None:
            finished[mode.name] = kept
            tell(mode.name, "kept", len(finished), len(chosen))
    due = [mode for mode in chosen if mode.name not in finished]
    due.sort(key=lambda mode: mode.name != plan.definition.reference)
    by_name = {mode.name: mode for mode in due}
    made = [plan.record(mode) for mode in due]
    try:
        for job in plan.run(made, lambda job, state: tell(job.name, state, len(finished), len(chosen))):
            mode = by_name[job.name]
            finished[job.name] = _settle(plan, mode, job, pool)
            state = "failed" if finished[job.name].error else "done"
            tell(job.name, state, len(finished), len(chosen))
    finally:
        for job in made:
            remove(job.folder)
    return [finished[mode.name] for mode in chosen]


def _kept(plan: _SweepPlan, mode: ModeDefinition, pool: Pool) -> Finished | None:
    """The mode as an earlier sweep left it, if that is what is asked for now and it is whole."""
    folder = plan.folder_of(mode)
    try:
        outcome = parse_json(read_bytes(folder / OUTCOME))
        if outcome.get("hash") != hash_of(plan.definition, mode, plan.threads):
            return None
        run = Run(folder)
        if run.partial or run.info.get("status") != "complete":
            return None
        pool.add(folder)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, LayertapError):
        return None  # damaged since: it is run again
    return Finished(
        mode=mode,
        folder=folder,
        outcome=outcome,
        resumed=True,
        log=_existing(plan.log_of(mode)),
        state=state_of(folder),
    )


def _settle(plan: _SweepPlan, mode: ModeDefinition, job: Job, pool: Pool) -> Finished:
    """Moves what a process left to where it belongs; an earlier run of the mode goes, since it is another's now."""
    log, final = plan.log_of(mode), plan.folder_of(mode)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(job.log, encoding="utf-8")
    run, error = job.folder / "run", job.error
    spared = 0
    if not error:
        error = _problem(run)
    if not error:
        try:
            spared = share(run, pool)
        except (OSError, LayertapError) as failure:
            error = tr("sweeping.not_moved", failure=reason(failure))
    if error:
        remove(final)
        return Finished(
            mode=mode, folder=None, outcome={}, error=error, log=str(log), seconds=job.seconds, peak=job.peak
        )
    outcome = {
        **job.outcome,
        "hash": hash_of(plan.definition, mode, plan.threads),
        "mode": mode.name,
        "task": {**job.task, "timeout": job.timeout, "inherit": list(plan.definition.inherit)},
        "seconds": job.seconds,
        "peak": job.peak,
        "spared": spared,
    }
    write_json(run / OUTCOME, outcome)
    remove(final)
    os.replace(run, final)
    pool.add(final)
    return Finished(
        mode=mode,
        folder=final,
        outcome=outcome,
        log=_existing(log),
        seconds=job.seconds,
        peak=job.peak,
        state=state_of(final),
    )


def _problem(folder: Path) -> str:
    """Why a folder contains no run that can be compared; empty where it does."""
    try:
        run = Run(folder)
    except LayertapError as error:
        return tr("sweeping.left_no_run", error=error)
    if run.partial:
        return tr("sweeping.not_whole", problems=run.problems[0])
    if not any(record.asked for record in run.records()):
        return tr("sweeping.nothing_recorded")
    return ""


def _ranked_before(folder: Path, result: Sweep) -> Sweep:
    """The ranking of layers from the last sweep, for modes that have not been run again, nor their reference."""
    try:
        before = read_sweep(folder)
    except LayertapError:
        return result
    kept = before.reference == result.reference and result.modes[result.reference].resumed
    modes = {
        name: replace(mode, sensitivity=before.modes[name].sensitivity)
        if kept and mode.resumed and name in before.modes
        else mode
        for name, mode in result.modes.items()
    }
    return replace(result, modes=modes)


def _existing(path: Path) -> str:
    return str(path) if path.is_file() and path.stat().st_size else ""


def read_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """The result that the last sweep into a folder left there."""
    path = Path(folder) / RESULT
    try:
        return Sweep.from_dict(parse_json(read_bytes(path)))
    except (OSError, ValueError) as error:
        raise BadArgument(tr("sweeping.no_result", path=path, error=reason(error))) from error


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The folder for one sweep at a time; a lock that ends with the process."""
    if (folder / "run.json").exists():
        raise RunExists(tr("sweeping.holds_run", folder=folder))
    lock = FolderLock(folder, 0, lambda folder, ours: (_refused(one) for one in [folder]))
    for kind in KINDS:  # of a sweep that was killed: no other process writes here now
        for left in folder.glob(f".{kind}-*"):
            remove(left)
    try:
        yield
    finally:
        lock.release()


def _refused(folder: Path) -> Path:
    raise BadArgument(tr("sweeping.in_use", folder=folder))
