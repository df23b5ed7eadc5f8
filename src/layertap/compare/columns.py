"""The rows of a report, held by columns: a million of them take 60 MB where a million objects take 300."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from layertap.compare.result import Row
from layertap.measure.pair.difference import Difference
from layertap.result import Verdict
from layertap.store.schema import maker

_NAMES = ("site", "candidate_site", "kind", "rung")
_JUDGEMENT = ("verdict", "why", "estimated", "floor_kind")
_WHOLE = ("order", "step")
_REAL = ("error", "floor", "ratio", "jump")
_row = maker(Row)
_FIELDS = tuple(Row.__dataclass_fields__)


class RowColumns(Sequence[Row]):
    """Reads like a tuple of rows. Each row is made when it is asked for."""

    def __init__(self) -> None:
        self._numbers = {name: array("q") for name in _WHOLE} | {name: array("d") for name in _REAL}
        self._codes = array("i"), array("i")
        """For each row the places of its names and of its judgement, which stand in `_texts` once."""
        self._texts: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]] = ([], [])
        self._known: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
        self._differences: dict[int, Difference] = {}

    def add(
        self, names: tuple[Any, ...], judgement: tuple[Any, ...], difference: Difference | None, *numbers: Any
    ) -> None:
        """Appends a row: site, candidate site, kind, way of pairing; verdict, why, estimated, kind of floor; a
        difference; order, step, error, floor, ratio and jump."""
        # Sites by identity: their hash is that of their text, which is made anew each time. `_texts` keeps them alive.
        self._codes[0].append(self._code(0, (id(names[0]), id(names[1]), names[2], names[3]), names))
        self._codes[1].append(self._code(1, judgement, judgement))
        if difference is not None:
            self._differences[len(self._codes[0]) - 1] = difference
        for column, number in zip(self._numbers.values(), numbers, strict=True):
            column.append(number)

    def judge(self, place: int, verdict: Verdict, why: str) -> None:
        """Puts another verdict in place of that of a row."""
        judgement = verdict, why, *self._texts[1][self._codes[1][place]][2:]
        self._codes[1][place] = self._code(1, judgement, judgement)

    def column(self, name: str) -> Iterable[Any]:
        """One field of all rows, without the rows."""
        if name in self._numbers:
            return self._numbers[name]
        if name == "difference":
            return map(self._differences.get, range(len(self)))
        side, names = (0, _NAMES) if name in _NAMES else (1, _JUDGEMENT)
        values = [text[names.index(name)] for text in self._texts[side]]
        return map(values.__getitem__, self._codes[side])

    def __len__(self) -> int:
        return len(self._codes[0])

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else tuple(map(self._at, places))

    def __iter__(self) -> Iterator[Row]:
        columns = (self.column(name) for name in _FIELDS)
        return map(_row, *columns)

    def __reversed__(self) -> Iterator[Row]:
        return map(self._at, reversed(range(len(self))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (RowColumns, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == row for one, row in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __add__(self, other: Iterable[Row]) -> tuple[Row, ...]:
        return (*self, *other)

    def __radd__(self, other: Iterable[Row]) -> tuple[Row, ...]:
        return (*other, *self)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": ({}, {})}  # which goes by identities of this process

    def _at(self, place: int) -> Row:
        names = self._texts[0][self._codes[0][place]]
        judgement = self._texts[1][self._codes[1][place]]
        values = dict(zip((*_NAMES, *_JUDGEMENT), (*names, *judgement), strict=True))
        values |= {name: column[place] for name, column in self._numbers.items()}
        return Row(difference=self._differences.get(place), **values)

    def _code(self, side: int, key: Any, text: tuple[Any, ...]) -> int:
        known = self._known[side]
        code = known.get(key)
        if code is None:
            code = known[key] = len(self._texts[side])
            self._texts[side].append(text)
        return code


def column(rows: Sequence[Row], name: str) -> Iterable[Any]:
    """One field of all rows, whatever holds them."""
    return rows.column(name) if isinstance(rows, RowColumns) else (getattr(row, name) for row in rows)
