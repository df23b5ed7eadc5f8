"""The tokens of the input above a site table, each coloured by how much less likely B finds the next one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from layertap.messages import tr
from layertap.report.values import number
from layertap.view.html import clean, link, text
from layertap.view.query import Query
from layertap.view.sides import Session
from layertap.view.site_tables import ComparedSites, SiteTable
from layertap.view.tokens import Strip, errors_of, strip_of

SHOWN = 400
"""Tokens of a strip; of a longer input those around the chosen one, or around the largest change."""
LEVELS = (0.02, 0.1, 0.5, 2.0)
"""From these changes of a log probability on a token is coloured, each darker than the one before."""


def coloured(session: Session, query: Query, site_table: SiteTable) -> SiteTable:
    """The site table by the error of the chosen token alone, where one is chosen."""
    if query.token is None or not isinstance(site_table, ComparedSites):
        return site_table
    strip = strip_of(session, query, site_table)
    if strip is None or not 0 <= query.token < strip.ids.size:
        return site_table
    errors = errors_of(session, query, site_table, strip)
    if not errors.by_row:
        return site_table
    place = query.token
    return site_table.at_token({row: float(found[place]) for row, found in errors.by_row.items()})


def strip_part(session: Session, query: Query, site_table: SiteTable | None) -> str:
    """The strip, or nothing where the input contains no token ids."""
    strip = None if site_table is None else strip_of(session, query, site_table)
    if strip is None or site_table is None:
        return ""
    notes = [clean(strip.why)] if strip.why else []
    if strip.a is not None:
        notes.append(text("view.strip_pair" if strip.b is not None else "view.strip_one", site=strip.site))
    if query.token is not None and 0 <= query.token < strip.ids.size:
        notes.append(_chosen(session, query, site_table, strip))
    lines = "".join(f"<p class='soft'>{line}</p>" for line in notes)
    label = text("view.tokens")
    tokens = _tokens(query, strip) if strip.ids.size else ""
    return f"<section id='tokens' aria-label='{label}'>{tokens}{lines}</section>"


def _tokens(query: Query, strip: Strip) -> str:
    change = strip.delta.reshape(-1) if strip.delta is not None else None
    total = strip.ids.size
    centre = query.token
    if centre is None:
        centre = 0 if change is None else int(np.argmax(np.abs(np.nan_to_num(change))))
    first = min(max(centre - SHOWN // 2, 0), max(total - SHOWN, 0))
    parts, width = [], strip.ids.shape[1]
    for place in range(first, min(first + SHOWN, total)):
        if place % width == 0 and len(strip.ids) > 1:
            parts.append(f"<span class='soft'>{text('view.batch_row', row=place // width)}</span>")
        parts.append(_token(query, strip, place))
    left = total - min(SHOWN, total)
    more = f"<p class='soft'>{text('view.more_tokens', shown=min(SHOWN, total), count=total)}</p>" if left else ""
    return f"<div class='strip' tabindex='0'>{''.join(parts)}</div>{more}"


def _token(query: Query, strip: Strip, place: int) -> str:
    value = int(strip.ids.reshape(-1)[place])
    shown = strip.texts[place] if strip.texts else str(value)
    parts = [f"{place % strip.ids.shape[1]}: {shown!r}" if strip.texts else f"{place % strip.ids.shape[1]}: {value}"]
    for name, values in (("A", strip.a), ("B", strip.b), ("B − A", strip.delta)):
        if values is not None:
            one = float(values.reshape(-1)[place])
            last = (place + 1) % strip.ids.shape[1] == 0  # nothing follows whose probability it could be
            parts.append(f"{name} –" if last else f"{name} {number(one, 4)}")
    level = _level(strip, place)
    here = " aria-current='true'" if place == query.token else ""
    where = link("/", {**query.moment(), "site": query.site, "t": place})
    colour = f" data-level='{level}'" if level else ""
    visible = clean(shown).replace(" ", "␣") if shown.strip() == "" else clean(shown)
    return (
        f"<a class='token' data-put='t={place}' href='{clean(where)}'{colour}{here} title='{clean('   '.join(parts))}'>"
        f"{visible}</a>"
    )


def _level(strip: Strip, place: int) -> int | str:
    """How much less likely (above 0) or more likely (below 0) the next token has become; `nan` where B lost it."""
    if strip.a is None or strip.b is None:
        return 0
    a, b = (float(values.reshape(-1)[place]) for values in (strip.a, strip.b))
    if not math.isfinite(b):
        return "nan" if math.isfinite(a) else 0
    change = b - a
    if math.isnan(change):
        return 0
    steps = sum(abs(change) >= limit for limit in LEVELS)
    return steps if change < 0 else -steps


def _chosen(session: Session, query: Query, site_table: SiteTable, strip: Strip) -> str:
    assert query.token is not None
    place = query.token % strip.ids.shape[1]
    back = link("/", {**query.moment(), "site": query.site, "t": None})
    found = errors_of(session, query, site_table, strip) if isinstance(site_table, ComparedSites) else None
    parts = []
    if found is not None and found.by_row:
        parts.append(text("view.by_token", token=place))
    if found is not None and found.why:
        parts.append(clean(found.why))
    parts.append(f"<a data-put='t=' href='{clean(back)}'>{text('view.all_tokens')}</a>")
    return " ".join(parts)


def strip_dict(session: Session, query: Query, site_table: SiteTable) -> dict[str, Any]:
    """The JSON form; with `t` the error of that token at every site too."""
    strip = strip_of(session, query, site_table)
    if strip is None:
        return {"ids": [], "why": tr("view.no_ids")}
    found: dict[str, Any] = {"ids": strip.ids.tolist(), "texts": list(strip.texts), "site": strip.site}
    for name, values in (("a", strip.a), ("b", strip.b), ("delta", strip.delta)):
        found[name] = None if values is None else values.tolist()
    found["why"] = strip.why
    if query.token is not None and isinstance(site_table, ComparedSites) and 0 <= query.token < strip.ids.size:
        errors = errors_of(session, query, site_table, strip)
        rows = site_table.report.rows
        found["token"] = query.token
        found["errors"] = [
            {"site": str(rows[row].site), "error": float(one[query.token])} for row, one in errors.by_row.items()
        ]
        found["why"] = strip.why or errors.why
    return found
