"""Attention weights that a run has kept, as maps by head."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layertap.compare.tensors import array_of
from layertap.errors import LayertapError
from layertap.messages import tr
from layertap.report.charts.spec import heat_map
from layertap.report.document import Block, Chart, Heading
from layertap.site import Record
from layertap.store import Run
from layertap.store.dtype import to_numpy

HEADS = 8
SITES = 4
SIDE = 48
"""Points of a map's side; of longer sequences several share one."""
LARGEST = 1 << 26
"""Bytes of a kept tensor past which it is not read for a picture."""


def attention_blocks(run: Run) -> list[Block]:
    """A map for each head of the first sample: targets down, sources across."""
    charts: list[Block] = []
    for record in _candidates(run):
        try:
            array = array_of(run, record)
            maps = _maps(to_numpy(array.raw, array.dtype, array.shape))
        except LayertapError:  # a damaged tensor: the run's problems say so
            continue
        if maps is not None:
            charts.append(_chart(str(record.site), record.step, maps))
        if len(charts) == SITES:
            break
    return [Heading(text=tr("page.attention")), *charts] if charts else []


def _candidates(run: Run) -> list[Record]:
    """Records that may be attention weights: kept, of four axes, of a module whose class says so."""
    found = []
    for site in run.sites:
        if site.role != "output" or not site.leaf:
            continue
        record = run[site][-1]
        square = len(record.shape) == 4 and 1 < record.shape[2] <= 4096 and 1 < record.shape[3] <= 4096
        small = math.prod(record.shape) * 8 < LARGEST
        if record.kept == "tensor" and square and small and "attention" in record.kind.lower():
            found.append(record)
    return found


def _maps(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64] | None:
    """[head, target, source] of the first sample; None where the rows do not add up to 1, as those of weights do."""
    weights = np.asarray(values[0], np.float64)
    sums = weights.sum(-1)
    known = np.isfinite(sums)
    if not known.any() or np.median(np.abs(sums[known] - 1)) > 0.02:
        return None
    return weights


def _chart(site: str, step: int, maps: npt.NDArray[np.float64]) -> Chart:
    heads = []
    for head, weights in enumerate(maps[:HEADS]):
        small = _reduced(weights)
        high = float(np.nanmax(np.where(np.isfinite(small), small, 0.0), initial=0.0)) or 1.0
        cells = [
            (str(column), str(row), round(float(value), 4) if math.isfinite(value) else "NaN")
            for row, line in enumerate(small)
            for column, value in enumerate(line)
        ]
        rows, columns = ([str(place) for place in range(size)] for size in small.shape)
        title = tr("chart.head", head=head, most=f"{high:.2g}")
        heads.append(heat_map(cells, title, columns=columns, rows=rows, domain=(0.0, high), width=150, height=150))
    more = len(maps) - len(heads)
    spec = {"concat": heads, "columns": 4, "title": tr("chart.attention", site=site, step=step)}
    return Chart(spec=spec, caption=tr("chart.attention.more", count=more) if more else "")


def _reduced(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The largest of each block, so that a single bright point stays one."""
    rows, columns = (np.array_split(np.arange(size), min(size, SIDE)) for size in weights.shape)
    return np.array([[weights[np.ix_(row, column)].max() for column in columns] for row in rows])
