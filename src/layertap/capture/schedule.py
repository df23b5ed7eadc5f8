"""On which steps a model is tapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Schedule:
    """A printable rule: step number → whether to record it."""

    text: str
    due: Callable[[int], bool]

    def __str__(self) -> str:
        return self.text


def parse_schedule(schedule: Any) -> Schedule:
    """Reads a schedule: None (always), n (every n-th step, from 0), a range or a collection of steps, a predicate.

    >>> print(parse_schedule(10))
    every 10th step
    >>> [step for step in range(9) if parse_schedule([2, 5]).due(step)]
    [2, 5]
    """
    if schedule is None:
        return Schedule("every step", lambda step: True)
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, int) and not isinstance(schedule, bool):
        if schedule < 1:
            raise BadArgument(f"schedule={schedule}: every n-th step needs n of at least 1")
        return Schedule(
            "every step" if schedule == 1 else f"every {schedule}th step", lambda step: step % schedule == 0
        )
    if isinstance(schedule, range):
        return Schedule(f"steps in {schedule}", schedule.__contains__)
    if callable(schedule):
        return Schedule(f"steps chosen by {getattr(schedule, '__name__', 'a predicate')}", lambda s: bool(schedule(s)))
    if isinstance(schedule, Iterable) and not isinstance(schedule, (str, bytes)):
        steps = frozenset(schedule)
        if steps and all(isinstance(step, int) for step in steps):
            return Schedule(f"steps {', '.join(map(str, sorted(steps)))}", steps.__contains__)
    raise BadArgument(f"schedule={schedule!r}: use an int (every n-th), a range, a list of steps, or a predicate")


def parse_bytes(size: int | str) -> int:
    """Reads a number of bytes.

    >>> parse_bytes("2GiB") == 2 * 1024**3
    True
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units |= {f"{letter}B": 1000**power, f"{letter}iB": 1024**power, letter: 1024**power}
    if isinstance(size, str):
        number = size.strip().rstrip("BKMGTi ")
        unit = size.strip()[len(number) :].strip()
        try:
            value = int(float(number) * units[unit])
        except (ValueError, KeyError):
            value = 0
        if value > 0:
            return value
    raise BadArgument(f"{size!r} is no size; write bytes as a number, or for instance '512MiB' or '2GiB'")
