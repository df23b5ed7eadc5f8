"""What the rungs of the ladder work on: one record for each site of either side, and who is paired with whom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from layertap.compare.align.layout import Layout
from layertap.site import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The candidate that a site of the reference is paired with."""

    candidate: int
    rung: str
    layout: Layout | None = None


@dataclass(slots=True)
class Board:
    """Sites by their number in the order of execution. Pairs are made, and by the last rung unmade."""

    reference: Sequence[Record]
    candidate: Sequence[Record]
    moments: tuple[Sequence[int], Sequence[int]]
    """From which pair of moments each record of the reference, and of the candidate, comes."""
    matches: dict[int, Match] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """Candidate → reference, the way back."""

    def pair(self, i: int, j: int, rung: str, layout: Layout | None = None) -> None:
        self.matches[i] = Match(candidate=j, rung=rung, layout=layout)
        self.taken[j] = i

    def part(self, i: int) -> None:
        """Takes a pair apart."""
        del self.taken[self.matches.pop(i).candidate]

    def comparable(self, i: int, j: int) -> bool:
        """Whether the contents of two records can be held against each other."""
        one, other = self.reference[i], self.candidate[j]
        return (
            bool(one.sketch and other.sketch)
            and self.moments[0][i] == self.moments[1][j]
            and compact(one.shape) == compact(other.shape)
        )

    def left(self) -> tuple[list[int], list[int]]:
        """What is unmatched on both sides."""
        return (
            [i for i in range(len(self.reference)) if i not in self.matches],
            [j for j in range(len(self.candidate)) if j not in self.taken],
        )

    @staticmethod
    def pairs_text(count: int) -> str:
        return "1 pair" if count == 1 else f"{count} pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a path says about where it stands: in a numbered family, or at one of the ends of a model.

    >>> place("model.layers.3.mlp")
    Place(stem='model.layers.', number=3, rest='.mlp', end='')
    >>> place("layer_30_output").number, place("model.embed_tokens").end, place("ln_f").end
    (30, 'embedding', 'final_norm')
    """

    stem: str
    number: int | None
    rest: str
    end: str


_NUMBER = re.compile(r"(?:^|(?<=[._]))\d+(?=$|[._])")
_TRAILING = re.compile(r"(?<=[A-Za-z])\d+$")
_ENDS = {
    **dict.fromkeys(
        ("embedding", "embeddings", "embed", "embed_tokens", "wte", "tok_embeddings", "word_embeddings"), "embedding"
    ),
    **dict.fromkeys(("final_norm", "norm", "ln_f", "norm_f", "final_layernorm", "final_layer_norm"), "final_norm"),
    **dict.fromkeys(("lm_head", "logits", "embed_out"), "head"),
}


@lru_cache(maxsize=1 << 16)
def place(path: str) -> Place:
    """Reads a path. The first number counts: experts and heads inside a layer belong to the rest."""
    path = re.sub(r"_outputs?$", "", path)
    found = _NUMBER.search(path) or _TRAILING.search(path)
    if found is None:
        return Place(stem=path, number=None, rest="", end=_ENDS.get(path.rpartition(".")[2], ""))
    return Place(stem=path[: found.start()], number=int(found[0]), rest=path[found.end() :], end="")


Family = tuple[str, str, str, str, int]


def family(record: Record) -> Family | None:
    """What a numbered site has in common with the same site of the other layers."""
    where = place(record.site.path)
    if where.number is None:
        return None
    return where.stem, where.rest, record.site.role, record.site.leaf, record.site.call


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its axes of size 1: elements in C order, and so sketches, do not feel them."""
    return tuple(size for size in shape if size != 1)
