"""Of which parts of the other side a tensor is made: its rows or columns, found again one run after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from layertap.weights.hashes import Hashes

CANDIDATES = 16
"""Places at which a row is looked for, where many rows are equal."""
PIECES = 1 << 14
"""Runs after which a tensor counts as mixed, not composed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRun:
    """Rows (or columns) that follow each other on both sides."""

    owner: str
    """The other side's tensor."""
    across: bool
    """Whether they are columns there."""
    start: int
    length: int
    total: int
    """How many the other side's tensor has in all."""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.length == self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A tensor as runs of others, in order."""

    across: bool
    """Whether these are its columns."""
    runs: tuple[RowRun, ...]

    @property
    def owners(self) -> tuple[str, ...]:
        """Each once, in order."""
        return tuple(dict.fromkeys(run.owner for run in self.runs))

    @property
    def in_order(self) -> bool:
        """Whether the parts of each source follow each other as they do there."""
        last: dict[str, int] = {}
        for run in self.runs:
            if run.start < last.get(run.owner, 0):
                return False
            last[run.owner] = run.start + run.length
        return True

    @property
    def transposed(self) -> bool:
        return any(run.across != self.across for run in self.runs)


class RowIndex:
    """All rows of some tensors by number, and all columns if `across`: twice the work, needed for few tensors."""

    def __init__(self, parts: Mapping[str, Hashes], *, across: bool) -> None:
        self._sequences: list[tuple[str, bool, Any]] = []
        for name, found in parts.items():
            self._sequences += [(name, turned, numbers) for turned, numbers in _ways(found, across)]
        self._across = across
        sizes = [len(sequence) for _, _, sequence in self._sequences]
        numbers = np.concatenate([s for _, _, s in self._sequences]) if sizes else np.empty(0, np.uint64)
        order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[order]
        self._which = np.repeat(np.arange(len(sizes)), sizes)[order]
        starts = np.repeat(np.cumsum([0, *sizes[:-1]]) if sizes else np.empty(0, np.int64), sizes)
        self._at = (np.arange(len(numbers)) - starts)[order]

    def compose(self, found: Hashes, prefer: Collection[str] = ()) -> Composition | None:
        """The tensor with these numbers as runs of the indexed ones; None where some of it is not there."""
        for across, sequence in _ways(found, self._across):
            runs = self._runs(sequence, prefer)
            if runs:
                return Composition(across=across, runs=runs)
        return None

    def share(self, found: Hashes) -> float:
        """The share of the tensor's rows that are somewhere among the indexed ones."""
        return float(np.isin(found.rows, self._numbers).mean()) if len(found.rows) else 0.0

    def _runs(self, sequence: Any, prefer: Collection[str]) -> tuple[RowRun, ...]:
        if not len(sequence):
            return ()
        left = np.searchsorted(self._numbers, sequence, "left")
        right = np.searchsorted(self._numbers, sequence, "right")
        if (left == right).any():
            return ()
        runs: list[RowRun] = []
        used: set[int] = set()
        at = 0
        while at < len(sequence):
            best: tuple[tuple[bool, bool, bool, int], int, int, int] | None = None
            for place in self._places(left[at], right[at], prefer):
                which, start = int(self._which[place]), int(self._at[place])
                name, _, there = self._sequences[which]
                length = _agree(sequence[at:], there[start:])
                whole = start == 0 and length == len(there)
                rank = ((whole, which not in used, name in prefer, length), which, start, length)
                best = rank if best is None or rank[0] > best[0] else best
            if best is None or len(runs) >= PIECES:
                return ()
            _, which, start, length = best
            used.add(which)
            name, across, there = self._sequences[which]
            runs.append(RowRun(owner=name, across=across, start=start, length=length, total=len(there)))
            at += length
        # One row of the other side many times over is no composition: zeros, or a fill value, are everywhere.
        return tuple(runs) if len({(run.owner, run.across, run.start) for run in runs}) == len(runs) else ()

    def _places(self, left: int, right: int, prefer: Collection[str]) -> list[int]:
        places = list(range(int(left), int(right)))
        if len(places) > CANDIDATES:
            # Among many equal rows: those that begin a tensor, and those of the tensors that names suggest.
            likely = [p for p in places if self._at[p] == 0 or self._sequences[self._which[p]][0] in prefer]
            places = (likely or places)[: 8 * CANDIDATES]
        return places


def _ways(found: Hashes, across: bool) -> Iterator[tuple[bool, Any]]:
    rows, lines = (found.row_values, found.line_values) if across else (found.rows, found.lines)
    yield False, rows
    if lines is not rows:
        yield False, lines
    if across and len(found.columns):
        yield True, found.columns


def _agree(a: Any, b: Any) -> int:
    """For how long two sequences are equal."""
    size = min(len(a), len(b))
    at, step = 0, 64
    while at < size:
        end = min(at + step, size)
        apart = np.flatnonzero(a[at:end] != b[at:end])
        if len(apart):
            return at + int(apart[0])
        at, step = end, 4 * step
    return size
