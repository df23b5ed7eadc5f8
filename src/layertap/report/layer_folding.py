"""Repeated layers of a site table: which rows belong to one layer, and which layers stand together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Generic, Protocol, TypeVar

FEW = 3
"""Fewer layers than this are not worth a strip."""
_LAYER = re.compile(r"(?P<stem>(?:[^.]*\.)*?)(?P<number>0|[1-9][0-9]*)(?=\.|$)")


class HasPath(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...


Entry = TypeVar("Entry", bound=HasPath)


@dataclass(frozen=True, slots=True)
class Layer(Generic[Entry]):
    """The rows of one layer, in order of execution."""

    path: str
    number: int
    """Which layer of the site table it is, so that a layer that comes twice has two names."""
    entries: tuple[Entry, ...]

    @property
    def kind(self) -> str:
        """The class of the layer's own module, where it has a row."""
        return next((entry.kind for entry in self.entries if entry.path == self.path), "")


@dataclass(frozen=True, slots=True)
class Stretch(Generic[Entry]):
    """Either rows that stand alone, or layers that follow one another."""

    loose: tuple[Entry, ...] = ()
    layers: tuple[Layer[Entry], ...] = ()


def folded(entries: Sequence[Entry]) -> list[Stretch[Entry]]:
    """The rows in their order, cut where repeated layers begin and end."""
    numbers = count()
    found: list[Stretch[Entry]] = []
    for stem, run in groupby(entries, key=lambda entry: layer_of(entry.path)[0]):
        rows = tuple(run)
        if stem:
            layers = tuple(
                Layer(path, next(numbers), tuple(inside))
                for path, inside in groupby(rows, key=lambda entry: layer_of(entry.path)[1])
            )
            if len(layers) >= FEW:
                found.append(Stretch(layers=layers))
                continue
        if found and found[-1].loose:
            rows = found.pop().loose + rows
        found.append(Stretch(loose=rows))
    return found


def layer_of(path: str) -> tuple[str, str]:
    """The list that a module is in, and the path of its layer there; empty for a module in no list.

    >>> layer_of("model.layers.3.mlp.experts.7"), layer_of("model.norm")
    (('model.layers.', 'model.layers.3'), ('', ''))
    """
    match = _LAYER.match(path)
    return (match["stem"] or ".", match[0]) if match else ("", "")
