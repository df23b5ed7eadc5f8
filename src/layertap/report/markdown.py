"""A document as Markdown, for a pull request, an issue or a chat: GitHub's flavour, tables and no pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from layertap.messages import printable, tr
from layertap.report.charts.palette import MARKS
from layertap.report.document import Block, Chart, Document, Heading, Paragraph, SiteTable, Verbatim
from layertap.report.rows import chosen
from layertap.report.site_table import SiteEntry
from layertap.report.values import number

ROWS = 200
"""Rows of a table; a comment on GitHub holds 65,536 characters."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@!])")


def markdown(document: Document) -> str:
    """The whole of it."""
    mark = MARKS.get(document.verdict, "")
    parts = [f"### {mark} {escape(document.headline)}".replace("  ", " ")]
    parts += [escape(line) for line in document.lines]
    parts += [f"> {escape(note)}" for note in document.notes]
    parts += [drawn for block in document.blocks if (drawn := _block(block))]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and HTML take for nothing else: names of modules hold underscores, and may hold anything."""
    return _SPECIAL.sub(r"\\\1", printable(text).replace("\n", " "))


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"#### {escape(block.text)}"
    if isinstance(block, Paragraph):
        return f"{'> ' if block.note else ''}{escape(block.text)}"
    if isinstance(block, Verbatim):
        return _fenced(printable(block.text))
    if isinstance(block, Chart):
        return ""
    if isinstance(block, SiteTable):
        return _site_table(block)
    shown, left = chosen(block.rows, ROWS, [row.state for row in block.rows])
    cells = [
        [_bold(cell) if row.first and not n else escape(cell) for n, cell in enumerate(row.cells)] for row in shown
    ]
    left += max(block.total - len(block.rows), 0)
    return _table(block.titles, cells, [n in block.left for n in range(len(block.titles))], left)


def _site_table(block: SiteTable) -> str:
    shown, left = chosen(block.entries, ROWS, [entry.state for entry in block.entries])
    left += block.left_out
    if block.columns is not None:
        rows = [[_site(entry), *(escape(cell) for cell in entry.cells), _state(entry)] for entry in shown]
        return _table([tr("site_table.site"), *block.columns, tr("site_table.verdict")], rows, [True], left)
    own = any(entry.own == entry.own for entry in shown)
    names = ("site", "verdict", "error", *(("own",) if own else ()), "floor", "ratio")
    rows = [[_site(entry), _state(entry), *_numbers(entry, own=own)] for entry in shown]
    return _table([tr(f"site_table.{name}") for name in names], rows, [True, True], left)


def _site(entry: SiteEntry) -> str:
    name = _code(entry.site)
    return f"**{name}**" if entry.first else name


def _state(entry: SiteEntry) -> str:
    return f"{MARKS.get(entry.state, '')} {tr('site_table.' + entry.state)}".strip() if entry.state else ""


def _numbers(entry: SiteEntry, *, own: bool) -> list[str]:
    about = "≈" if entry.estimated else ""
    values = [about + number(entry.error, 3), *([_known(entry.own)] if own else [])]
    return [escape(value) for value in (*values, _known(entry.floor), _known(entry.ratio))]


def _known(value: float) -> str:
    return "" if value != value else number(value, 3)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[bool], left_out: int) -> str:
    sides = [*left, *([False] * (len(titles) - len(left)))]
    lines = [_line(map(escape, titles)), _line(":--" if side else "--:" for side in sides), *map(_line, rows)]
    if left_out:
        lines += ["", escape(tr("page.left_out", count=left_out))]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold(text: str) -> str:
    return f"**{escape(text)}**" if text else ""


def _code(text: str) -> str:
    """A name in code letters, where it can be; in a table a bar ends the cell even there."""
    text = printable(text).replace("\n", "\\n")
    return escape(text) if "`" in text or "|" in text else f"`{text}`"


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
