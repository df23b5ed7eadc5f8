"""Pairs of records that are not in memory: where they lie on both sides, and which are known to be bit-identical."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from layertap.compare.align.site_pairing import Match
from layertap.compare.result import Pair
from layertap.judge.depth import first_number
from layertap.site import Record, Site
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
        return (pair for pair, _ in self.marked())

    def marked(self) -> Iterator[tuple[Pair, bool]]:
        """Each pair, and whether it is known to be bit-identical; then its records come without their sketches."""
        for begin in range(0, len(self), BLOCK):
            part = self._part(slice(begin, begin + BLOCK))
            same = part.identical()
            sides: list[list[Record]] = [
                run.records_at(rows, sketches=not same.all()) for run, rows in zip(part._runs, part._rows, strict=True)
            ]
            for one, other, number, equal in zip(*sides, part._which.tolist(), same.tolist(), strict=True):
                match = self._matches[number]
                yield Pair(reference=one, candidate=other, rung=match.way, layout=match.layout), equal

    def identical(self) -> npt.NDArray[np.bool_]:
        """For each pair, whether fingerprints, dtypes and shapes say that it is bit-identical; False: not known."""
        plain = np.array([match.layout is None for match in self._matches], np.bool_)
        same = self._runs[0].index.same(self._rows[0], self._runs[1].index, self._rows[1])
        return same & plain[self._which] if len(self) else same

    def same_shapes(self) -> npt.NDArray[np.bool_]:
        """For each pair, whether both sides are known to be of one shape."""
        return self._runs[0].index.same_shapes(self._rows[0], self._runs[1].index, self._rows[1])

    def values(self, side: int, name: str) -> npt.NDArray[Any]:
        """A column of the index of one side, for each pair."""
        return self._runs[side].index.values(name, self._rows[side])

    def sites(self, side: int) -> tuple[Site, ...]:
        """The sites of one side, by the numbers that `values(side, "site")` gives."""
        return self._runs[side].index.sites

    def depths(self) -> npt.NDArray[np.int64]:
        """How many layers lie above each pair, as `depth` has it: by the path's first number, or the order."""
        first = [first_number(site.path) for site in self.sites(0)]
        numbers = np.array([-1 if number is None else number for number in first], np.int64)
        named = numbers[self.values(0, "site")] if len(self) else np.empty(0, np.int64)
        found: npt.NDArray[np.int64] = np.where(named < 0, self.values(0, "order"), named)
        return found

    def columns(self, side: int, names: Sequence[str]) -> Any:
        """Columns of one side's records, for each pair, as an arrow table."""
        return self._runs[side].columns_at(self._rows[side], names)

    @property
    def matches(self) -> tuple[Sequence[Match], npt.NDArray[np.int32]]:
        """How sites were paired, and for each pair the number of its match."""
        return self._matches, self._which

    def where(self, chosen: npt.NDArray[np.bool_]) -> Pairs:
        """Those of the pairs that are chosen."""
        ours, theirs = self._rows
        return Pairs(self._runs, (ours[chosen], theirs[chosen]), self._matches, self._which[chosen])

    def named(self) -> Iterator[tuple[Site, str]]:
        """The sites of both sides, and their classes: those of the first pair of each match."""
        _, first = np.unique(self._which, return_index=True)
        chosen = np.zeros(len(self), np.bool_)
        chosen[first] = True
        pairs = self.where(chosen)
        for side in (0, 1):
            sites = pairs.sites(side)
            kinds = pairs.columns(side, ("kind",)).column("kind").to_pylist()
            yield from zip((sites[code] for code in pairs.values(side, "site").tolist()), kinds, strict=True)

    def only(self, wanted: Iterable[str]) -> Pairs:
        """The pairs of which one side is called so."""
        names = set(wanted)
        keep = np.zeros(len(self), np.bool_)
        for run, rows in zip(self._runs, self._rows, strict=True):
            named = np.array([str(site) in names for site in run.index.sites], np.bool_)
            keep |= named[run.index.values("site", rows)] if len(rows) else keep
        return self.where(keep)

    def _part(self, part: slice) -> Pairs:
        ours, theirs = self._rows
        return Pairs(self._runs, (ours[part], theirs[part]), self._matches, self._which[part])
