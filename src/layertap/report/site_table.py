"""The table of sites in order of execution: repeated layers folded, errors as dots over the band of rounding.

    entries = report_entries(report)      # of a Report or a Finding; or make `SiteEntry` yourself
    site_table_html(entries)              # a filter, a legend, and one table
    site_table_css(), site_table_js()     # once a page; the script is plain and needs nothing else

Every site is a row `[data-site]` in order of execution, the first departure has `[data-first]`. Without the script all
of it can be read, and layers unfold by a link and a checkbox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from urllib.parse import quote

from layertap.messages import printable, tr
from layertap.report.layer_folding import Layer, Stretch, folded
from layertap.report.values import number

FOLD = 60
"""A site table with more rows than this shows its repeated layers as strips, but for the first departure's."""
WORST = ("", "none", "finite", "identical", "noise", "reference", "candidate", "inconclusive", "nonfinite", "fault")
"""States of a site, the one that a folded layer shows last."""
BLANK = ("reference", "candidate", "none")
"""States of a site without an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEntry:
    """One row."""

    site: str
    """What the row is called; the whole name is shown."""
    path: str
    """The module's path, by which layers are folded."""
    kind: str = ""
    """The class of the module."""
    state: str = ""
    """A verdict; `nonfinite` or `finite` where nothing was compared; `reference` or `candidate`: on one side only."""
    error: float = math.nan
    """The error of the value; NaN where there is none."""
    own: float = math.nan
    """The module's own error, where it is known."""
    floor: float = math.nan
    ratio: float = math.nan
    estimated: bool = False
    title: str = ""
    """What is shown when the pointer is on the row."""
    first: bool = False
    """Whether this is the first departure."""
    cells: tuple[str, ...] = ()
    """Text columns in place of error, floor and ratio, where nothing was compared."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A log axis over errors and floors, in percent of its width; zero is at the left, Inf and NaN at the right."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Axis:
        logs = [math.log10(value) for value in values if 0 < value < math.inf]
        low, high = (math.floor(min(logs)), math.ceil(max(logs))) if logs else (-8, 0)
        return cls(low, max(high, low + 2))

    def place(self, value: float) -> float:
        if value != value or value == math.inf:
            return 98.0
        if value <= 0:
            return 1.0
        return round(4 + 90 * min(max((math.log10(value) - self.low) / (self.high - self.low), 0), 1), 2)

    def ticks(self) -> list[tuple[float, str]]:
        step = max(1, math.ceil((self.high - self.low) / 5))
        decades = range(int(self.low), int(self.high) + 1, step)
        return [(self.place(10.0**decade), f"1e{decade}" if decade else "1") for decade in decades]


def site_table_css() -> str:
    """The style of a site table, light and dark, on screen and on paper."""
    return files("layertap.report").joinpath("assets/site_table.css").read_text(encoding="utf-8")


def site_table_js() -> str:
    """What all site tables of a page can do: unfolding, filter, keys. A plain script, to be put inline or beside."""
    return files("layertap.report").joinpath("assets/site_table.js").read_text(encoding="utf-8")


def site_table_html(
    entries: Sequence[SiteEntry], draw: Drawing | None = None, *, fold: bool | None = None, tools: bool = True
) -> str:
    """The site table of some entries; without `fold` its layers are folded where there are many rows."""
    draw = draw or Drawing()
    axis = draw.axis or Axis.of(value for entry in entries for value in (entry.error, entry.own, entry.floor))
    draw = replace(draw, axis=axis, own=any(entry.own == entry.own for entry in entries))
    titles = draw.titles()
    fold = len(entries) > FOLD if fold is None else fold
    parts = ["<div class='lt-box'>"]
    if tools:
        parts.append(_tools(entries, own=draw.own, plain=draw.plain))
    parts.append(f"<table class='lt-sites'><caption class='lt-hidden'>{_text('site_table.caption')}</caption>")
    parts.append(_head(titles, axis, plain=draw.plain))
    parts += [_stretch(stretch, draw, fold=fold, width=len(titles) + 3) for stretch in folded(entries)]
    parts.append("</table></div>")
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How rows are drawn: the same for all of one site table."""

    columns: Sequence[str] | None = None
    """Titles for `SiteEntry.cells`, which are shown in place of error, floor and ratio."""
    link: Callable[[str], str] | None = None
    """Gives a site's own page."""
    selected: str = ""
    name: str = "L"
    """Of several site tables in one page each has its own."""
    axis: Axis | None = None
    """Given where the rows are a part of a longer site table."""
    own: bool = False
    """Whether there is a column for the module's own error."""

    @property
    def plain(self) -> bool:
        return self.columns is not None

    def titles(self) -> list[str]:
        if self.columns is not None:
            return list(self.columns)
        own = [tr("site_table.own")] if self.own else []
        return [tr("site_table.error"), *own, tr("site_table.floor"), tr("site_table.ratio")]

    def row(self, entry: SiteEntry, *, prefix: str = "") -> str:
        """One row; `prefix` is the part of its name that is dimmed."""
        site, state = _clean(entry.site), entry.state
        marks = " data-first" if entry.first else ""
        chosen = " aria-selected='true'" if entry.site == self.selected else ""
        classes = " ".join(["lt-row", *([state] if state else []), *(["lt-first"] if entry.first else [])])
        name = _name(entry.site, prefix)
        where = self.link(entry.site) if self.link else ""
        inner = f"<a href='{escape(where)}'>{name}</a>" if where else name
        kind = f" <small>{_clean(entry.kind)}</small>" if entry.kind else ""
        flag = f" <b class='lt-flag'>{_text('site_table.first')}</b>" if entry.first else ""
        title = f" title='{_clean(entry.title)}'" if entry.title else ""
        numbers = "".join(f"<td>{_clean(cell)}</td>" for cell in self.cells(entry))
        verdict = f"<td class='lt-state'><i></i>{_text('site_table.' + state) if state else ''}</td>"
        axis = "" if self.plain else f"<td class='lt-axis'>{self.dots(entry)}</td>"
        return (
            f"<tr class='{classes}' data-site=\"{site}\" data-state='{state}'{marks}{chosen}{title}>"
            f"<th scope='row'>{inner}{kind}{flag}</th>{axis}{numbers}{verdict}</tr>\n"
        )

    def cells(self, entry: SiteEntry) -> list[str]:
        if self.plain:
            return list(entry.cells)
        if entry.state in BLANK:
            return [""] * (4 if self.own else 3)
        about = "≈" if entry.estimated else ""
        found = [about + number(entry.error, 3), *([_known(entry.own)] if self.own else [])]
        return [*found, _known(entry.floor), _known(entry.ratio)]

    def dots(self, entry: SiteEntry) -> str:
        """The band up to the floor and the dots on it; a picture of what the numbers beside it say."""
        if entry.state in BLANK or self.axis is None:
            return ""
        place = self.axis.place
        parts = ["<svg aria-hidden='true'>"]
        if entry.floor == entry.floor:
            parts.append(f"<rect width='{place(entry.floor)}%' height='18'/>")
        if entry.own == entry.own:
            parts.append(f"<circle class='o' cx='{place(entry.own)}%' cy='9' r='4.5'/>")
        parts.append(f"<circle class='t' cx='{place(entry.error)}%' cy='9' r='4'/>")
        if not entry.error < math.inf:
            parts.append(f"<text x='{place(entry.error) - 1.5}%' y='13' text-anchor='end'>{number(entry.error)}</text>")
        return "".join([*parts, "</svg>"])


