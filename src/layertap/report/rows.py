"""Which rows are shown where there is no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
FINE = ("identical", "noise", "finite", "")


def chosen(rows: Sequence[T], most: int, states: Sequence[str]) -> tuple[Sequence[T], int]:
    """As many rows as asked for, in their order, and how many are left out: what departs goes before what is fine.

    >>> chosen("abcdef", 3, ["noise", "noise", "fault", "noise", "noise", "fault"])
    (['a', 'c', 'f'], 3)
    """
    if len(rows) <= most:
        return rows, 0
    ranks = sorted((state in FINE, place) for place, state in enumerate(states))
    kept = sorted(place for _, place in ranks[:most])
    return [rows[place] for place in kept], len(rows) - len(kept)
