"""The ladder: one rung after the other pairs what the rungs before it left over."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layertap.compare.align.board import Board, View
from layertap.compare.align.content import pair_by_content
from layertap.compare.align.mapping import pair_by_rules, read_rules
from layertap.compare.align.moments import Moment, Moments, moments_of, pair_moments
from layertap.compare.align.names import pair_by_prefix, pair_exact
from layertap.compare.align.numbering import pair_by_numbering
from layertap.compare.align.order import pair_by_order
from layertap.compare.align.shift import check_numbers
from layertap.compare.result import Alignment, Pair
from layertap.site import Record
from layertap.store import Run

Shared = Sequence[tuple[Moment, Moment]]


def align(
    reference: Run, candidate: Run, mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None
) -> Alignment:
    """Says which record of one run is which of the other, and how it knows.

    Sites are paired once, for all steps; records then pair by site within the same step, rank and call. `mapping`
    renames the candidate's sites ({regex: replacement}, or a YAML, JSON or TOML file); what it says is not questioned.
    """
    from layertap.compare.overlap import find_overlap  # which themselves ask this package for the inputs
    from layertap.compare.padding import find_trim

    ours, repaired_ours = moments_of(reference)
    theirs, repaired_theirs = moments_of(candidate)
    shared, unpaired = pair_moments(ours, theirs)
    board = _board(ours, theirs, shared)
    overlap = find_overlap(reference, candidate, board.reference, board.candidate, find_trim(reference, candidate))
    for views, cut in zip(board.views, overlap.views, strict=True):
        views.update(cut)
    plan = [
        f"order: the {side}'s records stand in text order (10 before 2); they are read in natural order"
        for side, repaired in (("reference", repaired_ours), ("candidate", repaired_theirs))
        if repaired
    ]
    if mapping is not None:
        # Before exact names: who maps layer_30 to layer_29 does so because both sides have a layer_30.
        plan += pair_by_rules(board, read_rules(mapping))
    for rung in (pair_exact, pair_by_prefix, pair_by_numbering):
        if all(board.left()):
            plan += rung(board)
    checked, shifted = check_numbers(board)
    plan += checked
    if all(board.left()):
        plan += pair_by_content(board)
    if all(board.left()):
        plan += pair_by_order(board, {(trim.reference_length, trim.candidate_length) for trim in overlap.trims})
    pairs, reference_only, candidate_only = _records(board, ours, theirs, shared)
    if reference_only or candidate_only:
        plan.append(f"unmatched: {len(reference_only)} of the reference, {len(candidate_only)} of the candidate")
    return Alignment(
        pairs=tuple(pairs),
        reference_only=tuple(reference_only),
        candidate_only=tuple(candidate_only),
        unpaired=tuple(unpaired),
        plan=(*plan, *unpaired),
        shifted=tuple(shifted),
        trims=overlap.trims,
    )


def _board(ours: Moments, theirs: Moments, shared: Shared) -> Board:
    """One record for each site, from the first of the shared moments that has it."""
    sides: tuple[dict[str, tuple[Record, int]], dict[str, tuple[Record, int]]] = ({}, {})
    for number, pair in enumerate(shared):
        for side, moments, moment in zip(sides, (ours, theirs), pair, strict=True):
            for record in moments[moment]:
                side.setdefault(str(record.site), (record, number))
    reference, candidate = (list(side.values()) for side in sides)
    return Board(
        [record for record, _ in reference],
        [record for record, _ in candidate],
        ([number for _, number in reference], [number for _, number in candidate]),
        (_views(record for record, _ in reference), _views(record for record, _ in candidate)),
    )


def _views(records: Iterable[Record]) -> dict[int, View]:
    return {
        number: View(("sketch", record.statistics.count), record.sketch)
        for number, record in enumerate(records)
        if record.sketch
    }


def _records(
    board: Board, ours: Moments, theirs: Moments, shared: Shared
) -> tuple[list[Pair], list[Record], list[Record]]:
    """From pairs of sites to pairs of records, one moment after the other."""
    partners = {
        str(board.reference[i].site): (str(board.candidate[match.candidate].site), match)
        for i, match in board.matches.items()
    }
    pairs: list[Pair] = []
    only: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
    for one, other in shared:
        # A folder that was appended to may hold a site twice in one step: the first goes with the first.
        waiting: dict[str, list[Record]] = defaultdict(list)
        for record in theirs[other]:
            waiting[str(record.site)].append(record)
        for record in ours[one]:
            name = str(record.site)
            there, match = partners.get(name, ("", None))
            if match is not None and waiting[there]:
                found = waiting[there].pop(0)
                pairs.append(Pair(reference=record, candidate=found, rung=match.rung, layout=match.layout))
            else:
                only[0].setdefault(name, record)
        for name, records in waiting.items():
            if records:
                only[1].setdefault(name, records[0])
    return pairs, list(only[0].values()), list(only[1].values())
