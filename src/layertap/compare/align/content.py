"""What names left over, paired by what is in it: contents compared, and sequences laid side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from layertap.compare.align.distance import Matrix, distances, nearest
from layertap.compare.align.site_pairing import ContentGroup, SitePairing
from layertap.result import Note

GAP = 0.6
"""The cost of leaving out one record; more than half of the worst pair, so that a faulty layer stays paired."""
NEAR = 0.3
"""The part of the distance to the nearest other record within which two records are the same."""
OTHER_CLASS = 0.05
"""What another class of module adds to a cost: of two equal contents, the one of the same class is meant."""
MOST = 3000
"""Leftovers of one shape beyond this are not matched by content: the matrix would not fit a laptop."""


def pair_by_content(pairing: SitePairing) -> list[str]:
    """Pairs leftovers that are far nearer to each other than to anything else of their size, in order."""
    ours_by, theirs_by = (_by_group(pairing, side, left) for side, left in enumerate(pairing.left()))
    count = 0
    lines = []
    for group, ours in ours_by.items():
        theirs = theirs_by.get(group, [])
        if not theirs:
            continue
        if max(len(ours), len(theirs)) > MOST:
            lines.append(Note("align.content_too_many", count=len(ours), count2=len(theirs)))
            continue
        for i, j in _clear_pairs(pairing, group, ours, theirs):
            pairing.pair(i, j, "content")
            count += 1
    return [Note("align.content", pairs_text=pairing.pairs_text(count)), *lines] if count or lines else []


def monotone(costs: Matrix, gap: float = GAP) -> list[tuple[int, int]]:
    """The cheapest way to lay two sequences side by side without crossing, each left-out member costing `gap`.

    >>> monotone(np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.1]]))
    [(1, 0), (2, 1)]
    """
    rows, columns = costs.shape
    steps = gap * np.arange(columns + 1)
    table = np.empty((rows + 1, columns + 1))
    table[0] = steps
    for i in range(rows):
        row = table[i] + gap
        row[1:] = np.minimum(row[1:], table[i, :-1] + costs[i])
        # A move along the row costs the gap: with the slope taken out, the best way up to here is a running minimum.
        table[i + 1] = np.minimum.accumulate(row - steps) + steps
    found = []
    i, j = rows, columns
    while i and j:
        if np.isclose(table[i, j], table[i - 1, j - 1] + costs[i - 1, j - 1], rtol=0, atol=1e-9):
            i, j = i - 1, j - 1
            found.append((i, j))
        elif np.isclose(table[i, j], table[i - 1, j] + gap, rtol=0, atol=1e-9):
            i -= 1
        else:
            j -= 1
    return found[::-1]


def _by_group(pairing: SitePairing, side: int, numbers: Iterable[int]) -> dict[ContentGroup, list[int]]:
    found: dict[ContentGroup, list[int]] = defaultdict(list)
    for number in numbers:
        group = pairing.group(side, number)
        if group is not None:
            found[group].append(number)
    return found


def _clear_pairs(
    pairing: SitePairing, group: ContentGroup, ours: list[int], theirs: list[int]
) -> list[tuple[int, int]]:
    references, candidates = pairing.vectors(0, ours), pairing.vectors(1, theirs)
    error = distances(references, candidates)
    # All that either could be mistaken for counts, also what is paired already.
    around = [
        pairing.vectors(side, _by_group(pairing, side, range(count)).get(group, [])[:MOST])
        for side, count in enumerate((len(pairing.reference), len(pairing.candidate)))
    ]
    scale = np.minimum(
        nearest(distances(references, around[0]))[:, None], nearest(distances(candidates, around[1]))[None, :]
    )
    zero = np.logical_or.outer(~np.any(references, axis=1), ~np.any(candidates, axis=1))
    costs = np.minimum(error / np.minimum(scale, 1.0), 2 * GAP + 1)
    costs += OTHER_CLASS * np.array([[_other_class(pairing, i, j) for j in theirs] for i in ours])
    costs[zero] = 2 * GAP + 1
    return [(ours[r], theirs[c]) for r, c in monotone(costs) if costs[r, c] < NEAR]


def _other_class(pairing: SitePairing, i: int, j: int) -> bool:
    kinds = pairing.reference[i].kind, pairing.candidate[j].kind
    return all(kinds) and kinds[0] != kinds[1]
