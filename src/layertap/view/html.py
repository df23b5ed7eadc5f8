"""Pieces of pages. Whatever comes from a run passes `clean`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from layertap.messages import language, printable, tr


def clean(text: object) -> str:
    """Text for a page: neither markup, nor marks that turn the direction of writing around."""
    return escape(printable(str(text)))


def text(code: str, /, **values: object) -> str:
    """A sentence of the catalogue for a page."""
    return clean(tr(code, **values))


def link(path: str, query: Mapping[str, object]) -> str:
    """An address with its query; what is empty is left out."""
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, css: str = "plain") -> str:
    """A table; the first column is the name of its row."""
    head = "".join(f"<th scope='col'>{clean(title)}</th>" if title else "<td></td>" for title in titles)
    body = "".join(
        f"<tr><th scope='row'>{clean(row[0])}</th>{''.join(f'<td>{clean(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    named = f"<thead><tr>{head}</tr></thead>" if any(titles) else ""
    # What scrolls sideways must be reached by keys too.
    return f"<div class='scroll' tabindex='0'><table class='{css}'>{named}<tbody>{body}</tbody></table></div>"


def options(choices: Iterable[tuple[object, str]], chosen: object) -> str:
    """The choices of a select."""
    return "".join(
        f"<option value='{clean(value)}'{' selected' if str(value) == str(chosen) else ''}>{clean(shown)}</option>"
        for value, shown in choices
    )


def verdict_section(state: str, inner: str) -> str:
    """What is above everything else of a page."""
    css = "" if state == "none" else f" {state}"
    label = text("view.verdict")
    return f"<section id='verdict' class='verdict{css}' data-verdict='{state}' aria-label='{label}'>{inner}</section>"


def document(title: str, body: str, *, scripts: Sequence[str] = (), here: str = "") -> str:
    """A whole page."""
    loaded = "".join(f"<script type='module' src='/static/{name}'></script>" for name in scripts)
    return (
        f"<!doctype html><html lang='{language()}'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{clean(title)}</title><link rel='icon' href='/static/icon.svg'>"
        "<link rel='stylesheet' href='/static/site_table.css'><link rel='stylesheet' href='/static/page.css'>"
        "<link rel='stylesheet' href='/static/viewer.css'>"
        f"<script defer src='/static/site_table.js'></script>{loaded}</head>"
        f"<body class='{clean(here)}'><a class='skip' href='#main'>{text('view.skip')}</a>{body}</body></html>"
    )
