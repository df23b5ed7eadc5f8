"""Numbers that lie: one side counts its layers from 0, the other from 1, or what a number names has moved.

Three signs, the surest first. Contents: a layer at its true place is far nearer to its partner than to its neighbours,
and one such layer is enough, since a wrong numbering makes none (a fault early in the stack leaves few). The numbering
itself: 0 … 61 against 1 … 62 fits only one way. And names as they are, where neither says anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from layertap.compare.align.distance import Matrix, angles, distances, nearest, repeated
from layertap.compare.align.numbering import covers
from layertap.compare.align.site_pairing import ContentGroup, Family, SitePairing, family, place
from layertap.result import Note

CLEAR = 0.5
"""The part of the distance to the nearest other layer within which a layer is at its place."""
FARTHEST = 0.5
"""A layer whose neighbours were not recorded is at its place only if it is nearer than CLEAR times this."""
MOST = 3000
"""A family of more layers is not checked: the matrix would not fit a laptop."""
OUTVOTED = 3
"""How many times as many layers must speak for another numbering, where some speak for that of the names."""


Measure = Callable[[Matrix, Matrix], Matrix]


@dataclass(slots=True)
class _Group:
    """The families of one stem on both sides, which are numbered alike: `layers.*`, `layers.*.mlp`."""

    stems: tuple[str, str]
    named: int
    """What names add to the reference's number to get the candidate's."""
    bases: tuple[int | None, int | None] = (None, None)
    """With which number each side's layers begin, as far as its names tell."""
    families: list[tuple[dict[int, int], dict[int, int]]] = field(default_factory=list)
    """Number → place on the pairing, for each family and side."""


@dataclass(frozen=True, slots=True)
class _Vote:
    offset: int
    why: str
    """`content` or `numbering`."""
    layers: int = 0


def check_numbers(pairing: SitePairing) -> tuple[list[str], list[str]]:
    """Holds the numbers by which families were paired against contents and against each other; re-pairs where they lie.

    Returns lines for the plan, and the sentences that say what is called by another name.
    """
    lines: list[str] = []
    notes: list[str] = []
    agreed = 0
    for group in _groups(pairing):
        votes = _votes(pairing, group)
        vote = _decide(group, votes)
        if vote is None or vote.offset == group.named:
            agreed += votes.get(group.named, 0)
            notes += _doubt(group) if vote is None else []
            continue
        moved = _apply(pairing, group, vote)
        lines.append(Note("align.shifted", why=vote.why, pairs_text=pairing.pairs_text(len(moved))))
        notes += _sentences(pairing, group, vote, moved)
    if agreed:
        lines.append(Note("align.names_confirmed", pairs_text=pairing.pairs_text(agreed)))
    return lines, notes


def _groups(pairing: SitePairing) -> list[_Group]:
    members: tuple[dict[Family, dict[int, int]], dict[Family, dict[int, int]]] = (
        defaultdict(dict),
        defaultdict(dict),
    )
    for side, records in enumerate((pairing.reference, pairing.candidate)):
        for number, record in enumerate(records):
            key, at = family(record), place(record.site.path).number
            if key is not None and at is not None and not pairing.ends.get((side, number)):
                members[side][key].setdefault(at, number)
    partners: dict[Family, Counter[Family]] = defaultdict(Counter)
    offsets: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for i, match in pairing.matches.items():
        one, other = pairing.reference[i], pairing.candidate[match.candidate]
        keys = family(one), family(other)
        numbers = place(one.site.path).number, place(other.site.path).number
        if match.way == "mapping" or None in keys or None in numbers:
            continue
        assert keys[0] is not None
        assert keys[1] is not None
        assert numbers[0] is not None
        assert numbers[1] is not None
        partners[keys[0]][keys[1]] += 1
        offsets[keys[0][0], keys[1][0]][numbers[1] - numbers[0]] += 1
    groups: dict[tuple[str, str], _Group] = {}
    for ours, found in partners.items():
        theirs = found.most_common(1)[0][0]
        stems = ours[0], theirs[0]
        if stems not in groups:
            bases = _base(pairing, 0, stems[0], members[0]), _base(pairing, 1, stems[1], members[1])
            groups[stems] = _Group(stems, offsets[stems].most_common(1)[0][0], bases)
        group = groups[stems]
        group.families.append((members[0][ours], members[1][theirs]))
    return list(groups.values())


def _base(pairing: SitePairing, side: int, stem: str, members: dict[Family, dict[int, int]]) -> int | None:
    """The number of a side's first layer, as far as its names tell.

    `embedding, layer_1, layer_2 …` counts from 1; some layers of a file that has no embedding may begin anywhere.
    """
    numbers = {number for key, found in members.items() if key[0] == stem for number in found}
    if 0 in numbers or stem.endswith("."):
        return 0
    gapless = min(numbers) == 1 and max(numbers) == len(numbers)
    records = (pairing.reference, pairing.candidate)[side]
    return 1 if gapless and any(pairing.end(side, n) == "embedding" for n in range(len(records))) else None


def _votes(pairing: SitePairing, group: _Group) -> dict[int, int]:
    """For each offset, how many layers are at their place with it and not with that of the names, or the other way."""
    for measure in (distances, angles):  # a layer that is only scaled is at its place all the same
        votes: Counter[int] = Counter()
        for ours, theirs in group.families:
            votes += _family_votes(pairing, group.named, ours, theirs, measure)
        if votes:
            return dict(votes)
    return {}


