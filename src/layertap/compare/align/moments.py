"""Which step and rank of one run goes with which of the other, and the records of each in order of execution."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from layertap.compare.align.board import place
from layertap.site import Record
from layertap.store import Run

_DIGITS = re.compile(r"(\d+)")


class Moment(NamedTuple):
    """One step of one rank."""

    step: int
    rank: int


Moments = dict[Moment, list[Record]]


def moments_of(run: Run) -> tuple[Moments, bool]:
    """The records that were asked for, by moment; and whether the run's own order had to be set right.

    A run that was put together from files in text order has layer_10 before layer_2. No model runs like that.
    """
    found: Moments = defaultdict(list)
    for record in run.records():
        if record.asked:
            found[Moment(record.step, record.rank)].append(record)
    repaired = False
    for records in found.values():
        records.sort(key=lambda record: record.order)
        if _text_order(records):
            records.sort(key=_natural)
            repaired = True
    return dict(sorted(found.items())), repaired


def pair_moments(reference: Moments, candidate: Moments) -> tuple[list[tuple[Moment, Moment]], list[str]]:
    """The moments that belong together, and in words those that do not."""
    steps, told = _pair_keys(
        "step",
        [moment.step for moment in reference],
        [moment.step for moment in candidate],
        _labels(reference, candidate),
    )
    ranks, more = _pair_keys("rank", [moment.rank for moment in reference], [moment.rank for moment in candidate], None)
    there = ((moment, Moment(steps.get(moment.step, -1), ranks.get(moment.rank, -1))) for moment in reference)
    return [(one, other) for one, other in there if other in candidate], [*told, *more]


def _pair_keys(
    word: str,
    reference: Iterable[int],
    candidate: Iterable[int],
    labels: tuple[Mapping[int, Hashable], Mapping[int, Hashable]] | None,
) -> tuple[dict[int, int], list[str]]:
    ours, theirs = sorted(set(reference)), sorted(set(candidate))
    paired = {key: key for key in ours if key in set(theirs)}
    told = []
    if not paired and len(ours) == len(theirs) == 1:
        paired = {ours[0]: theirs[0]}
        told.append(
            f"the reference's only {word} is {ours[0]}, the candidate's {theirs[0]}; they are taken to be the same"
        )
    elif not paired and labels is not None:
        back = {label: key for key, label in labels[1].items()}
        paired = {key: back[label] for key, label in labels[0].items() if label in back}
        if paired:
            told.append("steps are counted differently on both sides; they are paired by epoch and batch")
    for side, keys, used in (("reference", ours, set(paired)), ("candidate", theirs, set(paired.values()))):
        extra = [key for key in keys if key not in used]
        if extra:
            told.append(f"{len(extra)} of the {side}'s {len(keys)} {word}s ({_some(extra)}) are on that side alone")
    return paired, told


def _labels(reference: Moments, candidate: Moments) -> tuple[dict[int, Hashable], dict[int, Hashable]] | None:
    """Epoch and batch of each step, where every step has one of its own."""
    found = []
    for moments in (reference, candidate):
        labels: dict[int, Hashable] = {}
        for moment, records in moments.items():
            there = {(record.epoch, record.batch) for record in records}
            if len(there) != 1 or (None, None) in there:
                return None
            labels[moment.step] = there.pop()
        if max(Counter(labels.values()).values(), default=0) > 1:
            return None
        found.append(labels)
    return found[0], found[1]


def _some(keys: Sequence[int]) -> str:
    shown = [str(key) for key in keys]
    return ", ".join(shown if len(shown) <= 5 else [*shown[:3], "…", shown[-1]])


def _text_order(records: Sequence[Record]) -> bool:
    # Not of module paths: in `layers.10` a number that goes back may be a loop of the model.
    numbers: dict[str, list[int]] = defaultdict(list)
    for record in records:
        where = place(record.site.path)
        if where.number is not None and not where.rest and where.stem and not where.stem.endswith("."):
            numbers[where.stem].append(where.number)
    return any(
        found != sorted(found) and found == sorted(found, key=str) for found in numbers.values() if len(found) > 2
    )


def _natural(record: Record) -> tuple[int, list[tuple[int, int, str]]]:
    """Embedding first, final norm and head last, numbers by value."""
    end = place(record.site.path).end
    parts = [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in _DIGITS.split(str(record.site))]
    return {"embedding": -1, "final_norm": 1, "head": 2}.get(end, 0), parts
