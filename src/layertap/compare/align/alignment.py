"""Pairs sites in one way after the other: each takes what those before it left over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from layertap.compare.align.content import pair_by_content
from layertap.compare.align.mapping import pair_by_rules, read_rules
from layertap.compare.align.moments import Moments, StepMoment, is_sharded, labels_of, moments_of, pair_moments
from layertap.compare.align.names import pair_by_prefix, pair_exact
from layertap.compare.align.numbering import pair_by_numbering
from layertap.compare.align.order import pair_by_order
from layertap.compare.align.pairs import Pairs
from layertap.compare.align.shift import check_numbers
from layertap.compare.align.site_pairing import SitePairing, View
from layertap.compare.result import Alignment
from layertap.result import Note
from layertap.site import Record
from layertap.store import Run
from layertap.store.index import Rows

T = TypeVar("T")
Sides = tuple[T, T]
Shared = Sequence[Sides[StepMoment]]


def align(
    reference: Run, candidate: Run, mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None
) -> Alignment:
    """Pairs the records of one run with those of the other, and gives the reason.

    Sites are paired once, for all steps; records then pair by site within the same step, rank and call. `mapping`
    renames the candidate's sites ({regex: replacement}, or a YAML, JSON or TOML file); what it says is not questioned.
    """
    from layertap.compare.overlap import find_overlap  # which themselves ask this package for the inputs
    from layertap.compare.padding import find_trim

    ours, repaired_ours = moments_of(reference)
    theirs, repaired_theirs = moments_of(candidate)
    shared, unpaired = pair_moments(
        ours,
        theirs,
        lambda: (labels_of(reference, ours), labels_of(candidate, theirs)),
        lambda: (is_sharded(reference, ours), is_sharded(candidate, theirs)),
    )
    runs = reference, candidate
    pairing = _site_pairing(runs, (ours, theirs), shared)
    overlap = find_overlap(reference, candidate, pairing.reference, pairing.candidate, find_trim(reference, candidate))
    for views, cut in zip(pairing.views, overlap.views, strict=True):
        views.update(cut)
    plan: list[str] = [
        Note("align.text_order", side=side)
        for side, repaired in (("reference", repaired_ours), ("candidate", repaired_theirs))
        if repaired
    ]
    rules = () if mapping is None else read_rules(mapping)
    if rules:
        # Before exact names: who maps layer_30 to layer_29 does so because both sides have a layer_30.
        plan += pair_by_rules(pairing, rules)
    for pair_more in (pair_exact, pair_by_prefix, pair_by_numbering):
        if all(pairing.left()):
            plan += pair_more(pairing)
    checked, shifted = check_numbers(pairing)
    plan += checked
    if all(pairing.left()):
        plan += pair_by_content(pairing)
    if all(pairing.left()):
        plan += pair_by_order(pairing, {(trim.reference_length, trim.candidate_length) for trim in overlap.trims})
    pairs, reference_only, candidate_only = _records(pairing, runs, (ours, theirs), shared)
    if reference_only or candidate_only:
        plan.append(Note("align.unmatched", count=len(reference_only), count2=len(candidate_only)))
    return Alignment(
        pairs=pairs,
        reference_only=tuple(reference_only),
        candidate_only=tuple(candidate_only),
        unpaired=tuple(unpaired),
        plan=(*plan, *unpaired),
        shifted=tuple(shifted),
        trims=overlap.trims,
    )


def _site_pairing(runs: Sides[Run], moments: Sides[Moments], shared: Shared) -> SitePairing:
    """One record for each site, from the first of the shared moments that has it."""
    records: list[list[Record]] = []
    numbers: list[list[int]] = []
    for side, run in enumerate(runs):
        rows, of = _flat(moments[side], [pair[side] for pair in shared])
        codes = run.index.values("site", rows) if len(rows) else rows
        _, first = np.unique(codes, return_index=True)
        first.sort()
        records.append(run.records_at(rows[first]))
        numbers.append(of[first].tolist())
    return SitePairing(records[0], records[1], (numbers[0], numbers[1]), (_views(records[0]), _views(records[1])))


def _views(records: Iterable[Record]) -> dict[int, View]:
    return {
        number: View(("sketch", record.statistics.count), record.sketch)
        for number, record in enumerate(records)
        if record.sketch
    }


def _records(
    pairing: SitePairing, runs: Sides[Run], moments: Sides[Moments], shared: Shared
) -> tuple[Pairs, list[Record], list[Record]]:
    """From pairs of sites to pairs of records, one moment after the other; and the first record of what is left over.

    All of it by columns: a long training has millions of records.
    """
    partner = np.full(len(runs[0].index.sites), -1, np.int64)
    match_of = np.zeros(len(runs[0].index.sites), np.int32)
    matches = list(pairing.matches.items())
    for number, (i, match) in enumerate(matches):
        code = runs[0].index.code(pairing.reference[i].site)
        partner[code] = runs[1].index.code(pairing.candidate[match.candidate].site)
        match_of[code] = number
    sides = []
    for side, run in enumerate(runs):
        rows, of = _flat(moments[side], [pair[side] for pair in shared])
        codes = run.index.values("site", rows).astype(np.int64) if len(rows) else rows
        sides.append((rows, codes, of))
    (ours, codes, of), (theirs, their_codes, their_of) = sides
    wanted = partner[codes] if len(codes) else codes
    width = len(runs[1].index.sites) + 1
    # A folder that was appended to may hold a site twice in one step: the first goes with the first.
    mine = _counted(np.where(wanted >= 0, of * width + wanted, -1))
    other = _counted(their_of * width + their_codes)
    found = _places(mine, other)
    paired = found >= 0
    left = np.ones(len(theirs), np.bool_)
    left[found[paired]] = False
    pairs = Pairs(runs, (ours[paired], theirs[found[paired]]), [match for _, match in matches], match_of[codes[paired]])
    return pairs, _first(runs[0], ours[~paired], codes[~paired]), _first(runs[1], theirs[left], their_codes[left])


def _flat(moments: Moments, wanted: Sequence[StepMoment]) -> tuple[Rows, Rows]:
    """The rows of these moments one after the other, and for each the number of its moment."""
    parts = [moments[moment] for moment in wanted]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _counted(keys: Rows) -> Sides[Rows]:
    """The keys, and for each how many equal ones stand before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(keys) else order
    before = np.empty(len(keys), np.int64)
    before[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    return keys, before


def _places(wanted: Sides[Rows], there: Sides[Rows]) -> Rows:
    """Where each of the counted keys is in the other ones; -1 where it does not, or is negative."""
    if not len(wanted[0]) or not len(there[0]):
        return np.full(len(wanted[0]), -1, np.int64)
    times = int(max(wanted[1].max(), there[1].max())) + 1
    mine, other = (keys * times + before for keys, before in (wanted, there))
    order = np.argsort(other)
    at = np.minimum(np.searchsorted(other[order], mine), len(other) - 1)
    return np.where((other[order][at] == mine) & (wanted[0] >= 0), order[at], -1)


def _first(run: Run, rows: Rows, codes: Rows) -> list[Record]:
    """The first record of each site."""
    _, first = np.unique(codes, return_index=True)
    return run.records_at(rows[np.sort(first)])
