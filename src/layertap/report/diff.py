"""A comparison in words: three lines that anyone can read, then the table by depth."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from layertap.compare.result import Report, Row
from layertap.report.values import jsonable, number

STYLES = {"identical": "green", "noise": "green", "fault": "bold red", "inconclusive": "yellow"}
BAR = 16
WORST = 3
HINT = "Recorded runs show where an error is first seen, not which layer made it: that takes the two models themselves."
METRICS = (
    *("max_abs", "mean_abs", "median_abs", "max_relative", "mean_relative", "median_relative", "mse", "rmse"),
    *("relative_mse", "relative_mae", "relative_l2", "cosine", "pearson", "sqnr", "max_ulp", "allclose", "close"),
    *("percentiles", "nan_mismatch", "inf_mismatch", "row", "column", "argmax"),
)
"""All of requirement F2, by their names in `Difference`."""


def report_text(report: Report, *, verbose: bool = False) -> str:
    """As plain text, for `print`, pytest and logs."""
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(report_view(report, verbose=verbose))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def report_view(report: Report, *, verbose: bool = False) -> Group:
    """For a terminal."""
    lines: list[Any] = [Text(line, style=style) for line, style in headline(report)]
    lines += [Text(f"note: {note}", style="yellow") for note in report.notes]
    if report.rows:
        lines += [Text(""), _table(report)]
        lines += _worst(report)
    lines += _unmatched(report)
    if verbose:
        lines += [Text(f"plan: {step}", style="dim") for step in report.plan]
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
        "notes": report.notes,
        "placebo": report.placebo,
        "floor": report.floor_kind,
        "first": None if first is None else str(first.site),
        "rows": rows,
        "unmatched": [{"side": side, "site": site} for side, site in report.unmatched],
        "plan": report.plan,
    }
    return dict(jsonable(whole))


def headline(report: Report) -> list[tuple[str, str]]:
    style = STYLES[report.verdict]
    verdict = "; ".join(report.reasons)
    lines = [(f"{report.verdict.upper()}: {report.candidate} against {report.reference}: {verdict}", style)]
    first = report.first
    if report.verdict == "fault" and first is not None:
        about = "≈" if first.estimated else ""
        lines.append(
            (
                f"first departure: {pair_name(first)} ({first.kind}), relative error {about}{number(first.error, 3)}",
                style,
            )
        )
        lines.append((f"how sure: {first.why}. {HINT}", ""))
    elif report.rows:
        worst = report.worst
        if worst is not None and worst.ratio and not math.isnan(worst.ratio):
            lines.append((f"closest to a fault: {pair_name(worst)}, {worst.why}", ""))
        lines.append((f"how sure: the floor is {report.floor_kind}{_floor_hint(report)}", ""))
    return lines


def _floor_hint(report: Report) -> str:
    if report.floor_kind == "measured":
        return ", from a run of the reference in the candidate's arithmetic"
    return " from dtypes and depth; floor=RUN (the reference in the candidate's dtype) would measure it"


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("site", overflow="fold")
    for title in ("verdict", "error", "floor", "ratio", "jump", "max |d|", "cosine"):
        table.add_column(title, justify="right")
    table.add_column("error, log scale")
    place = scale(report)
    for row in report.rows:
        table.add_row(
            *_cells(row),
            "█" * math.ceil(BAR * place(row.error)),
            style=STYLES[row.verdict] if row.verdict == "fault" else "",
        )
    return table


def _cells(row: Row) -> list[str]:
    found = row.difference
    about = "≈" if row.estimated else ""
    return [
        pair_name(row),
        row.verdict,
        f"{about}{number(row.error, 3)}",
        number(row.floor, 3),
        number(row.ratio, 3),
        number(row.jump, 3) if row.jump else "",
        "" if found is None else number(found.max_abs, 3),
        "" if found is None else f"{found.cosine:.6f}",
    ]


def _worst(report: Report) -> list[Text]:
    above = sorted((row for row in report.rows if row.verdict == "fault"), key=lambda row: -row.ratio)[:WORST]
    if len(above) < 2:
        return []
    return [Text("furthest above the floor: " + ", ".join(f"{pair_name(row)} ({number(row.ratio, 3)} ×)" for row in above))]


def _unmatched(report: Report) -> list[Text]:
    lines = []
    for side in ("reference", "candidate"):
        sites = [site for on, site in report.unmatched if on == side]
        if sites:
            more = f" and {len(sites) - 6} more" if len(sites) > 6 else ""
            lines.append(Text(f"only in the {side}: {', '.join(sites[:6])}{more}", style="yellow"))
    return lines


def pair_name(row: Row) -> str:
    if row.site == row.candidate_site:
        return str(row.site)
    return f"{row.site} ~ {row.candidate_site}"


def scale(report: Report) -> Callable[[float], float]:
    """Places an error between 0 and 1, on the log scale that all errors and floors of a report share."""
    logs = [math.log10(value) for row in report.rows for value in (row.error, row.floor) if 0 < value < math.inf]
    low, high = (min(logs) - 0.2, max(logs) + 0.2) if logs else (0.0, 1.0)

    def place(value: float) -> float:
        if math.isnan(value) or value <= 0:
            return 0.0
        return 1.0 if math.isinf(value) else (math.log10(value) - low) / (high - low)

    return place


def _row_dict(row: Row) -> dict[str, Any]:
    found = row.difference
    metrics = {} if found is None else {name: getattr(found, name) for name in METRICS}
    return {
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
