"""What every way of pairing works on: one record for each site of either side, and which is paired with which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from layertap.compare.align.layout import AxisLayout
from layertap.result import Note
from layertap.site import Record

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The candidate that a site of the reference is paired with."""

    candidate: int
    way: str
    """Which way of pairing found it."""
    layout: AxisLayout | None = None


@dataclass(frozen=True, slots=True)
class View:
    """How a record can be compared with others by content."""

    group: tuple[str, int]
    """Only views of one group can be compared: how they were made, and how many elements they represent."""
    source: bytes | Vector
    """A sketch, or some of the elements."""

    @property
    def vector(self) -> Vector:
        return np.frombuffer(self.source, "<f4").astype(np.float64) if isinstance(self.source, bytes) else self.source


@dataclass(slots=True)
class SitePairing:
    """Sites by their number in the order of execution. Pairs are made, and some are unmade where contents object."""

    reference: Sequence[Record]
    candidate: Sequence[Record]
    moments: tuple[Sequence[int], Sequence[int]]
    """From which pair of moments each record of the reference, and of the candidate, comes."""
    views: tuple[dict[int, View], dict[int, View]]
    """What is known of the records' contents, on either side."""
    ends: dict[tuple[int, int], str] = field(default_factory=dict)
    """(side, number) → `embedding` or `final_norm`, where a numbered name represents an end of the model."""
    matches: dict[int, Match] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """Candidate → reference, the way back."""

    def pair(self, i: int, j: int, way: str, layout: AxisLayout | None = None) -> None:
        self.matches[i] = Match(candidate=j, way=way, layout=layout)
        self.taken[j] = i

    def part(self, i: int) -> None:
        """Takes a pair apart."""
        del self.taken[self.matches.pop(i).candidate]

    def group(self, side: int, number: int) -> ContentGroup | None:
        """What a record could be mistaken for: moment, role and kind of view. None where its content is not known."""
        view = self.views[side].get(number)
        if view is None:
            return None
        record = (self.reference, self.candidate)[side][number]
        return self.moments[side][number], record.site.role, view.group

    def vectors(self, side: int, numbers: Sequence[int]) -> npt.NDArray[np.float64]:
        """The contents of some records of one group, a row each."""
        return np.stack([self.views[side][number].vector for number in numbers])

    def end(self, side: int, number: int) -> str:
        """Which end of the model a record represents, or the empty string."""
        record = (self.reference, self.candidate)[side][number]
        return self.ends.get((side, number)) or place(record.site.path).end

    def left(self) -> tuple[list[int], list[int]]:
        """What is unmatched on both sides."""
        return (
            [i for i in range(len(self.reference)) if i not in self.matches],
            [j for j in range(len(self.candidate)) if j not in self.taken],
        )

    @staticmethod
    def pairs_text(count: int) -> str:
        return Note("align.one_pair") if count == 1 else Note("align.pairs", count=count)


ContentGroup = tuple[int, str, tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePlace:
    """What a path says about where it stands: in a numbered family, or at one of the ends of a model.

    >>> place("model.layers.3.mlp")
    ModulePlace(stem='model.layers.', number=3, rest='.mlp', end='')
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
    **dict.fromkeys(
        ("final_norm", "norm", "ln_f", "norm_f", "final_layernorm", "final_layer_norm", "last_hidden_state"),
        "final_norm",
    ),
    **dict.fromkeys(("lm_head", "logits", "embed_out"), "head"),
}


@lru_cache(maxsize=1 << 16)
def place(path: str) -> ModulePlace:
    """Reads a path. The first number counts: experts and heads inside a layer belong to the rest."""
    path = re.sub(r"_outputs?$", "", path)
    found = _NUMBER.search(path) or _TRAILING.search(path)
    if found is None:
        return ModulePlace(stem=path, number=None, rest="", end=_ENDS.get(path.rpartition(".")[2], ""))
    return ModulePlace(stem=path[: found.start()], number=int(found[0]), rest=path[found.end() :], end="")


Family = tuple[str, str, str, str, int]


def family(record: Record) -> Family | None:
    """What a numbered site has in common with the same site of the other layers."""
    where = place(record.site.path)
    if where.number is None:
        return None
    return where.stem, where.rest, record.site.role, record.site.leaf, record.site.call
