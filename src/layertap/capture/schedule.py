"""When a model is tapped: a rule over steps, epochs and batches that can be printed before it is followed."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr

Due = Callable[[int, "int | None", "int | None"], bool]

_HELP = "schedule.help"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A printable rule: step, epoch and batch → whether to record."""

    text: str
    rule: Due
    by_step: bool = True
    """Whether the step number alone decides."""

    def due(self, step: int, epoch: int | None = None, batch: int | None = None) -> bool:
        return self.rule(step, epoch, batch)

    def plan(self, steps: int = 1000, shown: int = 12) -> str:
        """What the rule makes of the first steps, for people.

        >>> print(parse_schedule("log 2").plan(100))
        log-spaced steps, 2 per decade: 0, 1, 3, 10, 32; 5 of the first 100 steps
        """
        if not self.by_step:
            return tr("schedule.as_they_come", text=self.text)
        found = [step for step in range(steps) if self.due(step)]
        if len(found) == steps:
            return self.text
        named = ", ".join(map(str, found[:shown])) + (", …" if len(found) > shown else "")
        return tr("schedule.first_steps", text=self.text, named=named or "none", count=len(found), steps=steps)

    def __str__(self) -> str:
        return self.text


def parse_schedule(schedule: Any) -> Schedule:
    """Reads a schedule: None (always), n (every n-th step, from 0), steps, a text, a mapping, a predicate.

    >>> print(parse_schedule(10))
    every 10th step
    >>> [step for step in range(9) if parse_schedule([2, 5]).due(step)]
    [2, 5]
    >>> print(parse_schedule("epochs 1,5 and batches 0 or first 2"))
    (epochs 1, 5 and batches 0) or the first 2 steps
    >>> print(parse_schedule({"every": 100, "epochs": [1, 2]}))
    every 100th step and epochs 1, 2
    """
    if schedule is None:
        return Schedule(tr("schedule.every_step"), lambda step, epoch, batch: True)
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, int) and not isinstance(schedule, bool):
        return _every(schedule)
    if isinstance(schedule, range):
        return Schedule(tr("schedule.in_range", schedule=schedule), lambda step, epoch, batch: step in schedule)
    if isinstance(schedule, str):
        return _any([_all([_words(part) for part in re.split(r"\band\b", side)]) for side in _sides(schedule)])
    if isinstance(schedule, Mapping):
        return _all([_rule(str(key), value) for key, value in schedule.items()])
    if callable(schedule):
        return _predicate(schedule)
    if isinstance(schedule, Iterable) and not isinstance(schedule, bytes):
        found = list(schedule)
        if found and all(isinstance(step, int) and not isinstance(step, bool) for step in found):
            return _numbers("steps", found)
        if found:
            return _any([parse_schedule(item) for item in found])
    raise BadArgument(tr("schedule.unknown", schedule=schedule, HELP=tr(_HELP)))


def _sides(text: str) -> list[str]:
    return re.split(r"\bor\b", text)


def _words(text: str) -> Schedule:
    word, _, rest = text.strip().partition(" ")
    return _rule(word, rest.strip())


def _rule(word: str, value: Any) -> Schedule:
    """One rule by its name: the word of a text, or the key of a mapping."""
    if word in ("always", "never") and value in ("", True):
        due = word == "always"
        return Schedule(tr("schedule.every_step") if due else tr("schedule.no_step"), lambda step, epoch, batch: due)
    if word in ("steps", "epochs", "batches"):
        return _numbers(word, _parse_numbers(value))
    if word in ("every", "first", "log"):
        if word == "log" and value in ("", True):
            value = 3
        count = _whole(value)
        if count is not None:
            return {"every": _every, "first": _first, "log": _log}[word](count)
    raise BadArgument(tr("schedule.unknown_rule", rule=f"{word} {value}".strip(), HELP=tr(_HELP)))


def _every(count: int) -> Schedule:
    if count < 1:
        raise BadArgument(tr("schedule.at_least_one", count=count))
    text = tr("schedule.every_step") if count == 1 else tr("schedule.every_nth", count=count)
    return Schedule(text, lambda step, epoch, batch: step % count == 0)


def _first(count: int) -> Schedule:
    return Schedule(tr("schedule.first", count=count), lambda step, epoch, batch: step < count)


def _log(per_decade: int) -> Schedule:
    if per_decade < 1:
        raise BadArgument(tr("schedule.decade", per_decade=per_decade))

    def due(step: int, epoch: int | None, batch: int | None) -> bool:
        if step < 1:
            return step == 0
        near = round(per_decade * math.log10(step))
        return any(round(10 ** (k / per_decade)) == step for k in (near - 1, near, near + 1))

    return Schedule(tr("schedule.log", per_decade=per_decade), due)


def _numbers(word: str, numbers: Iterable[int | range]) -> Schedule:
    given = list(numbers)
    wanted = frozenset(n for item in given for n in (item if isinstance(item, range) else (item,)))
    if not wanted:
        raise BadArgument(tr("schedule.no_numbers", word=word, HELP=tr(_HELP)))
    spans = [item for item in given if isinstance(item, range)]
    singles = [str(n) for n in sorted(item for item in given if isinstance(item, int))]
    text = f"{word} " + ", ".join([*singles, *(f"{span.start}-{span.stop - 1}" for span in spans)])
    if word == "steps":
        return Schedule(text, lambda step, epoch, batch: step in wanted)
    if word == "epochs":
        return Schedule(text, lambda step, epoch, batch: epoch in wanted, by_step=False)
    return Schedule(text, lambda step, epoch, batch: batch in wanted, by_step=False)


def _parse_numbers(value: Any) -> list[int | range]:
    if isinstance(value, range):
        return [value]
    if not isinstance(value, (str, int)):
        return [item for part in value for item in _parse_numbers(part)]
    found: list[int | range] = []
    for part in str(value).split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise BadArgument(tr("schedule.span", strip=part.strip()))
        first = int(match[1])
        found.append(first if match[2] is None else range(first, int(match[2]) + 1))
    return found


def _whole(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"\d+", str(value)) else None


def _predicate(predicate: Callable[..., Any]) -> Schedule:
    try:
        places = len(inspect.signature(predicate).parameters)
    except (TypeError, ValueError):
        places = 1
    name = tr("schedule.predicate", getattr=getattr(predicate, "__name__", "a predicate"))
    if places >= 3:
        return Schedule(name, lambda step, epoch, batch: bool(predicate(step, epoch, batch)), by_step=False)
    return Schedule(name, lambda step, epoch, batch: bool(predicate(step)))


def _all(rules: list[Schedule]) -> Schedule:
    return _joined(rules, " and ", lambda *now: all(rule.due(*now) for rule in rules))


def _any(rules: list[Schedule]) -> Schedule:
    return _joined(rules, " or ", lambda *now: any(rule.due(*now) for rule in rules))


def _joined(rules: list[Schedule], word: str, due: Due) -> Schedule:
    if len(rules) == 1:
        return rules[0]
    if not rules:
        raise BadArgument(tr("schedule.empty", HELP=tr(_HELP)))
    texts = [f"({rule})" if " and " in rule.text and word != " and " else str(rule) for rule in rules]
    return Schedule(word.join(texts), due, all(rule.by_step for rule in rules))