def _stretch(stretch: Stretch[SiteEntry], draw: Drawing, *, fold: bool, width: int) -> str:
    if not stretch.layers:
        return f"<tbody>{''.join(draw.row(entry) for entry in stretch.loose)}</tbody>"
    layers = stretch.layers
    kinds = {layer.kind for layer in layers}
    kind = f" <small>{_clean(kinds.pop())}</small>" if len(kinds) == 1 and "" not in kinds else ""
    name = f"{_clean(layers[0].path)} … {_clean(layers[-1].path.rpartition('.')[2])}"
    count = tr("site_table.layers", count=len(layers))
    cells = "".join(_cell(layer, draw) for layer in layers)
    head = (
        f"<tbody class='lt-group'><tr><th scope='rowgroup'>{name}{kind} <small>{escape(count)}</small></th>"
        f"<td colspan='{width - 1}'><div class='lt-strip'>{cells}</div></td></tr></tbody>"
    )
    bodies = []
    for layer in layers:
        shown = not fold or any(entry.first or entry.site == draw.selected for entry in layer.entries)
        rows = "".join(draw.row(entry, prefix=layer.path) for entry in layer.entries)
        classes = "lt-layer lt-open" if shown else "lt-layer"
        bodies.append(f"<tbody class='{classes}' id='{_anchor(layer, draw)}'>{rows}</tbody>")
    return head + "".join(bodies)


