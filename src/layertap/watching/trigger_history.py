"""What each recorded site was like in the last steps, so that the one that stands out can be named."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from layertap.result import Note
from layertap.site import Record

HISTORY = 50
"""Steps that a number is compared with."""
ENOUGH = 10
"""Steps that must have been seen before one can stand out."""
STANDS_OUT = 10.0
"""Times its spread that a site's norm is off its median."""


@dataclass(frozen=True, slots=True)
class Span:
    """The middle of the last values, and how far they spread around it."""

    median: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Span:
        median = statistics.median(values)
        spread = 1.4826 * statistics.median(abs(value - median) for value in values)
        return cls(median, max(spread, 1e-3 * abs(median), 1e-12))

    def times(self, value: float) -> float:
        """How many spreads a value is above the median."""
        return (value - self.median) / self.spread


class Histories:
    """The norms of all recorded sites over the last steps."""

    def __init__(self) -> None:
        self._norms: dict[str, deque[float]] = {}

    def add(self, records: Sequence[Record]) -> None:
        """A step that has been judged."""
        for record in records:
            if not record.statistics.nonfinite:
                key = _key(record)
                if key not in self._norms:
                    self._norms[key] = deque(maxlen=HISTORY)
                self._norms[key].append(record.statistics.l2)

    def standing_out(self, records: Sequence[Record]) -> tuple[str, str]:
        """The first site, in order of execution, that is off what it was, and how far; else two empty texts."""
        for record in records:
            norms = self._norms.get(_key(record), ())
            if len(norms) < ENOUGH or record.site.path == "loss":
                continue
            span, value = Span.of(norms), record.statistics.l2
            if abs(span.times(value)) > STANDS_OUT:
                site = str(record.site)
                return site, Note("trigger.first", site=site, value=f"{value:.4g}", median=f"{span.median:.4g}")
        return "", ""


def _key(record: Record) -> str:
    site = record.site
    return f"{record.phase} {site.path} {site.role} {site.leaf} {site.call}"
