"""Pairs of records that are not in memory: where they lie on both sides, and which are known to be bit-identical."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from layertap.compare.align.board import Match
from layertap.compare.result import Pair
from layertap.site import Record
from layertap.store import Run
from layertap.store.index import Rows

BLOCK = 2048
"""Pairs that are in memory at a time: as many records as lie together on disk."""


class Pairs(Sequence[Pair]):
    """The pairs of an alignment, read from both runs as they are asked for, in the reference's order of execution."""

    def __init__(
        self, runs: tuple[Run, Run], rows: tuple[Rows, Rows], matches: Sequence[Match], which: npt.NDArray[np.int32]
    ) -> None:
        self._runs = runs
        self._rows = rows
        self._matches = matches
        self._which = which
        """For each pair the number of its match."""

    def __len__(self) -> int:
        return len(self._which)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Pairs: ...
    def __getitem__(self, index: int | slice) -> Pair | Pairs:
        if isinstance(index, slice):
            return self._part(index)
        place = range(len(self))[index]
        return next(iter(self._part(slice(place, place + 1))))

    def __iter__(self) -> Iterator[Pair]:
        return (pair for pair, _ in self.told())

    def told(self) -> Iterator[tuple[Pair, bool]]:
        """Each pair, and whether it is known to be bit-identical; then its records come without their sketches."""
        for begin in range(0, len(self), BLOCK):
            part = self._part(slice(begin, begin + BLOCK))
            same = part.identical()
            sides: list[list[Record]] = [
                run.records_at(rows, sketches=not same.all()) for run, rows in zip(part._runs, part._rows, strict=True)
            ]
            for one, other, number, equal in zip(*sides, part._which.tolist(), same.tolist(), strict=True):
                match = self._matches[number]
                yield Pair(reference=one, candidate=other, rung=match.rung, layout=match.layout), equal

    def identical(self) -> npt.NDArray[np.bool_]:
        """For each pair, whether fingerprints, dtypes and shapes say that it is bit-identical; False: not known."""
        plain = np.array([match.layout is None for match in self._matches], np.bool_)
        same = self._runs[0].index.same(self._rows[0], self._runs[1].index, self._rows[1])
        return same & plain[self._which] if len(self) else same

    def named(self) -> Iterator[tuple[Record, Record]]:
        """The first pair of each match: all sites and kinds that there are."""
        _, first = np.unique(self._which, return_index=True)
        for place in np.sort(first).tolist():
            pair = self[place]
            yield pair.reference, pair.candidate

    def only(self, wanted: Iterable[str]) -> Pairs:
        """The pairs of which one side is called so."""
        names = set(wanted)
        keep = np.zeros(len(self), np.bool_)
        for run, rows in zip(self._runs, self._rows, strict=True):
            named = np.array([str(site) in names for site in run.index.sites], np.bool_)
            keep |= named[run.index.values("site", rows)] if len(rows) else keep
        ours, theirs = self._rows
        return Pairs(self._runs, (ours[keep], theirs[keep]), self._matches, self._which[keep])

    def _part(self, part: slice) -> Pairs:
        ours, theirs = self._rows
        return Pairs(self._runs, (ours[part], theirs[part]), self._matches, self._which[part])
