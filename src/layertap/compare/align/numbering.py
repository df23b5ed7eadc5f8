"""Schemes that number the same layers differently, at the border between recorded files and module paths.

embedding, layer_1 … layer_62               files that count the embedding as 0
layer_0 … layer_61, final_norm              files that count decoder layers
model.embed_tokens, model.layers.0 … 61, model.norm
hidden_states.0 … 62                        transformers: the embedding, 61 layers, the last after the final norm
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from layertap.compare.align.names import PREFIXES, WRAPPERS
from layertap.compare.align.site_pairing import SitePairing, place
from layertap.result import Note
from layertap.site import Record

Group = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One numbered family of one side."""

    stem: str
    members: dict[int, int]
    """Number → where it is on the pairing."""
    embedding: int | None
    """The side's embedding, if it was recorded under a name of its own."""
    final_norm: int | None = None
    """Likewise its final norm."""

    @property
    def first(self) -> int:
        return min(self.members)

    @property
    def states(self) -> bool:
        """Whether it is what transformers calls `hidden_states`."""
        return self.stem.rstrip("._").rpartition(".")[2].endswith("hidden_states")

    @property
    def gapless(self) -> bool:
        return max(self.members) - self.first + 1 == len(self.members)

    @property
    def base(self) -> int | None:
        """The number of the first layer, as far as the names tell it."""
        if 0 in self.members or self.stem.endswith("."):  # a ModuleList counts from 0, whatever was recorded of it
            return 0
        return 1 if self.embedding is not None else None


def pair_by_numbering(pairing: SitePairing) -> list[str]:
    """Pairs numbered families whose names differ, and the ends of the model."""
    lines: list[str] = []
    ends = _pair_ends(pairing)
    if ends:
        lines.append(Note("align.numbering_ends", pairs_text=pairing.pairs_text(len(ends)), ends=", ".join(ends)))
    ours, theirs = _schemes(pairing.reference), _schemes(pairing.candidate)
    for group in ours:
        for one, other in _partners(ours[group], theirs.get(group, [])):
            line = _pair_schemes(pairing, one, other)
            if line:
                lines.append(Note("align.step", way="numbering", pairs=line))
    return lines or [Note("align.step", way="numbering", pairs=pairing.pairs_text(0))]


def _pair_schemes(pairing: SitePairing, one: Scheme, other: Scheme) -> str:
    if any(i in pairing.matches for i in one.members.values()) or any(
        j in pairing.taken for j in other.members.values()
    ):
        return ""  # names have paired them already; whether they are right is checked after
    if one.states != other.states:
        return _pair_states(pairing, one, other)
    found = _offset(one, other)
    if found is None:
        return ""
    offset, why, counted = found
    pairs = [
        (i, other.members[number + offset]) for number, i in one.members.items() if number + offset in other.members
    ]
    for i, j in pairs:
        pairing.pair(i, j, "numbering")
    # One side counts the embedding among the layers: its 0 is what the other calls by name.
    if counted == "reference" and other.embedding is not None and other.embedding not in pairing.taken:
        pairs.append((one.members[0], other.embedding))
        pairing.pair(*pairs[-1], "numbering")
    elif counted == "candidate" and one.embedding is not None and one.embedding not in pairing.matches:
        pairs.append((one.embedding, other.members[0]))
        pairing.pair(*pairs[-1], "numbering")
    if not pairs:
        return ""
    i, j = pairs[0]
    return Note(
        "align.numbering_pairs",
        pairs_text=pairing.pairs_text(len(pairs)),
        site=pairing.reference[i].site,
        site2=pairing.candidate[j].site,
        why=why,
    )


def _pair_states(pairing: SitePairing, one: Scheme, other: Scheme) -> str:
    """`hidden_states` against layers: with one entry more than there are layers it is transformers' way to count.

    Its first is then the embedding, and its last comes after the final norm: it is no layer's output.
    """
    side = 0 if one.states else 1
    states, layers = (one, other) if one.states else (other, one)
    base = layers.base if layers.base is not None else layers.first
    count = max(layers.members) - base + 1
    if not states.gapless or states.first != 0 or len(states.members) not in (count, count + 1):
        return ""  # contents may tell
    more = len(states.members) == count + 1
    pairs = [(states.members[number - base + more], place) for number, place in layers.members.items()]
    if more:
        last = max(states.members)
        pairing.ends[side, states.members[0]] = "embedding"
        pairing.ends[side, states.members[last]] = "final_norm"
        pairs = [pair for pair in pairs if pair[0] != states.members[last]]
        pairs += [(states.members[0], layers.embedding)] if layers.embedding is not None else []
        norm = layers.final_norm
        pairs += [(states.members[last], norm)] if norm is not None else []
    taken = 0
    for ours, theirs in pairs:
        i, j = (ours, theirs) if one.states else (theirs, ours)
        if i not in pairing.matches and j not in pairing.taken:
            pairing.pair(i, j, "numbering")
            taken += 1
    if not taken:
        return ""
    way = Note("align.states_with_embedding") if more else Note("align.states_by_layer")
    return Note("align.states", pairs=pairing.pairs_text(taken), states=states.stem, layers=layers.stem, way=way)


