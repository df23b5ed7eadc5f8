"""A sweep as charts: every mode against every other, and errors by depth."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layertap.messages import tr
from layertap.report.charts.spec import lines, matrix
from layertap.report.document import Chart
from layertap.sweeping.result import Sweep

MODES = 12
"""Lines in one chart; more are not distinguishable."""


def matrix_chart(sweep: Sweep) -> Chart:
    """The largest error over the sites that both modes have."""
    names = list(sweep.matrix)
    cells = [(one, other, _worst(sweep, one, other)) for one in names for other in names if other in sweep.matrix[one]]
    spec = matrix(cells, tr("chart.matrix"), names=names, equal="=", across=tr("chart.matrix.across"))
    return Chart(spec=spec, caption=tr("chart.matrix.caption"), opening=True)


def depth_chart(sweep: Sweep) -> Chart:
    """One line a mode; modes that are the reference bit for bit are none."""
    series = {
        mode.name: [(float(place), row.error) for place, row in enumerate(mode.rows) if row.error]
        for mode in sweep.modes.values()
        if any(row.error for row in mode.rows)
    }
    shown = dict(list(series.items())[:MODES])
    spec = lines(
        shown, tr("chart.depth_errors", reference=sweep.reference), across=tr("chart.depth"), log=True, height=220
    )
    return Chart(spec=spec, opening=True)


def _worst(sweep: Sweep, one: str, other: str) -> float:
    return _largest(sweep.matrix[one][other].values()) if one != other else 0.0


def _largest(errors: Iterable[float]) -> float:
    found = list(errors)
    bad = [error for error in found if not math.isfinite(error)]
    return bad[0] if bad else max(found, default=math.nan)