def _family_votes(
    pairing: SitePairing, named: int, ours: dict[int, int], theirs: dict[int, int], measure: Measure
) -> Counter[int]:
    sides: list[dict[ContentGroup, list[tuple[int, int]]]] = []
    for side, members in enumerate((ours, theirs)):
        found: dict[ContentGroup, list[tuple[int, int]]] = defaultdict(list)
        for number, at in sorted(members.items()):
            group = pairing.group(side, at)
            if group is not None:
                found[group].append((number, at))
        sides.append(found)
    votes: Counter[int] = Counter()
    for group, mine in sides[0].items():
        yours = sides[1].get(group, [])
        if not yours or max(len(mine), len(yours)) > MOST:
            continue
        clear = _clear(pairing, [at for _, at in mine], [at for _, at in yours], measure)
        for row, column in zip(*np.nonzero(clear), strict=True):
            votes[yours[column][0] - mine[row][0]] += 1
    return votes


def _clear(pairing: SitePairing, mine: list[int], yours: list[int], measure: Measure) -> npt.NDArray[np.bool_]:
    """Which layers of both sides are one, without doubt."""
    ours, theirs = pairing.vectors(0, mine), pairing.vectors(1, yours)
    error = measure(ours, theirs)
    own = measure(ours, ours), measure(theirs, theirs)
    scale = np.minimum(nearest(own[0])[:, None], nearest(own[1])[None, :])
    # Layers that are alike on their own side (an identity, zeros) could be either.
    usable = ~(repeated(own[0]) | ~ours.any(axis=1))[:, None] & ~(repeated(own[1]) | ~theirs.any(axis=1))[None, :]
    found: npt.NDArray[np.bool_] = usable & (error < CLEAR * np.minimum(scale, FARTHEST))
    return found


def _decide(group: _Group, votes: dict[int, int]) -> _Vote | None:
    """Which offset is right; None where neither contents nor numbers tell."""
    for_names = votes.get(group.named, 0)
    others = sorted(((count, offset) for offset, count in votes.items() if offset != group.named), reverse=True)
    if others and (len(others) == 1 or others[0][0] > others[1][0]) and others[0][0] >= OUTVOTED * for_names:
        return _Vote(others[0][1], "content", others[0][0])
    if for_names or all(stem.endswith(".") for stem in group.stems):  # a ModuleList counts from 0 on both sides
        return _Vote(group.named, "names")
    cover = covers(*max(group.families, key=lambda sides: min(map(len, sides))))
    most = max(cover.values())
    fitting = [offset for offset, count in cover.items() if count == most]
    if group.named in fitting:
        one, other = group.bases
        if group.named:  # which the numbers have said already
            return _Vote(group.named, "names")
        if one is None or other is None:
            return _Vote(group.named, "names") if fitting == [group.named] else None
        return _Vote(other - one, "names" if other - one == group.named else "numbering")
    return _Vote(fitting[0], "numbering") if len(fitting) == 1 else None


def _apply(pairing: SitePairing, group: _Group, vote: _Vote) -> list[int]:
    """Pairs the families with the offset that was found; gives back what is paired otherwise than before."""
    before = {i: match.candidate for i, match in pairing.matches.items()}
    wanted = {
        i: theirs[number + vote.offset]
        for ours, theirs in group.families
        for number, i in ours.items()
        if number + vote.offset in theirs
    }
    loose = {i for ours, _ in group.families for i in ours.values()} | set(wanted)
    loose |= {pairing.taken[j] for j in wanted.values() if j in pairing.taken}
    for i in loose:
        if i in pairing.matches and pairing.matches[i].way != "mapping":
            pairing.part(i)
    moved = []
    for i, j in sorted(wanted.items()):
        if i not in pairing.matches and j not in pairing.taken:
            pairing.pair(i, j, vote.why)
            moved += [i] if before.get(i) != j else []
    return moved


def _sentences(pairing: SitePairing, group: _Group, vote: _Vote, moved: list[int]) -> list[str]:
    if not moved:
        return []
    stem, how = f"{group.stems[0]}*", f"{vote.offset:+d}"
    one, other = pairing.reference[moved[0]], pairing.candidate[pairing.matches[moved[0]].candidate]
    example = Note("align.paired_with", one=one.site, other=other.site)
    if vote.why == "numbering":
        return [
            Note(
                "align.renumbered_unproven",
                stem=stem,
                how=how,
                example=example,
            )
        ]
    text = Note(
        "align.renumbered",
        stem=stem,
        how=how,
        count=vote.layers,
        example=example,
    )
    return [text, *_identities(pairing, moved)]


def _identities(pairing: SitePairing, moved: list[int]) -> list[str]:
    """At most one example of what is the same to the bit, and is called otherwise."""
    for i in moved:
        one, other = pairing.reference[i], pairing.candidate[pairing.matches[i].candidate]
        if one.sketch and (one.fingerprint, one.dtype) == (other.fingerprint, other.dtype):
            return [
                Note(
                    "align.same_bits_other_name",
                    candidate=other.site,
                    reference=one.site,
                )
            ]
    return []


def _doubt(group: _Group) -> list[str]:
    return [
        Note(
            "align.uncertain_names",
            stem=f"{group.stems[0]}*",
        )
    ]
