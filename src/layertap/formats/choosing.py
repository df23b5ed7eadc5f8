"""Which records of a run an export takes; what it passes over is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layertap.errors import BadArgument
from layertap.formats.staging import Staging
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record
from layertap.store.records import SiteRecords
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One record and the way to its tensor."""

    record: Record
    source: SiteRecords

    def tensor(self) -> torch.Tensor:
        return self.source.tensor()

    @property
    def kept(self) -> bool:
        return self.record.kept == "tensor"

    @property
    def why_not(self) -> str:
        kept = self.record.kept
        how = tr("formats.tensor_not_kept") if kept == "stats" else tr("formats.part_kept", kept=kept)
        return tr("formats.record_tensor", how=how)


def choose(run: Run, out: Staging, *, roles: tuple[str, ...] = ("output",)) -> list[ChoiceRow]:
    """The records of these roles on the lowest rank, in order of execution."""
    rows = []
    for site in run.sites:
        if site.role not in roles:
            out.leave_out(site, Note("formats.roles_only", roles=" and ".join(roles)))
            continue
        found = run[site]
        rows += [ChoiceRow(found[place], found[place : place + 1]) for place in range(len(found))]
    rank = min((row.record.rank for row in rows), default=0)
    for row in rows:
        if row.record.rank != rank:
            out.leave_out(f"rank {row.record.rank}", Note("formats.no_ranks", rank=rank))
    return sorted((row for row in rows if row.record.rank == rank), key=lambda row: (row.record.step, row.record.order))


def one_step(rows: list[ChoiceRow], step: int | None, out: Staging) -> list[ChoiceRow]:
    """The rows of one step: the one asked for, or the first."""
    steps = sorted({row.record.step for row in rows})
    if step is not None and step not in steps:
        raise BadArgument(tr("formats.no_step", step=step, steps=_span(steps)))
    if not steps:
        return []
    chosen = steps[0] if step is None else step
    for other in steps:
        if other != chosen:
            out.leave_out(Note("formats.step", other=other), Note("formats.one_step", chosen=chosen))
    return [row for row in rows if row.record.step == chosen]


def first_of_each(rows: list[ChoiceRow], out: Staging) -> list[ChoiceRow]:
    """The first tensor of each module and role: what the layouts of one tensor a layer have room for."""
    seen: set[tuple[str, str]] = set()
    first = []
    for row in rows:
        site = row.record.site
        if (site.path, site.role) in seen:
            out.leave_out(site, Note("formats.one_tensor"))
            continue
        seen.add((site.path, site.role))
        first.append(row)
    return first


def inputs(run: Run, step: int) -> dict[str, ChoiceRow]:
    """The model's own inputs of a step by their leaf."""
    found: dict[str, ChoiceRow] = {}
    for record in run.inputs:
        if record.step == step and record.site not in run.sites:
            found.setdefault(record.site.leaf, ChoiceRow(record, run[record.site].at(step=step, rank=record.rank)))
    return found


def _span(steps: list[int]) -> str:
    return (
        tr("formats.steps", value=", ".join(map(str, steps)))
        if len(steps) <= 8
        else tr("formats.steps_span", count=len(steps), steps=steps[0], steps2=steps[-1])
    )
