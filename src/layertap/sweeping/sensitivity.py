"""Which layers matter, for the modes that the definition asks it of; worked out in processes of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from layertap.result import Note
from layertap.sweeping.definition import Definition, ModeDefinition
from layertap.sweeping.processes import Job, remove, run_jobs
from layertap.sweeping.result import LayerScore, ModeResult, Sensitivity, Sweep

Progress = Callable[[str, str, int, int], None]


class JobPlan(Protocol):
    """What makes jobs of a sweep."""

    @property
    def definition(self) -> Definition: ...
    @property
    def jobs(self) -> int: ...
    def job(self, mode: ModeDefinition, kind: str, **more: object) -> Job: ...
    def run(self, jobs: Sequence[Job], notify: Callable[[Job, str], None]) -> Iterator[Job]: ...


def wanted(definition: Definition, result: Sweep) -> list[ModeDefinition]:
    """The modes whose layers are to be ranked, as far as that is possible."""
    asked = definition.sensitivity
    found = []
    for mode in definition.modes:
        done = result.modes.get(mode.name)
        if done is None or done.error or mode.name == result.reference or mode.command or mode.batch:
            continue
        chosen = bool(mode.quantize) if asked == "auto" else mode.name in asked if isinstance(asked, tuple) else asked
        if chosen and done.sensitivity is None and not (done.verdict == "identical" and asked == "auto"):
            found.append(mode)
    return found


def rank_modes(plan: JobPlan, result: Sweep, modes: Sequence[ModeDefinition], tell: Progress) -> Sweep:
    """The reference is written down once; each of the modes is then forced to it, in its own process."""
    reference = plan.definition.mode(result.reference)
    if not modes or reference.command or reference.batch:
        return result
    tell("sensitivity", "teaching", 0, len(modes))
    teacher = plan.job(reference, "teach")
    ranked = dict(result.modes)
    jobs: list[Job] = []
    try:
        for _ in run_jobs([teacher], 1, lambda job, state: None):
            pass
        if teacher.error:
            notes = {mode.name: Note("sweep.not_ranked", mode=mode.name, why=_last(teacher.error)) for mode in modes}
            return replace(result, modes={name: _noted(one, notes.get(name)) for name, one in ranked.items()})
        jobs = [plan.job(mode, "sensitivity", teacher=teacher.outcome["teacher"]) for mode in modes]
        for done, job in enumerate(plan.run(jobs, lambda job, state: None), start=1):
            alone = _injected(plan, reference, teacher, job)
            ranked[job.name] = _with(ranked[job.name], job, alone)
            tell("sensitivity", job.name, done, len(modes))
    finally:
        for job in (teacher, *jobs):
            remove(job.folder)
    return replace(result, modes=ranked)


def _injected(plan: JobPlan, reference: ModeDefinition, teacher: Job, job: Job) -> dict[str, float]:
    """What the errors of the worst layers do alone, where the float modules could not be put back."""
    errors = job.outcome.get("errors") if not job.error else ""
    if not errors:
        return {}
    one = plan.job(reference, "inject", teacher=teacher.outcome["teacher"], errors=errors)
    try:
        for _ in run_jobs([one], 1, lambda job, state: None):
            pass
        return dict(one.outcome.get("alone") or {})
    finally:
        remove(one.folder)


def _with(mode: ModeResult, job: Job, alone: dict[str, float]) -> ModeResult:
    if job.error:
        return _noted(mode, Note("sweep.not_ranked", mode=job.name, why=_last(job.error)))
    found = job.outcome
    total = found["total"] or math.nan
    rows = []
    for row in found["rows"]:
        confirmed = alone[row["path"]] / total if row["path"] in alone else row["confirmed"]
        rows.append(LayerScore(**{**row, "confirmed": math.nan if confirmed is None else confirmed}))
    ranking = Sensitivity(
        rows=tuple(rows),
        output=found["output"],
        total=found["total"],
        graft="injected" if alone else "module",
        quantised=tuple(found["quantised"]),
    )
    return replace(mode, sensitivity=ranking)


def _noted(mode: ModeResult, note: Note | None) -> ModeResult:
    return mode if note is None else replace(mode, notes=(*mode.notes, note))


def _last(text: str) -> str:
    return text.strip().splitlines()[-1]