def _cell(layer: Layer[SiteEntry], draw: Drawing) -> str:
    state = max((entry.state for entry in layer.entries), key=WORST.index)
    first = " lt-first" if any(entry.first for entry in layer.entries) else ""
    word = tr(f"site_table.{state}") if state else ""
    ratios = [entry.ratio for entry in layer.entries if entry.ratio == entry.ratio]
    worst = f", {tr('site_table.ratio')} {number(max(ratios), 3)}" if ratios else ""
    title = tr("site_table.cell", layer=layer.path, state=word + worst)
    return (
        f"<a class='lt-cell {state}{first}' href='#{_anchor(layer, draw)}' title='{_clean(title)}' "
        f"aria-label='{_clean(title)}'></a>"
    )


def _anchor(layer: Layer[SiteEntry], draw: Drawing) -> str:
    return f"{draw.name}-{quote(layer.path, safe='')}-{layer.number}".replace("%", "~")


def _tools(entries: Sequence[SiteEntry], *, own: bool, plain: bool) -> str:
    bad = any(entry.state not in ("identical", "noise", "finite", "") for entry in entries)
    first = any(entry.first for entry in entries)
    total = tr("site_table.sites", count=len(entries))
    word = _text("site_table.filter")
    parts = [
        "<div class='lt-tools'>",
        f"<input type='search' class='lt-filter' placeholder='{word}  ( / )' aria-label='{word}'>",
        f"<label><input type='checkbox' class='lt-unfold'> {_text('site_table.unfold')}</label>",
    ]
    if bad:
        parts.append(f"<label><input type='checkbox' class='lt-bad'> {_text('site_table.bad')}</label>")
    if first:
        parts.append(f"<button type='button' class='lt-to-first'>{_text('site_table.to_first')}</button>")
    shown = _clean(tr("site_table.shown", count="{count}", total="{total}"))
    parts.append(f"<output class='lt-count' data-shown='{shown}' aria-live='polite'>{escape(total)}</output>")
    if not plain:
        parts.append("<span class='lt-legend'>")
        parts.append(
            f"<svg aria-hidden='true'><circle class='t' cx='6' cy='9' r='4'/></svg>{_text('site_table.legend_total')}"
        )
        if own:
            parts.append("<svg aria-hidden='true'><circle class='o' cx='6' cy='9' r='4.5'/></svg>")
            parts.append(_text("site_table.legend_own"))
        parts.append(
            f"<svg aria-hidden='true'><rect width='12' height='18'/></svg>{_text('site_table.legend_floor')}</span>"
        )
    return "".join([*parts, "</div>"])


def _head(titles: Sequence[str], axis: Axis, *, plain: bool) -> str:
    marks = "".join(
        f"<text x='{place}%' y='13' text-anchor='middle'>{text}</text>"
        f"<line x1='{place}%' x2='{place}%' y1='15' y2='18'/>"
        for place, text in axis.ticks()
    )
    picture = f"<th scope='col' class='lt-axis'><span class='lt-hidden'>{_text('site_table.axis')}</span>"
    picture = "" if plain else f"{picture}<svg aria-hidden='true'>{marks}</svg></th>"
    numbers = "".join(f"<th scope='col'>{_clean(title)}</th>" for title in titles)
    return (
        f"<thead><tr><th scope='col'>{_text('site_table.site')}</th>{picture}{numbers}"
        f"<th scope='col' class='lt-state'>{_text('site_table.verdict')}</th></tr></thead>"
    )


def _name(site: str, prefix: str) -> str:
    if prefix and site.startswith(prefix) and len(site) > len(prefix):
        return f"<span class='lt-dim'>{_clean(prefix)}</span>{_clean(site[len(prefix) :])}"
    head, dot, tail = site.rpartition(".")
    return f"<span class='lt-dim'>{_clean(head + dot)}</span>{_clean(tail)}" if dot else _clean(site)


def _known(value: float) -> str:
    return "" if math.isnan(value) else number(value, 3)


def _clean(text: str) -> str:
    """Text of others for the page: neither markup, nor marks that turn the direction of writing around."""
    return escape(printable(text))


def _text(code: str) -> str:
    return escape(tr(code))