def _offset(one: Scheme, other: Scheme) -> tuple[int, str, str] | None:
    """What is added to the reference's number to get the candidate's, why, and the side that counts its embedding.

    None when the names do not tell.
    """
    gapless = one.gapless and other.gapless
    if gapless and one.first == other.first == 0:
        if len(one.members) == len(other.members) + 1 and one.embedding is None and other.embedding is not None:
            return -1, Note("align.reference_counts_embedding"), "reference"
        if len(other.members) == len(one.members) + 1 and other.embedding is None and one.embedding is not None:
            return 1, Note("align.candidate_counts_embedding"), "candidate"
    if gapless and len(one.members) == len(other.members) > 1:
        return other.first - one.first, Note("align.numbers_from", first=one.first, first2=other.first), ""
    if one.base is None or other.base is None:
        cover = covers(one.members, other.members)
        best = [offset for offset, count in cover.items() if count == max(cover.values())]
        if len(best) == 1 and cover[best[0]] == min(len(one.members), len(other.members)) > 1:
            return best[0], Note("align.only_fit"), ""
        return None
    return other.base - one.base, Note("align.first_layers", base=one.base, base2=other.base), ""


def covers(ours: Collection[int], theirs: Collection[int]) -> dict[int, int]:
    """For each offset, how many of the reference's numbers have a partner among the candidate's.

    >>> covers([0, 1, 2], [1, 2, 3])
    {-1: 1, 0: 2, 1: 3, 2: 2, 3: 1}
    """
    return dict(sorted(Counter(there - here for here in ours for there in theirs).items()))


def _partners(ours: list[Scheme], theirs: list[Scheme]) -> list[tuple[Scheme, Scheme]]:
    """Which family is which: the only ones of their kind, or those whose stems end alike."""
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    by_stem: dict[str, list[Scheme]] = defaultdict(list)
    for scheme in theirs:
        by_stem[_bare(scheme.stem)].append(scheme)
    names = [_bare(scheme.stem) for scheme in ours]
    return [
        (scheme, by_stem[name][0])
        for scheme, name in zip(ours, names, strict=True)
        if names.count(name) == 1 and len(by_stem[name]) == 1
    ]


def _bare(stem: str) -> str:
    return ".".join(part for part in stem.split(".") if part not in (*PREFIXES, *WRAPPERS))


def _schemes(records: Sequence[Record]) -> dict[Group, list[Scheme]]:
    found: dict[Group, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    ends: dict[tuple[str, str, int], int] = {}
    for number, record in enumerate(records):
        where, site = place(record.site.path), record.site
        leaf = "" if site.leaf == "0" else site.leaf
        if where.end and not leaf:
            ends.setdefault((where.end, site.role, site.call), number)
        if where.number is not None:
            found[where.rest, site.role, leaf, site.call][where.stem].setdefault(where.number, number)
    return {
        group: [
            Scheme(
                stem=stem,
                members=members,
                embedding=None if group[0] else ends.get(("embedding", group[1], group[3])),
                final_norm=None if group[0] else ends.get(("final_norm", group[1], group[3])),
            )
            for stem, members in stems.items()
        ]
        for group, stems in found.items()
    }


def _pair_ends(pairing: SitePairing) -> list[str]:
    """Embedding with embedding, final norm with final norm, head with head, where there is one of each left."""
    notes: list[str] = []
    keys: list[dict[tuple[str, str, str, int], list[int]]] = []
    for records, left in zip((pairing.reference, pairing.candidate), pairing.left(), strict=True):
        found: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
        for number in left:
            site = records[number].site
            if end := place(site.path).end:
                found[end, site.role, "" if site.leaf == "0" else site.leaf, site.call].append(number)
        keys.append(found)
    for key, ours in keys[0].items():
        theirs = keys[1].get(key, [])
        if len(ours) == len(theirs) == 1:
            pairing.pair(ours[0], theirs[0], "numbering")
            notes.append(Note("align.as", one=pairing.reference[ours[0]].site, other=pairing.candidate[theirs[0]].site))
    return notes
