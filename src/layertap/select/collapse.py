"""Many paths that differ in numbers, written as few patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"0|[1-9][0-9]*")


def collapse(paths: Iterable[str]) -> dict[str, list[str]]:
    """Pattern → the paths that it represents; every path is in one pattern, and patterns come in order of first path.

    >>> list(collapse(["embed", *(f"layers.{i}.experts.{j}" for i in range(3) for j in range(8)), "norm"]))
    ['embed', 'layers.[0-2].experts.[0-7]', 'norm']
    >>> list(collapse(["layers.0", "layers.30", "layers.61"]))
    ['layers.[0,30,61]']
    """
    # A component is its name, or a tuple of the numbers it represents.
    groups: dict[tuple[str | tuple[int, ...], ...], list[str]] = {
        tuple((int(part),) if _NUMBER.fullmatch(part) else part for part in path.split(".")): [path] for path in paths
    }
    # From the right: experts of one layer first, then layers that have the same experts.
    for place in reversed(range(max((len(parts) for parts in groups), default=0))):
        merged: dict[tuple[object, ...], list[tuple[str | tuple[int, ...], ...]]] = {}
        for parts in groups:
            numbered = place < len(parts) and not isinstance(parts[place], str)
            key = (len(parts), *parts[:place], None, *parts[place + 1 :]) if numbered else (parts,)
            merged.setdefault(key, []).append(parts)
        together: dict[tuple[str | tuple[int, ...], ...], list[str]] = {}
        for alike in merged.values():
            parts = alike[0]
            if len(alike) > 1:
                numbers = sorted({n for member in alike for n in member[place] if isinstance(n, int)})
                parts = (*parts[:place], tuple(numbers), *parts[place + 1 :])
            together[parts] = [path for member in alike for path in groups[member]]
        groups = together
    return {".".join(_written(part) for part in parts): members for parts, members in groups.items()}


def _written(part: str | tuple[int, ...]) -> str:
    if isinstance(part, str):
        return part
    if len(part) == 1:
        return str(part[0])
    runs: list[list[int]] = []
    for number in part:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"
