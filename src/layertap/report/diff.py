"""A comparison in words: three lines that anyone can read, then the table by depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from layertap.compare.columns import column
from layertap.compare.result import Report, Row
from layertap.messages import tr
from layertap.report.screen import plain_text
from layertap.report.table import Column, Lines
from layertap.report.values import number
from layertap.result import jsonable, with_codes

STYLES = {"identical": "green", "noise": "green", "fault": "bold red", "inconclusive": "yellow"}
BAR = 16
COLUMNS = (
    Column(title="site", left=True),
    *(Column(title=title) for title in ("verdict", "error")),
    Column(title="floor", spare=2),
    Column(title="ratio"),
    Column(title="jump", spare=5),
    Column(title="max |d|", spare=1),
    Column(title="cosine", spare=3),
)
STEP = Column(title="step")
MORE_COLUMNS = tuple(
    Column(title=title, spare=6)
    for title in ("mean |d|", "max rel", "mean rel", "p99 |d|", "SQNR dB", "max ulp", "close")
)
LONG = 200
"""A table with more rows is folded; with `verbose` none is."""
EDGE = 5
"""Rows that stay at each end of what is folded."""
WORST = 3
HINT = "report.offline_hint"
FLOORS = {
    "measured": "report.floor_measured",
    "modelled": "report.floor_modelled",
    "tolerance": "report.floor_tolerance",
}
LEGEND = "report.legend"
SAME = 3
"""More bit-identical rows in a row than this are one line."""
METRICS = (
    *("max_abs", "mean_abs", "median_abs", "max_relative", "mean_relative", "median_relative", "mse", "rmse"),
    *("relative_mse", "relative_mae", "relative_l2", "cosine", "pearson", "sqnr", "max_ulp", "allclose", "close"),
    *("percentiles", "nan_mismatch", "inf_mismatch", "row", "column", "argmax"),
)
"""The metrics by which people compare tensors, by their names in `Difference`."""
_COUNTS = (
    *("count", "finite", "nonfinite", "reference_square", "reference_abs", "row_typical", "column_typical", "exact"),
    *("slope", "offset", "equal"),
)
"""What a `Difference` has besides."""


def report_text(report: Report, *, verbose: bool = False) -> str:
    """As plain text, for `print`, pytest and logs."""
    return plain_text(report_view(report, verbose=verbose))


def report_view(report: Report, *, verbose: bool = False) -> Group:
    """For a terminal."""
    lines: list[Any] = [Text(line, style=style) for line, style in headline(report)]
    lines += [Text(tr("report.note", text=note), style="yellow") for note in report.notes]
    if report.rows:
        lines += [Text(""), _table(report, verbose)]
        if len(report.rows) > LONG and not verbose:
            lines.append(Text(tr("report.all_rows", total=len(report.rows)), style="dim"))
        if report.verdict != "identical":
            lines.append(Text(tr(LEGEND), style="dim"))
        lines += _worst(report)
    lines += _unmatched(report)
    if verbose:
        lines += [Text(tr("report.plan", step=step), style="dim") for step in report.plan]
    return Group(*lines)


def report_dict(report: Report) -> dict[str, Any]:
    """The same content for programs."""
    rows = [_row_dict(row) for row in report.rows]
    first = report.first
    whole = {
        "reference": report.reference,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "reasons": report.reasons,
        "cause": report.cause,
        "notes": report.notes,
        "placebo": report.placebo,
        "floor": report.floor_kind,
        "tolerance": report.tolerance,
        "first": None if first is None else str(first.site),
        "growth": report.growth,
        "rows": rows,
        "unmatched": [{"side": side, "site": site} for side, site in report.unmatched],
        "plan": report.plan,
    }
    return with_codes(dict(jsonable(whole)), report, "reasons", "notes", "plan")


def headline(report: Report) -> list[tuple[str, str]]:
    """The first lines, each with its style: the verdict, the first departure, how sure."""
    style = STYLES[report.verdict]
    sides = {
        "candidate": report.candidate,
        "reference": report.reference,
        "reasons": tr("result.separator").join(report.reasons),
    }
    lines = [(tr("report.verdict", verdict=tr(f"result.{report.verdict}"), **sides), style)]
    first, worst = report.first, report.worst
    if report.verdict == "fault" and first is not None:
        error = ("≈" if first.estimated else "") + number(first.error, 3)
        if first.kind:
            line = tr("report.first", site=row_namer(report)(first), kind=first.kind, error=error)
        else:
            line = tr("report.first_without_kind", site=row_namer(report)(first), error=error)
        lines.append((line, style))
        lines.append((tr("report.how_sure", why=first.why, hint=tr(HINT)), ""))
        if report.growth is not None:
            lines.append((tr("report.growth", growth=number(report.growth, 3)), ""))
    elif report.rows:
        if worst is not None and worst.ratio and not math.isnan(worst.ratio):
            lines.append((tr("report.closest", site=row_namer(report)(worst), why=worst.why), ""))
        if report.verdict != "identical":  # equal bits need no floor
            lines.append((tr(FLOORS[report.floor_kind], tolerance=report.tolerance), ""))
    return lines


def _table(report: Report, verbose: bool) -> Lines:
    steps = has_steps(report)
    table = Lines(
        [
            COLUMNS[0],
            *([STEP] if steps else ()),
            *COLUMNS[1:],
            *(MORE_COLUMNS if verbose else ()),
            Column(title=tr("report.scale"), left=True, spare=4),
        ]
    )
    place = scale(value for name in ("error", "floor") for value in column(report.rows, name))
    for rows in _folded(report.rows, whole=verbose):
        if len(rows) > 1:
            name, *cells = _folded_cells(rows)
            table.add([name, *([_steps(rows)] if steps else ()), *cells], "dim")
            continue
        (row,) = rows
        bar = "█" * math.ceil(BAR * place(row.error))
        style = STYLES[row.verdict] if row.verdict == "fault" else ""
        name, *cells = _cells(row)
        moment = [str(row.step)] if steps else []
        table.add([name, *moment, *cells, *(_more_cells(row) if verbose else ()), bar], style)
    return table


def _folded(rows: Sequence[Row], *, whole: bool) -> Iterator[list[Row]]:
    """Each row alone; what is bit-identical together; of a very long table, also stretches with nothing new."""
    if whole:
        yield from ([row] for row in rows)
        return
    for _, stretch in groupby(rows, key=lambda row: (row.verdict, row.why if row.verdict == "identical" else "")):
        alike = list(stretch)
        if alike[0].verdict == "identical":
            yield from [alike] if len(alike) > SAME else ([row] for row in alike)
            continue
        inner = [] if len(rows) <= LONG or len(alike) <= 3 * EDGE else alike[EDGE:-EDGE]
        yield from ([row] for row in alike[: EDGE if inner else None])
        if inner:
            yield inner
            yield from ([row] for row in alike[-EDGE:])


def _folded_cells(rows: Sequence[Row]) -> list[str]:
    error, ratio = (_most(getattr(row, name) for row in rows) for name in ("error", "ratio"))
    sizes = (f"≤{number(error, 3)}", "", f"≤{number(ratio, 3)}") if error else ("0", "", "0")
    verdict = rows[0].verdict
    name = tr("report.more_rows", count=len(rows))
    if verdict == "identical":
        name = f"{pair_name(rows[0])} … {pair_name(rows[-1])} ({len(rows)})"
    return [name, tr(f"table.{verdict}"), *sizes, "", "", "", ""]


def _most(values: Iterable[float]) -> float:
    found = list(values)
    return math.nan if any(map(math.isnan, found)) else max(found)


def _cells(row: Row) -> list[str]:
    found = row.difference
    about = "≈" if row.estimated else ""
    return [
        pair_name(row),
        tr(f"table.{row.verdict}"),
        f"{about}{number(row.error, 3)}",
        number(row.floor, 3),
        number(row.ratio, 3),
        number(row.jump, 3) if row.jump else "",
        "" if found is None else number(found.max_abs, 3),
        "" if found is None else f"{found.cosine:.6f}",
    ]


def _more_cells(row: Row) -> list[str]:
    found = row.difference
    if found is None:
        return [""] * 7
    values = (found.mean_abs, found.max_relative, found.mean_relative, found.percentiles[3], found.sqnr, found.max_ulp)
    return [*(number(value, 3) for value in values), f"{found.close:.2%}"]


def _worst(report: Report) -> list[Text]:
    above = sorted((row for row in report.rows if row.verdict == "fault"), key=lambda row: -row.ratio)[:WORST]
    if len(above) < 2:
        return []
    name = row_namer(report)
    named = ", ".join(f"{name(row)} ({number(row.ratio, 3)} ×)" for row in above)
    return [Text(tr("report.worst", named=named))]


def _unmatched(report: Report) -> list[Text]:
    lines = []
    for side in ("reference", "candidate"):
        sites = [site for on, site in report.unmatched if on == side]
        if sites:
            more = tr("report.and_more", count=len(sites) - 6) if len(sites) > 6 else ""
            named = ", ".join(sites[:6]) + more
            lines.append(Text(tr("report.only_in", side=side, site=named), style="yellow"))
    return lines


def has_steps(report: Report) -> bool:
    """Whether the rows are of several steps, so that a site alone does not name one."""
    steps = iter(column(report.rows, "step"))
    first = next(steps, None)
    return any(step != first for step in steps)


def row_namer(report: Report) -> Callable[[Row], str]:
    """What gives each row of a report its name in a sentence: with the step where there are several."""
    if not has_steps(report):
        return pair_name
    return lambda row: tr("report.at_step", site=pair_name(row), step=row.step)


def _steps(rows: Sequence[Row]) -> str:
    low, high = min(row.step for row in rows), max(row.step for row in rows)
    return str(low) if low == high else f"{low}-{high}"


def pair_name(row: Row) -> str:
    if row.site == row.candidate_site:
        return str(row.site)
    return f"{row.site} ~ {row.candidate_site}"


def scale(errors: Iterable[float]) -> Callable[[float], float]:
    """Places an error between 0 and 1, on the log scale that all errors and floors share."""
    logs = [math.log10(value) for value in errors if 0 < value < math.inf]
    low, high = (min(logs) - 0.2, max(logs) + 0.2) if logs else (0.0, 1.0)

    def place(value: float) -> float:
        if math.isnan(value) or value <= 0:
            return 0.0
        return 1.0 if math.isinf(value) else (math.log10(value) - low) / (high - low)

    return place


def _row_dict(row: Row) -> dict[str, Any]:
    found = row.difference
    metrics = {} if found is None else {name: getattr(found, name) for name in (*METRICS, *_COUNTS)}
    plain = {
        "site": str(row.site),
        "candidate_site": str(row.candidate_site),
        "kind": row.kind,
        "step": row.step,
        "order": row.order,
        "verdict": row.verdict,
        "why": row.why,
        "error": row.error,
        "estimated": row.estimated,
        "floor": row.floor,
        "floor_kind": row.floor_kind,
        "ratio": row.ratio,
        "jump": row.jump,
        "rung": row.rung,
        "metrics": metrics,
    }
    return with_codes(plain, row, "why")
