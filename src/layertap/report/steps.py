"""A training over its steps: losses, and what each site does at each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.files import open_regular, parse_json
from layertap.messages import tr
from layertap.report.charts.spec import heat_map, lines
from layertap.report.document import Block, Chart, Heading
from layertap.store import Run
from layertap.store.index import encoded

LOSS = "loss"
SCALARS = "scalars.jsonl"
STEPS = 120
"""Columns of a heat map; of more steps several share one."""
SITES = 72
"""Rows of a heat map."""
OVER_TIME = 5
"""Sites that are drawn as lines."""
EQUAL = 1e-9
"""What a difference of zero is drawn as, on a log scale."""

_LONGEST = 1 << 16
"""Bytes of a line of scalars; a longer one is read in pieces, and none of them is one."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """One number for each site and step."""

    sites: tuple[str, ...]
    steps: tuple[int, ...]
    values: Numbers
    """[site, step]; NaN where nothing was recorded."""
    bad: npt.NDArray[np.bool_]
    """Where NaN or Inf was recorded."""


def step_grid(run: Run, column: str = "abs_mean") -> Grid:
    """The mean of a statistic over ranks and calls, for each site and step; sites in order of execution."""
    table = run.table(["site", "order", "step", "asked", "nan", "pos_inf", "neg_inf", column])
    asked = table.column("asked").to_numpy(zero_copy_only=False)
    names, codes = encoded(table.column("site"))
    codes = codes[asked]
    found = {
        name: table.column(name).to_numpy()[asked] for name in ("order", "step", "nan", "pos_inf", "neg_inf", column)
    }
    first = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(first, codes, found["order"])
    shown = [int(code) for code in np.argsort(first, kind="stable") if first[code] < np.iinfo(np.int64).max]
    steps, at = np.unique(found["step"], return_inverse=True)
    row_of = np.full(len(names), -1)
    row_of[shown] = np.arange(len(shown))
    shape = (len(shown), len(steps))
    sums, counts, bad = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_)
    values = found[column]
    known = np.isfinite(values)
    place = (row_of[codes], at)
    np.add.at(sums, (place[0][known], place[1][known]), values[known])
    np.add.at(counts, (place[0][known], place[1][known]), 1)
    np.logical_or.at(bad, place, found["nan"] + found["pos_inf"] + found["neg_inf"] > 0)
    with np.errstate(invalid="ignore"):
        mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return Grid(tuple(names[code] for code in shown), tuple(int(step) for step in steps), mean, bad)


def losses(run: Run) -> list[tuple[float, float]]:
    """Step and loss, from the records and from the scalars that are written beside them."""
    found: dict[int, float] = {}
    for line in _lines_of(run.path):
        try:
            data = parse_json(line)
            found[int(data["step"])] = float(data[LOSS])
        except (ValueError, KeyError, TypeError, OverflowError):  # a line that is being written, or one without a loss
            continue
    if LOSS in run:
        table = run.table(["site", "step", "first"])
        for site, step, first in zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True):
            if site == LOSS and first:
                found[int(step)] = float(first[0])
    return sorted((float(step), loss) for step, loss in found.items())


def _lines_of(folder: Path | None) -> Iterator[bytes]:
    if folder is None:
        return
    try:
        with open_regular(Path(folder) / SCALARS) as file:
            while line := file.readline(_LONGEST):
                yield line
    except OSError:  # a run need not have scalars
        return


def training_blocks(run: Run, marks: Mapping[int, str] | None = None) -> list[Block]:
    """Loss, the sites over the steps, and some of them as lines; `marks` are steps with something to say."""
    blocks: list[Block] = []
    curve = losses(run)
    if len(curve) > 1:
        blocks += [_loss_chart({tr("chart.loss"): curve}, marks or {})]
    grid = step_grid(run)
    if len(grid.steps) < 2:
        return blocks
    usual = np.array([_median(row) for row in grid.values])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.log10(grid.values / usual)
    chart = _map(
        grid, relative, tr("chart.sites_steps"), domain=(-1.0, 1.0), ends=(tr("chart.smaller"), tr("chart.larger"))
    )
    blocks += [
        Heading(text=tr("page.over_steps")),
        Chart(spec=chart, caption=tr("chart.sites_steps.caption"), opening=True),
    ]
    series = {grid.sites[row]: list(_points(grid, row)) for row in _telling(relative)}
    spec = lines(series, tr("chart.mean_abs"), across=tr("chart.step"), log=True, height=200)
    blocks.append(Chart(spec=spec, caption=tr("chart.mean_abs.caption")))
    return blocks


def pair_blocks(reference: Run, candidate: Run) -> list[Block]:
    """Both losses in one chart, and how far apart the norms of each site are at each step."""
    blocks: list[Block] = []
    curves = {run.name: losses(run) for run in (reference, candidate)}
    if any(len(curve) > 1 for curve in curves.values()):
        blocks += [_loss_chart(curves, {})]
    one, two = step_grid(reference, "l2"), step_grid(candidate, "l2")
    sites = [site for site in one.sites if site in set(two.sites)]
    steps = sorted(set(one.steps) & set(two.steps))
    if not sites or len(steps) < 2:
        return blocks
    a, b = _narrowed(one, sites, steps), _narrowed(two, sites, steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(b.values - a.values) / np.where(a.values > 0, a.values, np.nan)
    apart = np.log10(np.maximum(apart, EQUAL))
    joint = Grid(tuple(sites), tuple(steps), apart, a.bad | b.bad)
    chart = _map(joint, apart, tr("chart.apart"), domain=(math.log10(EQUAL), 0.0), ends=("≤ 1e-9", "≥ 1"))
    return [*blocks, Heading(text=tr("page.apart")), Chart(spec=chart, caption=tr("chart.apart.caption"), opening=True)]


def _loss_chart(curves: Mapping[str, Sequence[tuple[float, float]]], marks: Mapping[int, str]) -> Chart:
    spec = lines(curves, tr("chart.loss"), across=tr("chart.step"), log=True, marks=marks)
    return Chart(spec=spec, caption="; ".join(marks.values()), opening=True)


def _map(
    grid: Grid, values: Numbers, title: str, *, domain: tuple[float, float], ends: tuple[str, str]
) -> dict[str, Any]:
    """The heat map, with neighbours of too many steps together: what is not finite wins, then the largest."""
    rows = _rows(grid)
    parts = np.array_split(np.arange(len(grid.steps)), min(len(grid.steps), STEPS))
    columns = [str(grid.steps[part[0]]) for part in parts]
    cells: list[tuple[str, str, float | str]] = []
    for row in rows:
        for column, part in zip(columns, parts, strict=True):
            found = values[row, part]
            known = found[np.isfinite(found)]
            if grid.bad[row, part].any():
                cells.append((column, grid.sites[row], "NaN"))
            elif len(known):
                cells.append((column, grid.sites[row], round(float(known[np.argmax(np.abs(known - domain[0]))]), 3)))
    names = [grid.sites[row] for row in rows]
    return heat_map(cells, title, columns=columns, rows=names, domain=domain, across=tr("chart.step"), ends=ends)


def _rows(grid: Grid) -> list[int]:
    """Where there are too many sites: those that were not finite, then the outer modules before the inner."""
    order = sorted(range(len(grid.sites)), key=lambda row: (not grid.bad[row].any(), grid.sites[row].count("."), row))
    return sorted(order[:SITES])


def _telling(relative: Numbers) -> list[int]:
    """The sites whose size changes most over the steps."""
    spread = [float(np.ptp(known)) if len(known := row[np.isfinite(row)]) > 1 else -1.0 for row in relative]
    return sorted(sorted(range(len(spread)), key=lambda row: -spread[row])[:OVER_TIME])


def _points(grid: Grid, row: int) -> Iterable[tuple[float, float]]:
    every = max(1, len(grid.steps) // 400)
    for place in range(0, len(grid.steps), every):
        value = math.nan if grid.bad[row, place] else float(grid.values[row, place])
        if grid.bad[row, place] or math.isfinite(value):
            yield float(grid.steps[place]), value


def _narrowed(grid: Grid, sites: Sequence[str], steps: Sequence[int]) -> Grid:
    places = {site: row for row, site in enumerate(grid.sites)}
    columns = {step: column for column, step in enumerate(grid.steps)}
    at = np.ix_([places[site] for site in sites], [columns[step] for step in steps])
    return Grid(tuple(sites), tuple(steps), grid.values[at], grid.bad[at])


def _median(row: Numbers) -> float:
    known = row[np.isfinite(row) & (row > 0)]
    return float(np.median(known)) if len(known) else math.nan
