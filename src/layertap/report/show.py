"""A run on one screen: every site in order of execution, then one site in detail."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from layertap.compare.measuring import array_of
from layertap.measure.pair import compare
from layertap.measure.sketch import relative_l2
from layertap.report.table import Column, Lines
from layertap.report.values import number, sparkline
from layertap.site import Record
from layertap.store import Run, SiteRecords
from layertap.words import say

RED = "bold red"
_NUMBER = re.compile(r"\d+")
COLUMNS = (
    Column(title="site", left=True),
    Column(title="step"),
    Column(title="shape", spare=2),
    Column(title="dtype", spare=5),
    Column(title="mean"),
    Column(title="std", spare=1),
    *(Column(title=title) for title in ("min", "max")),
    Column(title="zero", spare=4),
    *(Column(title=title) for title in ("nan", "inf")),
    Column(title="Δ max", spare=6),
    Column(title="Δ mean", spare=7),
    Column(title="Δ rel", spare=3),
)


def run_rows(run: Run, *, step: int | None = None, rank: int | None = None) -> list[dict[str, Any]]:
    """One row a record, in order of execution, each with its difference from the same place a layer before."""
    rows = []
    before: dict[tuple[object, ...], Record] = {}
    for record in _chosen(run.records(), step, rank):
        if not record.asked:
            continue
        kin = (_NUMBER.sub("*", record.site.path), record.site.role, record.site.leaf, record.site.call, record.shape)
        rows.append(_row(record) | {"change": _change(run, before.get(kin), record)})
        before[kin] = record
    return rows


def run_view(run: Run, rows: Sequence[dict[str, Any]]) -> Group:
    """The table, under a line of bars over depth and above what is wrong with the run itself."""
    head = [Text(str(run), style="bold")]
    head += [Text(f"problem: {problem}", style=RED) for problem in run.problems]
    sizes = [row["abs_mean"] for row in rows]
    if len(sizes) > 1:
        head.append(Text(f"mean |x| over depth, log scale  {sparkline(sizes)}", style="cyan"))
    steps = len({row["step"] for row in rows}) > 1
    table = Lines([column for column in COLUMNS if steps or column.title != "step"])
    for row in rows:
        table.add(_cells(row, steps), RED if row["nan"] or row["inf"] else "")
    born = next((row for row in rows if row["nan"] or row["inf"]), None)
    foot = []
    if born is not None:
        template = "first non-finite values: {site} ({nan} NaN, {inf} Inf)"
        foot.append(Text(say(template, site=born["site"], nan=born["nan"], inf=born["inf"]), style=RED))
    if any(row["change"] for row in rows):
        foot.append(Text("Δ: against the same place one layer before; ≈ estimated from sketches", style="dim"))
    return Group(*head, table, *foot)


def site_rows(found: SiteRecords) -> list[dict[str, Any]]:
    """One row for each record of one site."""
    return [_row(record) | {"first": list(record.statistics.first)} for record in found]


def site_view(found: SiteRecords) -> Group:
    """Everything known about one site."""
    last = found[-1]
    lines = [
        Text(f"{last.site}  {last.kind}", style="bold"),
        Text(f"{_shape(last.shape)} {last.dtype} on {last.device}"),
    ]
    if len(found) > 1:
        sizes = [record.statistics.abs_mean for record in found]
        lines.append(Text(f"{len(found)} records, mean |x|  {sparkline(sizes)}", style="cyan"))
    for record in found:
        stats = record.statistics
        bad = stats.nonfinite > 0
        lines.append(Text(f"step {record.step} {record.phase} rank {record.rank}", style="bold"))
        names = ("count", "mean", "std", "min", "max", "abs_mean", "abs_max", "l2", "zero")
        lines += [Text(f"  {name:9}{number(getattr(stats, name), 7)}") for name in names]
        lines.append(Text(f"  NaN {stats.nan}  +Inf {stats.pos_inf}  -Inf {stats.neg_inf}", style=RED if bad else ""))
        lines.append(Text(f"  first    {' '.join(number(value, 6) for value in stats.first)}"))
        lines.append(Text(f"  fingerprint {record.fingerprint:016x}  kept {record.kept}"))
    return Group(*lines)


def _chosen(records: Iterable[Record], step: int | None, rank: int | None) -> Iterable[Record]:
    for record in records:
        if step in (None, record.step) and rank in (None, record.rank):
            yield record


def _row(record: Record) -> dict[str, Any]:
    stats = record.statistics
    return {
        "site": str(record.site),
        "kind": record.kind,
        "step": record.step,
        "rank": record.rank,
        "phase": record.phase,
        "shape": list(record.shape),
        "dtype": record.dtype,
        "mean": stats.mean,
        "std": stats.std,
        "min": stats.min,
        "max": stats.max,
        "abs_mean": stats.abs_mean,
        "l2": stats.l2,
        "zero": stats.zero,
        "nan": stats.nan,
        "inf": stats.pos_inf + stats.neg_inf,
        "count": stats.count,
        "fingerprint": f"{record.fingerprint:016x}",
        "kept": record.kept,
    }


def _change(run: Run, before: Record | None, record: Record) -> dict[str, Any]:
    """How far a layer's output is from the layer's before it: exact where both tensors were kept."""
    if before is None:
        return {}
    if before.kept == record.kept == "tensor":
        found = compare(array_of(run, before), array_of(run, record))  # streamed: a run may be larger than memory
        if found.finite < found.count:
            return {"max": math.nan, "mean": math.nan, "relative": math.nan, "exact": True}
        return {"max": found.max_abs, "mean": found.mean_abs, "relative": found.relative_l2, "exact": True}
    if before.sketch and record.sketch and before.statistics.l2:
        return {"relative": relative_l2(before.sketch, record.sketch, before.statistics.l2), "exact": False}
    return {}


def _cells(row: dict[str, Any], steps: bool) -> list[str]:
    change = row["change"]
    about = "" if change.get("exact") else "≈"
    share = f"{row['zero'] / row['count']:.0%}" if row["zero"] else ""
    return [
        row["site"],
        *([str(row["step"])] if steps else []),
        _shape(row["shape"]),
        row["dtype"],
        *(number(row[name]) for name in ("mean", "std", "min", "max")),
        share,
        str(row["nan"] or ""),
        str(row["inf"] or ""),
        *(number(change[name], 3) if name in change else "" for name in ("max", "mean")),
        f"{about}{number(change['relative'], 3)}" if "relative" in change else "",
    ]


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"
