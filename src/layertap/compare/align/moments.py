"""Which step and rank of one run goes with which of the other, and the records of each in order of execution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from layertap.compare.align.site_pairing import place
from layertap.result import Note
from layertap.site import Site, natural_key
from layertap.store import Run
from layertap.store.index import NONE, Rows


class StepMoment(NamedTuple):
    """One step of one rank."""

    step: int
    rank: int


Moments = Mapping[StepMoment, Rows]
"""The rows of a run's index, in order of execution."""
Labels = Mapping[StepMoment, Collection[tuple[int | None, int | None]]]
"""The epochs and batches of which the records of a moment are."""


def moments_of(run: Run) -> tuple[Moments, bool]:
    """The rows that were asked for, by moment; and whether the run's own order had to be set right.

    A run that was put together from files in text order has layer_10 before layer_2. No model runs like that.
    """
    rows = run.index.asked()
    if not len(rows):
        return {}, False
    steps, ranks, codes = (run.index.values(name, rows) for name in ("step", "rank", "site"))
    ends = np.flatnonzero((np.diff(steps) != 0) | (np.diff(ranks) != 0)) + 1
    found: dict[StepMoment, Rows] = {}
    # Nearly all steps of a training run the same sites in the same order.
    orders: dict[bytes, Rows | None] = {}
    for begin, end in pairwise((0, *ends.tolist(), len(rows))):
        key = codes[begin:end].tobytes()
        if key not in orders:
            orders[key] = _repaired([run.index.sites[code] for code in codes[begin:end].tolist()])
        order = orders[key]
        here = rows[begin:end]
        found[StepMoment(int(steps[begin]), int(ranks[begin]))] = here if order is None else here[order]
    return found, any(order is not None for order in orders.values())


def labels_of(run: Run, moments: Moments) -> Labels:
    """The epochs and batches of each moment."""
    found = {}
    for moment, rows in moments.items():
        pairs = zip(*(run.index.values(name, rows).tolist() for name in ("epoch", "batch")), strict=True)
        found[moment] = {(_known(epoch), _known(batch)) for epoch, batch in pairs}
    return found


def _known(value: int) -> int | None:
    return None if value == NONE else value


def pair_moments(
    reference: Collection[StepMoment],
    candidate: Collection[StepMoment],
    labels: Callable[[], tuple[Labels, Labels]],
    sharded: Callable[[], tuple[bool, bool]] | None = None,
) -> tuple[list[tuple[StepMoment, StepMoment]], list[str]]:
    """The moments that belong together, and in words those that do not.

    `labels` is asked where steps do not tell, `sharded` (do the ranks of a side hold parts?) where ranks do not.
    """
    steps, notes = _pair_keys(
        "step",
        [moment.step for moment in reference],
        [moment.step for moment in candidate],
        lambda: _labels(*labels()),
    )
    ranks, more = _pair_ranks(reference, candidate, sharded)
    there = (
        (moment, StepMoment(steps.get(moment.step, -1), rank))
        for moment in reference
        for rank in ranks.get(moment.rank, ())
    )
    others = set(candidate)
    return [(one, other) for one, other in there if other in others], [*notes, *more]


def is_sharded(run: Run, moments: Moments) -> bool:
    """Whether its ranks hold parts of tensors, by the first moment of each."""
    first: dict[int, Rows] = {}
    for moment, rows in moments.items():
        first.setdefault(moment.rank, rows)
    found = (record for rows in first.values() for record in run.records_at(rows, sketches=False))
    return any(record.sharding is not None and not record.sharding.is_whole(record.shape) for record in found)


def _pair_ranks(
    reference: Iterable[StepMoment], candidate: Iterable[StepMoment], sharded: Callable[[], tuple[bool, bool]] | None
) -> tuple[dict[int, list[int]], list[str]]:
    """The ranks of the candidate that belong to each of the reference."""
    ours, theirs = (sorted({moment.rank for moment in moments}) for moments in (reference, candidate))
    if sharded is not None and min(len(ours), len(theirs)) == 1 < max(len(ours), len(theirs)):
        side = int(len(theirs) > 1)
        if sharded()[side]:
            notes = Note("align.rank_parts", count=max(len(ours), len(theirs)), side=("reference", "candidate")[side])
            return dict.fromkeys(ours, theirs), [notes]
    paired, unpaired = _pair_keys("rank", ours, theirs, None)
    return {one: [other] for one, other in paired.items()}, unpaired


def _pair_keys(
    word: str,
    reference: Iterable[int],
    candidate: Iterable[int],
    labels: Callable[[], tuple[Mapping[int, Hashable], Mapping[int, Hashable]] | None] | None,
) -> tuple[dict[int, int], list[str]]:
    ours, theirs = sorted(set(reference)), sorted(set(candidate))
    both = set(theirs)
    paired = {key: key for key in ours if key in both}
    notes: list[str] = []
    if not paired and len(ours) == len(theirs) == 1:
        paired = {ours[0]: theirs[0]}
        notes.append(Note("align.only_moment", word=word, ours=ours[0], theirs=theirs[0]))
    elif not paired and labels is not None and (found := labels()) is not None:
        back = {label: key for key, label in found[1].items()}
        paired = {key: back[label] for key, label in found[0].items() if label in back}
        if paired:
            notes.append(Note("align.counted_differently"))
    for side, keys, used in (("reference", ours, set(paired)), ("candidate", theirs, set(paired.values()))):
        extra = [key for key in keys if key not in used]
        if extra:
            notes.append(
                Note("align.moments_alone", count=len(extra), side=side, count2=len(keys), word=word, some=_some(extra))
            )
    return paired, notes


def _labels(reference: Labels, candidate: Labels) -> tuple[dict[int, Hashable], dict[int, Hashable]] | None:
    """Epoch and batch of each step, where every step has one of its own."""
    found = []
    for moments in (reference, candidate):
        labels: dict[int, Hashable] = {}
        for moment, there in moments.items():
            if len(there) != 1 or (None, None) in there:
                return None
            labels[moment.step] = next(iter(there))
        if max(Counter(labels.values()).values(), default=0) > 1:
            return None
        found.append(labels)
    return found[0], found[1]


def _some(keys: Sequence[int]) -> str:
    shown = [str(key) for key in keys]
    return ", ".join(shown if len(shown) <= 5 else [*shown[:3], "…", shown[-1]])


def _repaired(sites: Sequence[Site]) -> Rows | None:
    """Their natural order, where the sites stand in text order; None where they do not."""
    if not _text_order(sites):
        return None
    return np.array(sorted(range(len(sites)), key=lambda number: _by_depth(sites[number])))


def _text_order(sites: Sequence[Site]) -> bool:
    # Not of module paths: in `layers.10` a number that goes back may be a loop of the model.
    numbers: dict[str, list[int]] = defaultdict(list)
    for site in sites:
        where = place(site.path)
        if where.number is not None and not where.rest and where.stem and not where.stem.endswith("."):
            numbers[where.stem].append(where.number)
    return any(
        found != sorted(found) and found == sorted(found, key=str) for found in numbers.values() if len(found) > 2
    )


def _by_depth(site: Site) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    """Embedding first, final norm and head last, numbers by value."""
    end = place(site.path).end
    return {"embedding": -1, "final_norm": 1, "head": 2}.get(end, 0), natural_key(str(site))
