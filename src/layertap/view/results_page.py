"""The page of the results that lie beside the runs, and its JSON form."""

from __future__ import annotations

from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.report.html import body as body_html
from layertap.result import jsonable
from layertap.view.html import clean, document, link, text
from layertap.view.page import keys, top
from layertap.view.query import Query
from layertap.view.results import ResultFile
from layertap.view.sides import Session


def results_page(session: Session, query: Query) -> str:
    """One result, chosen by `r`."""
    found = chosen(session, query)
    tabs = "".join(
        f"<a href='{clean(link('/results', {**query.pair(), 'r': one.number}))}'"
        f"{' aria-current=page' if one is found else ''}>{clean(one.name)}</a>"
        for one in session.results
    )
    listed = (
        f"<nav class='listed' aria-label='{text('view.tab_results')}'>{tabs}</nav>" if len(session.results) > 1 else ""
    )
    problem = f"<p class='problem'>{clean(found.problem)}</p>" if found.problem else ""
    body = (
        f"{top(session, query, here='results')}{listed}"
        f"<main id='main' tabindex='0' class='wide result' data-version='{clean(session.version)}' data-page='results'>"
        f"{problem}{body_html(found.document)}</main>{keys()}"
    )
    return document(f"{found.name} · layertap", body, scripts=("follow.js",), here="results")


def results_dict(session: Session, query: Query) -> dict[str, Any]:
    """The JSON form: which results there are, and the chosen one whole."""
    found = chosen(session, query)
    listed = [{"number": one.number, "name": one.name, "path": one.source, "kind": one.kind} for one in session.results]
    return {"results": listed, "chosen": found.number, "problem": found.problem, "result": jsonable(found.data)}


def chosen(session: Session, query: Query) -> ResultFile:
    number = query.number("r", 0)
    if not 0 <= number < len(session.results):
        raise BadArgument(tr("view.no_result_number", number=number, count=len(session.results)))
    return session.results[number]
