"""What a result says and shows, before it is decided whether that becomes a page, Markdown, or a picture.

    Document    a title, a verdict, the headline, and blocks
    Paragraph, Table, Chart, SiteTable, Verbatim, Heading    the blocks

Every value is plain text here; the writers escape it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from layertap.report.site_table import SiteEntry

STATES = ("identical", "noise", "fault", "inconclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    text: str
    note: bool = False
    """Whether it is something to beware of, and set apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """Text that keeps its lines."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    cells: Sequence[str]
    state: str = ""
    """A verdict, by which the row is coloured."""
    site: str = ""
    """Of a site's own row, its name."""
    first: bool = False
    """Whether this is the first departure."""
    title: str = ""
    """Shown when the pointer is on the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under titles; the columns in `left` contain words, the others numbers."""

    titles: Sequence[str]
    rows: Sequence[TableRow]
    left: tuple[int, ...] = (0,)
    bars: tuple[int, ...] = ()
    """Columns that contain bars of blocks."""
    caption: str = ""
    total: int = 0
    """How many rows there are in all, where not all are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A Vega-Lite specification, and what it shows in one sentence."""

    spec: Mapping[str, Any]
    caption: str = ""
    opening: bool = False
    """Whether it tells the most, so that a picture of the result holds this one."""
    page: bool = True
    """False where the page shows the same in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTable:
    """Sites in order of execution, with their errors or statistics."""

    entries: Sequence[SiteEntry]
    columns: tuple[str, ...] | None = None
    """Titles of the entries' cells, where nothing was compared."""
    left_out: int = 0
    """How many sites are not among the entries."""


Block: TypeAlias = Heading | Paragraph | Verbatim | Table | Chart | SiteTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One result, whole."""

    title: str
    verdict: str
    """One of the four verdicts, or empty where nothing was judged."""
    headline: str
    """The verdict in a sentence."""
    lines: Sequence[str] = ()
    """What belongs to it."""
    notes: Sequence[str] = ()
    blocks: Sequence[Block] = field(default=())
