"""Two modules that are wrong one by one and right together: a normalisation folded into the convolution before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from layertap.fault.book import Book, Key, Played
from layertap.fault.contrast import Contrast
from layertap.fault.judge import LIMIT, ratio_of
from layertap.fault.result import ModuleRow
from layertap.fault.shelf import Slot


def folded_pairs(
    guilty: list[ModuleRow], book: Book, free: Played, floors: Mapping[Key, Contrast], least: float
) -> list[tuple[ModuleRow, ModuleRow]]:
    """Pairs of guilty modules, the second of which takes the first one's output and, in a free run, puts it right."""
    total = {event.key: event.found for event in free.events}
    ends: defaultdict[tuple[str, int, str], dict[Key, Slot]] = defaultdict(dict)
    for key, slot in book.slots.items():
        ends[key[:3]][key] = slot

    def right(row: ModuleRow) -> bool:
        keys = ends[row.page, row.call, "exit"].keys() & total.keys()
        ratios = [ratio_of(total[key], floors.get(key, Contrast()), least)[0] for key in keys]
        return bool(ratios) and max(ratios) <= LIMIT

    makers = {id(slot): row for row in guilty for slot in ends[row.page, row.call, "exit"].values()}
    pairs: list[tuple[ModuleRow, ModuleRow]] = []
    for second in guilty:
        given = [makers.get(id(slot)) for slot in ends[second.page, second.call, "entry"].values()]
        first = next((row for row in given if row is not None and row is not second and not right(row)), None)
        if first is not None and right(second) and not any(row in pair for row in (first, second) for pair in pairs):
            pairs.append((first, second))
    return pairs
