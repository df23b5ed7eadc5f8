"""How much of a tensor is kept: its statistics, the tensor, or what a reduction makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch

from layertap.errors import BadArgument
from layertap.measure import histogram
from layertap.messages import tr
from layertap.select import Choice, Selection, select
from layertap.select.tree import Model
from layertap.site import ROLES

Reduction = Callable[[torch.Tensor], torch.Tensor]
Index = int | slice | EllipsisType


@dataclass(frozen=True, slots=True)
class Level:
    """What is kept of a tensor besides its statistics, which are always there."""

    name: str
    reduce: Reduction | None = None

    @property
    def keeps(self) -> bool:
        return self is not STATS


STATS = Level("stats")
TENSOR = Level("tensor")
HISTOGRAM = Level(histogram.NAME, histogram.reduce)
_NAMED = {level.name: level for level in (STATS, TENSOR, HISTOGRAM)}


def parse_level(level: Any) -> Level:
    """Reads one level: `"stats"`, `"tensor"`, `"histogram"`, a slice, or a function from tensor to tensor.

    >>> parse_level("[:, -1]").reduce(torch.arange(6).reshape(2, 3))
    tensor([2, 5])
    >>> parse_level(slice(0, 2)).name
    '[0:2]'
    """
    if isinstance(level, Level):
        return level
    if isinstance(level, str) and level in _NAMED:
        return _NAMED[level]
    if isinstance(level, str) and level.startswith("[") and level.endswith("]"):
        return _sliced(tuple(_parse_index(part.strip(), level) for part in level[1:-1].split(",")))
    if isinstance(level, (int, slice, tuple, EllipsisType)) and not isinstance(level, bool):
        return _sliced(level if isinstance(level, tuple) else (level,))
    if callable(level):
        name = getattr(level, "__name__", type(level).__name__)
        return Level(f"{name}()" if name in _NAMED else name, level)  # the bare names are those of the levels here
    raise BadArgument(tr("keep.level", level=level))


class Keeper:
    """Which level each site has, from what the user said (one level, or one for each pattern; the last match wins)."""

    def __init__(self, model: Model, keep: Any) -> None:
        self._rules: list[tuple[Selection | None, Level]] = []
        if isinstance(keep, Mapping):
            # A bare pattern names a module and so means every role that is recorded there.
            self._rules += [(select(model, key, what=ROLES), parse_level(level)) for key, level in keep.items()]
        else:
            self._rules.append((None, parse_level(keep)))
        self._known: dict[tuple[str, str, str], Level] = {}

    def rules(self, path: str) -> list[tuple[Choice | None, Level]]:
        """What was said about one module: (for which of its roles and leaves, or None for all; level)."""
        found = [(rule, level) for rule, level in self._rules if rule is None or path in rule]
        return [(None if rule is None else rule.get(path), level) for rule, level in found]

    def level(self, path: str, role: str, leaf: str) -> Level:
        key = (path, role, leaf)
        if key not in self._known:
            fitting = [lv for rule, lv in self._rules if rule is None or rule.wants(path, role, leaf)]
            self._known[key] = fitting[-1] if fitting else STATS
        return self._known[key]


def _sliced(index: tuple[Any, ...]) -> Level:
    for part in index:
        if not isinstance(part, (int, slice, EllipsisType)) or isinstance(part, bool):
            raise BadArgument(tr("keep.slice", index=index, part=part))
    text = "[" + ", ".join(map(_index_text, index)) + "]"
    return Level(text, lambda tensor: tensor[index])


def _index_text(part: Index) -> str:
    if isinstance(part, slice):
        ends = f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"
        return ends if part.step is None else f"{ends}:{part.step}"
    return "..." if part is Ellipsis else str(part)


def _parse_index(part: str, whole: str) -> Index:
    if part == "...":
        return Ellipsis
    if not re.fullmatch(r"-?\d+|(-?\d+)?:(-?\d+)?(:(-?\d+)?)?", part):
        raise BadArgument(tr("keep.index", whole=whole, part=part))
    if ":" not in part:
        return int(part)
    return slice(*(int(end) if end else None for end in part.split(":")))
