"""The remaining records, paired by where they are in the order of execution, when only one way is possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from layertap.compare.align.site_pairing import SitePairing
from layertap.judge.shapes import common_shape, leveled
from layertap.result import Note

FEW = 3
"""Fewer sites than this, at the beginning or the end, are alike by chance."""
LEFT_OVER = "left over"
"""How pairs are named that nothing supports but that nothing else was left: no fault is seen by them."""


def pair_by_order(pairing: SitePairing, lengths: Collection[tuple[int, int]] = ()) -> list[str]:
    """Pairs the leftovers between two neighbouring pairs if both sides have as many, of the same kinds and shapes.

    `lengths` are two sequence lengths each, where padding is proven to be all that they differ by.
    """
    found: list[tuple[int, int]] = []
    for gap in _gaps(pairing):
        pairs = list(zip(gap.ours, gap.theirs, strict=False))
        if not pairs or len(gap.ours) != len(gap.theirs):
            continue
        if all(_alike(pairing, i, j, lengths) for i, j in pairs):
            for i, j in pairs:
                pairing.pair(i, j, "order" if gap.enclosed or len(pairs) >= FEW else LEFT_OVER)
            found += pairs
    if not found:
        return [Note("align.step", way="order", pairs=pairing.pairs_text(0))]
    one, other = pairing.reference[found[0][0]].site, pairing.candidate[found[0][1]].site
    return [Note("align.order", pairs=pairing.pairs_text(len(found)), one=one, other=other)]


@dataclass(frozen=True, slots=True)
class _Unmatched:
    """What is unmatched on both sides between two pairs."""

    ours: list[int]
    theirs: list[int]
    enclosed: bool
    """Whether there is a pair before it and one after it."""


def _gaps(pairing: SitePairing) -> list[_Unmatched]:
    """The leftovers on both sides between pairs that go forward on both."""
    anchors = _forward(sorted((i, match.candidate) for i, match in pairing.matches.items()))
    edges = [(-1, -1), *anchors, (len(pairing.reference), len(pairing.candidate))]
    return [
        _Unmatched(
            [i for i in range(edges[k][0] + 1, edges[k + 1][0]) if i not in pairing.matches],
            [j for j in range(edges[k][1] + 1, edges[k + 1][1]) if j not in pairing.taken],
            enclosed=0 < k < len(edges) - 2,
        )
        for k in range(len(edges) - 1)
    ]


def _forward(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs in which the candidate goes forward too; a site that runs elsewhere is passed over.

    >>> _forward([(0, 0), (1, 9), (2, 1), (3, 2)])
    [(0, 0), (2, 1), (3, 2)]
    """
    from bisect import bisect_left

    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        ends[at : at + 1] = [j]
        last[at : at + 1] = [number]
        before.append(last[at - 1] if at else -1)
    chain: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


def _alike(pairing: SitePairing, i: int, j: int, lengths: Collection[tuple[int, int]]) -> bool:
    one, other = pairing.reference[i], pairing.candidate[j]
    a, b = one.site, other.site
    if (a.role, a.call) != (b.role, b.call) or {a.leaf, b.leaf} not in ({a.leaf}, {"", "0"}):
        return False
    # Files have no kinds. Names that contradict each other do: an embedding is no layer, however alike the shapes.
    if one.kind and other.kind and one.kind != other.kind:
        return False
    if pairing.end(0, i) != pairing.end(1, j):
        return False
    return shapes_fit(one.shape, other.shape, lengths)


def shapes_fit(one: tuple[int, ...], other: tuple[int, ...], lengths: Collection[tuple[int, int]]) -> bool:
    """Whether two shapes are the same but for axes of size 1, merged axes, and proven padding.

    >>> shapes_fit((1, 32, 8), (32, 8), ()), shapes_fit((1, 32, 8), (1, 64, 8), [(32, 64)])
    (True, True)
    """
    if common_shape(one, other) is not None:
        return True
    one, other = leveled(one, other)
    return len(one) == len(other) and all(a == b or (a, b) in lengths for a, b in zip(one, other, strict=True))
