"""Attention weights that a run has kept, as maps by head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from layertap.compare.tensors import array_of
from layertap.errors import LayertapError
from layertap.messages import tr
from layertap.report.charts.spec import heat_map, without_names
from layertap.report.document import Block, Chart, Heading
from layertap.site import Record
from layertap.store import Run
from layertap.store.dtype import to_numpy

HEADS = 8
SITES = 4
SIDE = 48
"""Points of a map's side; of longer sequences several share one."""
PICTURE = 150
"""Width and height of a map, in points of the page."""
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


def _candidates(run: Run) -> Iterator[Record]:
    """Records that may be attention weights: kept, of four axes, of a module whose class says so."""
    table = run.table(["site", "role", "leaf", "kind", "kept", "shape"])
    texts = [table.column(name) for name in ("site", "kind", "shape")]
    wanted = pc.and_(pc.equal(table.column("role"), "output"), pc.not_equal(table.column("leaf"), ""))
    wanted = pc.and_(wanted, pc.equal(table.column("kept"), "tensor"))
    found = zip(*(column.filter(wanted).to_pylist() for column in texts), strict=True)
    sites = {site for site, kind, shape in found if "attention" in kind.lower() and _may_be_weights(shape)}
    for site in run.sites:
        if str(site) in sites and _may_be_weights((record := run[site][-1]).shape) and record.kept == "tensor":
            yield record


def _may_be_weights(shape: Sequence[int]) -> bool:
    sides = len(shape) == 4 and all(1 < side <= 4096 for side in shape[2:])
    return sides and 0 < math.prod(shape) * 8 < LARGEST


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
        whole = heat_map(cells, title, columns=columns, rows=rows, domain=(0.0, high))
        heads.append(without_names(whole, PICTURE))
    more = len(maps) - len(heads)
    spec = {"concat": heads, "columns": 4, "title": tr("chart.attention", site=site, step=step)}
    return Chart(spec=spec, caption=tr("chart.attention.more", count=more) if more else "")


def _reduced(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The largest of each block, so that a single bright point stays one."""
    rows, columns = (np.array_split(np.arange(size), min(size, SIDE)) for size in weights.shape)
    return np.array([[weights[np.ix_(row, column)].max() for column in columns] for row in rows])
