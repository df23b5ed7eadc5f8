"""A run on one screen: every site in order of execution, then one site in detail."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from layertap.compare.tensors import array_of
from layertap.measure.pair import compare
from layertap.measure.sketch import relative_l2
from layertap.messages import tr
from layertap.report.table import Column, Lines
from layertap.report.values import number, sparkline
from layertap.site import Record
from layertap.store import Run, SiteRecords
from layertap.store.index import integers_of

RED = "bold red"
_NUMBER = re.compile(r"\d+")
LONG = 1000
"""Records past which a training is shown one step at a time."""
FEW = 10
"""Records of one site that are given a paragraph each."""
MOMENT = ("step", "rank", "phase")
"""Shown where there are several."""
COLUMNS = (
    Column(title="site", left=True),
    *(Column(title=title) for title in MOMENT),
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
    """One row a record, in order of execution, each with its difference from the same place a layer before.

    A layer before is one of the same pass: the last layer of another step, rank or phase is none.
    """
    rows = []
    before: dict[tuple[object, ...], Record] = {}
    for record in run.records(step=step, rank=rank):
        if not record.asked:
            continue
        site = record.site
        moment = (record.step, record.rank, record.phase, site.call)
        kin = (_NUMBER.sub("*", site.path), site.role, site.leaf, record.shape, *moment)
        rows.append(_row(record) | {"change": _change(run, before.get(kin), record)})
        before[kin] = record
    return rows


def telling_step(run: Run, rank: int | None = None, *, long: int = LONG) -> int | None:
    """Of a training whose steps fill many screens: the first with NaN or Inf, else the last."""
    if run.count <= long:
        return None
    columns = run.table(["step", "rank", "asked", "nan", "pos_inf", "neg_inf"])
    found = {name: integers_of(columns.column(name)) for name in columns.column_names}
    here = slice(None) if rank is None else found["rank"] == rank
    steps = found["step"][here]
    if len(steps) == 0 or steps.min() == steps.max():
        return None
    bad = (found["asked"] != 0) & (found["nan"] + found["pos_inf"] + found["neg_inf"] > 0)
    born = steps[bad[here]]
    return int(born.min() if len(born) else steps.max())


def run_view(run: Run, rows: Sequence[dict[str, Any]], only: int | None = None) -> Group:
    """The table, under a line of bars over depth and above what is wrong with the run itself."""
    head = [Text(str(run), style="bold")]
    if only is not None:
        which = "show.first_nonfinite" if any(row["nan"] or row["inf"] for row in rows) else "show.last"
        warning = tr(
            "show.one_step",
            step=only,
            which=tr(which),
        )
        head.append(Text(warning, style="yellow"))
    head += [Text(tr("show.problem", problem=problem), style=RED) for problem in run.problems]
    sizes = [row["abs_mean"] for row in rows]
    if len(sizes) > 1:
        head.append(Text(tr("show.depth", sparkline=sparkline(sizes)), style="cyan"))
    several = [name for name in MOMENT if len({row[name] for row in rows}) > 1]
    table = Lines([column for column in COLUMNS if column.title not in MOMENT or column.title in several])
    for row in rows:
        table.add(_cells(row, several), RED if row["nan"] or row["inf"] else "")
    born = next((row for row in rows if row["nan"] or row["inf"]), None)
    foot = []
    if born is not None:
        foot.append(Text(tr("show.first_values", site=born["site"], nan=born["nan"], inf=born["inf"]), style=RED))
    if any(row["change"] for row in rows):
        foot.append(Text(tr("show.change"), style="dim"))
    return Group(*head, table, *foot)


def site_rows(found: SiteRecords) -> list[dict[str, Any]]:
    """One row for each record of one site."""
    return [_row(record) | {"first": list(record.statistics.first)} for record in found.listed()]


def site_view(found: SiteRecords) -> Group:
    """Everything known about one site."""
    records = found.listed()
    last = records[-1]
    lines = [
        Text(f"{last.site}  {last.kind}", style="bold"),
        Text(tr("show.tensor", shape=_shape(last.shape), dtype=last.dtype, device=last.device)),
    ]
    if len(records) > 1:
        sizes = [record.statistics.abs_mean for record in records]
        lines.append(Text(tr("show.records", count=len(records), sparkline=sparkline(sizes)), style="cyan"))
    if len(records) > FEW:
        return Group(*lines, _over_time(records))
    for record in records:
        stats = record.statistics
        bad = stats.nonfinite > 0
        lines.append(Text(tr("show.moment", step=record.step, phase=record.phase, rank=record.rank), style="bold"))
        names = ("count", "mean", "std", "min", "max", "abs_mean", "abs_max", "l2", "zero")
        lines += [Text(f"  {name:9}{number(getattr(stats, name), 7)}") for name in names]
        lines.append(Text(f"  NaN {stats.nan}  +Inf {stats.pos_inf}  -Inf {stats.neg_inf}", style=RED if bad else ""))
        lines.append(Text(tr("show.first_of", values=" ".join(number(value, 6) for value in stats.first))))
        lines.append(Text(tr("show.fingerprint", fingerprint=record.fingerprint, kept=record.kept)))
    return Group(*lines)


def _over_time(found: Sequence[Record]) -> Lines:
    """One line a record, where there are too many for a paragraph each."""
    names = ("mean", "std", "min", "max", "abs_max", "l2", "zero", "nan", "pos_inf", "neg_inf")
    spare = {"abs_max": 5, "l2": 4, "zero": 3, "std": 2}
    several = [name for name in ("epoch", "batch", "rank", "phase") if len({getattr(r, name) for r in found}) > 1]
    table = Lines([Column(title=title, spare=spare.get(title, 0)) for title in ("step", *several, *names)])
    for record in found:
        stats = record.statistics
        moment = (str(getattr(record, name)) for name in ("step", *several))
        table.add([*moment, *(number(getattr(stats, name)) for name in names)], RED if stats.nonfinite else "")
    return table


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


def _cells(row: dict[str, Any], several: Sequence[str]) -> list[str]:
    change = row["change"]
    about = "" if change.get("exact") else "≈"
    share = f"{row['zero'] / row['count']:.0%}" if row["zero"] else ""
    return [
        row["site"],
        *(str(row[name]) for name in several),
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
