"""Tables that never cut a number: on a narrow screen whole columns give way, and that is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from layertap.messages import printable, tr

GAP = "  "
NAME = 16
"""A name is not folded into less than this."""


_TITLES = {
    title: f"table.{title}"
    for title in ("site", "verdict", "error", "floor", "ratio", "jump", "step", "module", "kind", "where")
}
"""Titles that are words; the names of metrics are the same in every language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    left: bool = False
    """Numbers are on the right."""
    spare: int = 0
    """On a narrow screen the highest goes first; 0 stays."""


class Lines:
    """A table without a frame; its first column holds names, which fold where they must.

    rich's own table measures every cell several times, cuts numbers to fit, and takes markup in names for markup.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.rows: list[tuple[list[str], str]] = []

    def add(self, cells: Iterable[str], style: str = "") -> None:
        self.rows.append(([_on_one_line(cell) for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = [tr(_TITLES[title]) if title in _TITLES else title for title in (c.title for c in self.columns)]
        widths = [max(map(cell_len, cells)) for cells in zip(titles, *(cells for cells, _ in self.rows), strict=True)]
        screen_width = options.max_width
        shown = self._fitting(widths, screen_width)
        others = sum(len(GAP) + widths[place] for place in shown[1:])
        widths[0] = min(widths[0], max(screen_width - others, NAME))
        for cells, style in [(titles, "bold"), *self.rows]:
            drawn = console.get_style(style) if style else Style.null()
            for line in self._lines([cells[place] for place in shown], [widths[place] for place in shown], shown):
                yield Segment(line, drawn)
                yield Segment.line()
        away = [place for place in range(len(titles)) if place not in shown]
        for template, empty in (("table.not_shown", False), ("table.empty", True)):
            named = ", ".join(titles[place] for place in away if self._is_empty(place) == empty)
            if named:
                yield Text(tr(template, titles=named), style="dim")

    def _fitting(self, widths: Sequence[int], screen_width: int) -> list[int]:
        """The columns that the screen has room for; empty ones give way before any other."""
        empty = [self._is_empty(place) for place in range(len(widths))]
        shown = list(range(len(widths)))
        name = min(widths[0], max(NAME, screen_width // 2))
        going = sorted(
            (place for place in shown if self.columns[place].spare or (empty[place] and place)),
            key=lambda place: (not empty[place], -self.columns[place].spare),
        )
        for place in going:
            if name + sum(len(GAP) + widths[other] for other in shown[1:]) <= screen_width:
                break
            shown.remove(place)
        return shown

    def _is_empty(self, place: int) -> bool:
        return not any(cells[place] for cells, _ in self.rows)

    def _lines(self, cells: Sequence[str], widths: Sequence[int], shown: Sequence[int]) -> list[str]:
        name, *more = chop_cells(cells[0], widths[0]) if cell_len(cells[0]) > widths[0] else [cells[0]]
        parts = [name + " " * (widths[0] - cell_len(name))]
        for cell, width, place in zip(cells[1:], widths[1:], shown[1:], strict=True):
            pad = " " * (width - cell_len(cell))
            parts.append(cell + pad if self.columns[place].left else pad + cell)
        return [GAP.join(parts).rstrip(), *more]


def _on_one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
