"""The page about the runs themselves: who made each, when, of what; its plan, its receipt, its problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.receipt import receipt_text
from layertap.report.values import number
from layertap.site import Receipt
from layertap.view.html import clean, document, link, table, text, verdict_section
from layertap.view.page import alive, keys, top
from layertap.view.query import Query
from layertap.view.sides import Session, Side

SILENT = 500
"""Sites without data that are listed one by one."""
FACTS = (
    "kind",
    "model",
    "target",
    "artefact",
    "runtime",
    "created",
    "started",
    "finished",
    "status",
    "torch",
    "python",
)
"""Of what a run says of itself, what comes first; other plain values follow."""
_APART = ("receipt", "arguments", "problems", "sessions", "sites")


def runs_page(session: Session, query: Query) -> str:
    """Every run of the viewer, one below the other."""
    title = f"<h1>{text('view.runs_title')}</h1>{''.join(alive(session.sides))}"
    sections = "".join(_run(side) for side in session.sides)
    version = clean(session.version)
    body = (
        f"{top(session, query, here='runs')}{verdict_section('none', title)}"
        f"<main id='main' tabindex='0' class='wide' data-version='{version}' data-page='runs'>{sections}</main>{keys()}"
    )
    return document(f"{tr('view.tab_runs')} · layertap", body, scripts=("follow.js",), here="runs")


def _run(side: Side) -> str:
    with side.lock:
        run, receipt = side.run, side.run.receipt
        steps = [int(step) for step in run.index.steps()]
        rows: list[tuple[str, object]] = [
            (tr("view.fact_path"), side.source),
            (tr("view.fact_sites"), len(run.sites)),
            (tr("view.fact_records"), run.count),
            (tr("view.fact_steps"), _span(steps)),
        ]
        if receipt is not None:
            rows.append((tr("view.fact_kept"), format_bytes(receipt.bytes)))
            share = receipt.overhead / receipt.seconds if receipt.seconds else 0.0
            rows.append((tr("view.fact_seconds"), f"{number(receipt.seconds, 3)} s"))
            rows.append((tr("view.fact_overhead"), f"{number(receipt.overhead, 3)} s ({share:.0%})"))
        rows += _facts(run.info)
        problems, plan = list(run.problems), run.info.get("arguments")
    shown = link("/", {"a": side.number, "b": "none"})
    parts = [
        f"<section class='about' data-run='{side.number}'><h2><a href='{clean(shown)}'>{clean(side.name)}</a></h2>",
        f"<p class='problem'>{clean(side.gone)}</p>" if side.gone else "",
        *(f"<p class='problem'>{clean(problem)}</p>" for problem in problems),
        f"<div class='two'><div>{table(('', ''), rows, css='plain pairs')}</div><div>",
    ]
    if isinstance(plan, Mapping) and plan:
        parts.append(f"<h3>{text('view.plan')}</h3>")
        parts.append(table(("", ""), [(name, _shown(value)) for name, value in plan.items()], css="plain pairs"))
    if receipt is not None:
        parts.append(f"<h3>{text('page.receipt')}</h3><pre>{clean(receipt_text(receipt))}</pre>")
        parts.append(_sites(receipt))
    return "".join([*parts, "</div></div></section>"])


def _sites(receipt: Receipt) -> str:
    """How often each requested site fired; those without data first, each with its reason."""
    ordered = [*receipt.silent, *receipt.fired][:SILENT]
    titles = [tr(f"view.receipt_{name}") for name in ("site", "kind", "fired", "tensors", "dropped", "why")]
    rows = [
        (
            f"{site.path or ''}{'' if site.role == 'output' else ':' + site.role}" or ":output",
            site.kind,
            site.fired,
            site.tensors,
            site.dropped or "",
            site.why or ", ".join(f"{name} {count}" for name, count in site.skipped.items()),
        )
        for site in ordered
    ]
    left = len(receipt.sites) - len(ordered)
    more = f"<p class='soft'>{text('view.more_sites', count=left)}</p>" if left else ""
    summary = text("view.receipt_sites", count=len(receipt.sites))
    opened = " open" if receipt.silent else ""
    return f"<details{opened}><summary>{summary}</summary>{table(titles, rows, css='plain words')}{more}</details>"


def _facts(info: Mapping[str, Any]) -> list[tuple[str, object]]:
    flat: dict[str, object] = {}
    for name, value in info.items():
        if name in _APART:
            continue
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": _shown(one) for inner, one in value.items()}
        elif value not in (None, "", [], ()):
            flat[name] = _shown(value)
    ranked = sorted(flat, key=lambda name: FACTS.index(name) if name in FACTS else len(FACTS))
    return [(name, flat[name]) for name in ranked]


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _span(steps: Sequence[int]) -> str:
    if not steps:
        return "0"
    return str(steps[0]) if len(steps) == 1 else f"{len(steps)} ({steps[0]} … {steps[-1]})"
