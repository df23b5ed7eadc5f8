"""What an audit measures tensor by tensor, by an engine: here, or by workers that read both sides from their files.

Which tensors are partners is decided here, and so is the search among the rest, which needs all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch

from layertap.engine import Engine, Recipe
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.weights.differences import Differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.same import Same, compare, finite
from layertap.weights.sides import Relation, Sides
from layertap.weights.sources import open_weights

Pair = tuple[Entry, Entry]
Names = tuple[str, str]
Valued = Callable[[Sides, Entry, Entry], Relation | None]

T = TypeVar("T")
_RelationFound = tuple[Relation | None, Differences | None]

TOGETHER = 64
"""Tensors that a task measures at most."""
BYTES = 256 << 20
"""A task ends with the tensor by which it has so many bytes to read."""


class Measuring:
    """The measurements of one audit, by the workers of an engine."""

    def __init__(self, engine: Engine, sides: Sides) -> None:
        for weights in (sides.model, sides.other):
            if not weights.source:
                raise BadArgument(tr("engine.live_weights", name=weights.name))
        self._engine, self._sides = engine, sides

    def same(self, pairs: Sequence[Pair]) -> list[Same]:
        """As `same.compare`, and the bytes that were read move the bar."""
        found: list[Same] = []
        for one in self._map(_same, pairs):
            found += one.found
            self._sides.tick(one.read)
        return found

    def valued(self, pairs: Sequence[Pair], valued: Valued) -> Iterator[Relation | None]:
        """What `valued` finds for each pair; the differences that it had to measure are known here from then on."""
        found: Iterator[_RelationFound] = self._flat(_Valuing(valued).all, pairs)
        for (entry, source), (relation, apart) in zip(pairs, found, strict=True):
            if apart is not None:
                self._sides.keep(entry, source, apart)
            yield relation

    def finite(self, entries: Sequence[Entry]) -> list[bool]:
        """As `same.finite`."""
        return list(self._flat(_finite, [(entry, entry) for entry in entries]))

    def _flat(self, work: Callable[[Sides, Sequence[Names]], list[T]], pairs: Sequence[Pair]) -> Iterator[T]:
        for found in self._map(work, pairs):
            yield from found

    def _map(self, work: Callable[[Sides, Sequence[Names]], T], pairs: Sequence[Pair]) -> Iterator[T]:
        return self._engine.map(work, _batches(pairs), here=self._sides, there=self._recipe, called=_called)

    def _recipe(self) -> Recipe:
        model, other = (weights.source for weights in (self._sides.model, self._sides.other))
        return Recipe(prepare=_open, given=_WeightsGiven(model, other, torch.get_num_threads()))


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Names]]:
    batch: list[Names] = []
    size = 0
    for entry, source in pairs:
        batch.append((entry.name, source.name))
        size += entry.nbytes + source.nbytes
        if len(batch) >= TOGETHER or size >= BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _called(batch: Sequence[Names]) -> str:
    return batch[0][0] if len(batch) == 1 else f"{batch[0][0]} … {batch[-1][0]}"


# What follows runs in a worker.


class _WeightsGiven(NamedTuple):
    model: tuple[str, ...]
    other: tuple[str, ...]
    threads: int


class _SameRead(NamedTuple):
    found: list[Same]
    read: int


def _open(given: _WeightsGiven) -> Sides:
    torch.set_num_threads(given.threads)  # another number may give other bits
    return Sides(_weights(given.model), _weights(given.other), None)


def _weights(source: tuple[str, ...]) -> Weights:
    return open_weights(source[0] if len(source) == 1 else list(source))


def _pairs(sides: Sides, batch: Iterable[Names]) -> list[Pair]:
    return [(sides.model.entries[one], sides.other.entries[other]) for one, other in batch]


def _same(sides: Sides, batch: Sequence[Names]) -> _SameRead:
    read: list[int] = []
    return _SameRead(compare(_pairs(sides, batch), read.append), sum(read))


class _Valuing(NamedTuple):
    valued: Valued

    def all(self, sides: Sides, batch: Sequence[Names]) -> list[_RelationFound]:
        return [
            (self.valued(sides, entry, source), sides.known(entry, source)) for entry, source in _pairs(sides, batch)
        ]


def _finite(sides: Sides, batch: Sequence[Names]) -> list[bool]:
    return finite([sides.model.entries[name] for name, _ in batch], lambda _: None)
