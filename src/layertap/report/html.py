"""A document as HTML: one file that opens anywhere, offline, on paper, and inside another page's frame.

All of it can be read without a script; the one inline script (of the site_table) adds a filter and keys.
"""

from __future__ import annotations

from html import escape as _escape
from importlib.resources import files

from layertap.messages import language, printable, tr
from layertap.report.charts.draw import svg
from layertap.report.document import Block, Chart, Document, Heading, Paragraph, SiteTable, Table, TableRow, Verbatim
from layertap.report.rows import chosen
from layertap.report.site_table import Drawing, site_table_css, site_table_html, site_table_js

LIMIT = 1_600_000
"""Bytes that a page's rows may take: previews and browsers stay quick below 2 MB."""
ROW = 700
"""Bytes that a row of a site table takes, about."""
NONE = "none"
"""The verdict of what was compared with nothing."""
NOTEBOOK_ROWS = 40
"""Rows of a table in a notebook's output."""


def escape(text: str) -> str:
    """The text for a page: neither markup, nor marks that turn the direction of writing around."""
    return _escape(printable(text))


def page(document: Document) -> str:
    """A whole file."""
    site_table = any(isinstance(block, SiteTable) for block in document.blocks)
    parts = [
        f"<!doctype html>\n<html lang='{'zh-CN' if language() == 'zh' else 'en'}'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(document.title)}</title>",
        f"<style>{site_table_css()}{_css('page.css')}</style></head>",
        f"<body class='lt-page'><main>{body(document)}</main>",
        f"<footer>{escape(tr('page.made_by'))}</footer>",
        *([f"<script>{site_table_js()}</script>"] if site_table else []),
        "</body></html>",
    ]
    return "\n".join(parts)


def fragment(document: Document) -> str:
    """The same for a notebook's output: no script, no page around it, long tables cut."""
    # What is shown in a notebook does not know the notebook's colours: it brings its own.
    css = (site_table_css() + _css("page.css")).replace(":root", ".lt-out")
    return f"<div class='lt-out'><style>{css}</style>{body(document, rows=NOTEBOOK_ROWS, tools=False)}</div>"


def _css(name: str) -> str:
    return files("layertap.report").joinpath("assets", name).read_text(encoding="utf-8")


def body(document: Document, *, rows: int | None = None, tools: bool = True) -> str:
    """What is in a page: the verdict, notes, and the blocks, as far as there is room."""
    state = document.verdict
    parts = [
        f"<header class='lt-head {escape(state)}'>",
        f"<h1 data-verdict='{escape(state or NONE)}'>{escape(document.headline)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in document.lines),
        "</header>",
        *(f"<p class='lt-note'>{escape(note)}</p>" for note in document.notes),
    ]
    left = LIMIT
    for place, block in enumerate(document.blocks):
        drawn = block_html(block, left, rows=rows, tools=tools, name=f"L{place}")
        left -= len(drawn)
        parts.append(drawn)
    return "\n".join(parts)


def block_html(
    block: Block, most_bytes: int = LIMIT, *, rows: int | None = None, tools: bool = True, name: str = "L"
) -> str:
    """One block; `most_bytes` is how many bytes it may take."""
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Paragraph):
        return f"<p{' class=lt-note' if block.note else ''}>{escape(block.text)}</p>"
    if isinstance(block, Verbatim):
        return f"<pre>{escape(block.text)}</pre>"
    if isinstance(block, Chart):
        caption = f"<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
        return f"<figure>{svg(block.spec)}{caption}</figure>" if block.page or not tools else ""
    most = max(most_bytes // ROW, 20) if rows is None else rows
    if isinstance(block, SiteTable):
        return _site_table(block, most, tools=tools, name=name)
    return _table(block, most)


def _site_table(block: SiteTable, most: int, *, tools: bool, name: str) -> str:
    shown, left = chosen(block.entries, most, [entry.state for entry in block.entries])
    drawn = site_table_html(
        shown, Drawing(columns=block.columns, name=name), tools=tools, fold=None if tools else False
    )
    return f"<div class='lt-wide' tabindex='0'>{drawn}</div>{_left_out(left + block.left_out)}"


def _table(block: Table, most: int) -> str:
    shown, left = chosen(block.rows, most, [row.state for row in block.rows])
    left += max(block.total - len(block.rows), 0)
    head = "".join(
        f"<th scope='col'{_left(block, n)}>{escape(title)}</th>" if title else "<td></td>"
        for n, title in enumerate(block.titles)
    )
    caption = f"<caption>{escape(block.caption)}</caption>" if block.caption else ""
    body = "".join(_row(block, row) for row in shown)
    titled = f"<thead><tr>{head}</tr></thead>" if any(block.titles) else ""
    table = f"<table class='lt-table'>{caption}{titled}<tbody>{body}</tbody></table>"
    return f"<div class='lt-wide' tabindex='0'>{table}</div>{_left_out(left)}"


def _row(table: Table, row: TableRow) -> str:
    marks = f" class='{escape(row.state)}'" if row.state else ""
    marks += f" data-site='{escape(row.site)}'" if row.site else ""
    marks += " data-first" if row.first else ""
    marks += f" title='{escape(row.title)}'" if row.title else ""
    cells = "".join(f"<td{_left(table, number)}>{escape(cell)}</td>" for number, cell in enumerate(row.cells))
    return f"<tr{marks}>{cells}</tr>\n"


def _left(table: Table, column: int) -> str:
    if column in table.bars:
        return " class='l lt-bar'"
    return " class='l'" if column in table.left else ""


def _left_out(count: int) -> str:
    return f"<p class='lt-note'>{escape(tr('page.left_out', count=count))}</p>" if count else ""
