"""Comparable at all? Before any number: the same inputs, real captures, and two runs that are not one.

captures        below: something was captured, nothing was lost
same_inputs     the same ids, masks and images, or the same but for padding
staleness       captures that cannot be of a model at work
claims          a run called fp32 that contains bfloat16; a candidate that is the reference
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layertap.compare.claims import claims, placebo_of, shortened, title
from layertap.compare.padding import Trim, find_trim
from layertap.compare.result import Alignment
from layertap.compare.same_inputs import hold_inputs
from layertap.compare.staleness import stale
from layertap.result import Note
from layertap.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """What is between two runs and a verdict."""

    reasons: tuple[str, ...] = ()
    """What makes any verdict inconclusive, most important first."""
    notes: tuple[str, ...] = ()
    """What a reader must know besides."""
    missing: tuple[str, ...] = ()
    """What was not read: the sites that are here may agree, and still not all is known to."""
    placebo: bool = False
    """Whether all pairs are bit-identical although the two runs should differ."""
    trim: Trim | None = None
    """What to leave out of every tensor, where padding is all that two sequence lengths differ by."""


def comparable(reference: Run, candidate: Run, alignment: Alignment) -> Comparability:
    """Compares the circumstances of two runs with each other; the tensors themselves are not read."""
    reasons: list[str] = []
    notes: list[str] = []
    for side, run in (("reference", reference), ("candidate", candidate)):
        _captured(side, run, reasons, notes)
    trim = find_trim(reference, candidate)
    hold_inputs(reference, candidate, trim, reasons, notes)
    for side, run in (("reference", reference), ("candidate", candidate)):
        reasons += stale(side, run)
        notes += claims(side, run)
    notes += _numbers(reference, candidate)
    notes += alignment.unpaired
    notes += [cut.why for cut in alignment.trims if cut != trim]
    missing = _unread(reference, candidate)
    placebo = placebo_of(reference, candidate, alignment)
    if placebo:
        notes.insert(0, placebo)
    return Comparability(
        reasons=tuple(reasons), notes=tuple(notes), missing=tuple(missing), placebo=bool(placebo), trim=trim
    )


def _captured(side: str, run: Run, reasons: list[str], notes: list[str]) -> None:
    receipt = run.receipt
    name = title(side, run)
    if not run.sites:
        why = receipt.silent[0].why if receipt is not None and receipt.silent else ""
        reasons.append(Note("comparable.nothing_captured", name=name, more=f" ({why})" if why else ""))
    elif receipt is not None and receipt.error:
        # What was recorded before is real. But a site that was asked for and never came was not found to be right.
        text = Note("comparable.stopped_early", name=name, error=receipt.error)
        if receipt.silent:
            reasons.append(Note("comparable.stopped_and_missing", text=text, count=len(receipt.silent)))
        else:
            notes.append(text)
    if receipt is not None and receipt.lost:
        notes.append(Note("comparable.lost", name=name, lost=receipt.lost))
    dropped = sum(site.dropped for site in receipt.sites) if receipt is not None else 0
    if dropped:
        notes.append(Note("comparable.dropped", name=name, dropped=dropped))
    if run.partial:
        more = Note("comparable.and_more", count=len(run.problems) - 1) if len(run.problems) > 1 else ""
        notes.append(Note("comparable.partial", name=name, problem=run.problems[0], more=more))


def _unread(*runs: Run) -> list[str]:
    """Files that lie beside those that were read; a folder that was read in part is not known to agree."""
    notes: list[str] = []
    for run in runs:
        names = run.info.get("unread")
        if isinstance(names, list) and names:
            some = ", ".join(map(str, names[:5])) + (
                Note("comparable.and_more_files", count=len(names) - 5) if len(names) > 5 else ""
            )
            notes.append(Note("comparable.unread", folder=run.name, count=len(names), names=some))
    return notes


def _numbers(reference: Run, candidate: Run) -> list[str]:
    """Single numbers that lie beside the tensors and differ: a loss is no layer, but it must not differ in silence."""
    ours, theirs = reference.info.get("numbers"), candidate.info.get("numbers")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return []
    differ = [name for name, value in ours.items() if name in theirs and theirs[name] != value]
    if not differ:
        return []
    some = ", ".join(f"{name} {shortened(ours[name])} / {shortened(theirs[name])}" for name in differ[:5])
    return [Note("comparable.numbers", count=len(differ), some=some)]
