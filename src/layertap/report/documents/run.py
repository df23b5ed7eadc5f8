"""One run as a document: what came, what it is like over depth and over steps, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from layertap.messages import tr
from layertap.report.attention import attention_blocks
from layertap.report.charts.spec import lines
from layertap.report.document import Block, Chart, Document, Heading, SiteTable, Table, TableRow, Verbatim
from layertap.report.receipt import receipt_text
from layertap.report.rows import chosen
from layertap.report.show import run_rows, telling_step
from layertap.report.site_table import SiteEntry
from layertap.report.steps import training_blocks
from layertap.report.values import number
from layertap.site import Site
from layertap.store import Run

LISTED = 4000
SCREEN = 100
"""Records past which a run of several steps shows one of them."""
FACTS = ("kind", "model", "target", "artefact", "runtime", "created", "layertap", "torch", "python", "device", "host")
"""Of what a run says of itself, what comes first; other plain values follow."""
COLUMNS = ("shape", "dtype", "mean", "std", "min", "max", "zero", "nonfinite", "change")


def run_document(run: Run, triggers: Sequence[Any] = ()) -> Document:
    """`triggers` are the reports of a watched training."""
    only = telling_step(run, long=SCREEN)
    rows = run_rows(run, step=only)
    born = next((row for row in rows if row["nan"] or row["inf"]), None)
    shown, left = chosen(rows, LISTED, ["fault" if row["nan"] or row["inf"] else "" for row in rows])
    receipt_lines = receipt_text(run.receipt).splitlines() if run.receipt is not None else []
    lines_of = [receipt_lines[0]] if receipt_lines else []
    if born is not None:
        lines_of.insert(0, tr("page.born", site=born["site"], nan=born["nan"], inf=born["inf"]))
    blocks: list[Block] = []
    for report in triggers:
        blocks += [Heading(text=tr("page.trigger")), Verbatim(text=str(report))]
    blocks += training_blocks(
        run, {report.step: tr("page.trigger_at", rule=report.rule, step=report.step) for report in triggers}
    )
    blocks += [
        _depth(rows),
        Heading(text=_moment(only, rows)),
        SiteTable(entries=_entries(run, shown, born), columns=_titles(), left_out=left),
    ]
    blocks += attention_blocks(run)
    blocks += [Heading(text=tr("page.receipt")), Verbatim(text="\n".join(receipt_lines))] if receipt_lines else []
    facts = _facts(run.info)
    if facts:
        blocks += [Heading(text=tr("page.facts")), Table(titles=["", ""], rows=facts, left=(0, 1))]
    return Document(
        title=f"layertap: {run.name}",
        verdict="",
        headline=str(run),
        lines=lines_of,
        notes=run.problems,
        blocks=blocks,
    )


def receipt_blocks(*runs: Run) -> list[Block]:
    """The receipts of some runs, for a report that is about them."""
    blocks: list[Block] = []
    for run in runs:
        if run.receipt is not None:
            blocks.append(Heading(text=tr("page.receipt_of", run=run.name)))
            blocks.append(Verbatim(text=receipt_text(run.receipt)))
    return blocks


def _moment(only: int | None, rows: Sequence[Mapping[str, Any]]) -> str:
    steps = {row["step"] for row in rows}
    if only is not None or len(steps) == 1:
        return tr("page.sites_at", step=only if only is not None else next(iter(steps)))
    return tr("page.sites")


def _depth(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """The sizes of the values over depth; a run of several steps shows its last."""
    last = max((row["step"] for row in rows), default=0)
    now = [row for row in rows if row["step"] == last]
    bad = [bool(row["nan"] or row["inf"]) for row in now]
    series = {
        tr("chart.abs_mean"): [
            (n, math.nan if b else row["abs_mean"]) for n, (row, b) in enumerate(zip(now, bad, strict=True))
        ],
        tr("chart.abs_max"): [
            (n, math.nan if b else max(abs(row["min"]), abs(row["max"])))
            for n, (row, b) in enumerate(zip(now, bad, strict=True))
        ],
    }
    spec = lines(series, tr("chart.over_depth", step=last), across=tr("chart.depth"), log=True, height=180)
    return Chart(spec=spec, opening=True)


def _titles() -> tuple[str, ...]:
    return tuple(tr(f"page.run.{name}") for name in COLUMNS)


def _entries(run: Run, rows: Sequence[Mapping[str, Any]], born: Mapping[str, Any] | None) -> list[SiteEntry]:
    several = len({(row["step"], row["rank"], row["phase"]) for row in rows}) > 1
    return [_entry(row, several=several, first=row is born) for row in rows]


def _entry(row: Mapping[str, Any], *, several: bool, first: bool) -> SiteEntry:
    change = row["change"]
    relative = number(change["relative"], 3) if "relative" in change else ""
    bad = [f"{row[name]} {said}" for name, said in (("nan", "NaN"), ("inf", "Inf")) if row[name]]
    moment = tr("page.run.moment", step=row["step"], rank=row["rank"], phase=row["phase"]) if several else ""
    return SiteEntry(
        site=row["site"],
        path=_path(row["site"]),
        kind=f"{row['kind']} {moment}".strip(),
        state="nonfinite" if bad else "finite",
        first=first,
        title=moment,
        cells=(
            "×".join(map(str, row["shape"])) or tr("page.run.scalar"),
            row["dtype"],
            *(number(row[name]) for name in ("mean", "std", "min", "max")),
            f"{row['zero'] / row['count']:.0%}" if row["zero"] else "",
            ", ".join(bad),
            relative if change.get("exact") or not relative else f"≈{relative}",
        ),
    )


def _path(site: str) -> str:
    try:
        return Site.parse(site).path
    except ValueError:
        return site


def _facts(info: Mapping[str, Any]) -> list[TableRow]:
    """Plain values of what the run says of itself."""
    flat: dict[str, str] = {}
    for name, value in info.items():
        if name == "receipt":
            continue
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": str(one) for inner, one in value.items() if _is_plain(one)}
        elif _is_plain(value):
            flat[name] = str(value)
    ranked = sorted(flat, key=lambda name: FACTS.index(name) if name in FACTS else len(FACTS))
    return [TableRow(cells=[name, flat[name]]) for name in ranked]


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool)) and str(value) != ""
