"""How the values of a site differ between two runs: the histogram of candidate minus reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from layertap.compare.tensors import array_of
from layertap.messages import tr
from layertap.report.charts.spec import histogram
from layertap.report.document import Block, Chart, Heading
from layertap.report.values import number
from layertap.site import Record, Site
from layertap.store import Run
from layertap.store.dtype import to_numpy

if TYPE_CHECKING:
    from layertap.compare.result import Report, Row

BINS = 64
BLOCK = 1 << 20
"""Elements in memory at a time."""
SHOWN = 3
"""Sites that get a histogram."""

Values = npt.NDArray[np.float64]


def difference_blocks(report: Report, reference: Run, candidate: Run) -> list[Block]:
    """Histograms of the first departure, the worst site and the last, where both tensors were kept."""
    if not report.rows or report.verdict == "identical":
        return []
    wanted = [row for row in (report.first, report.worst, report.rows[-1]) if row is not None]
    charts: list[Block] = []
    for row in {str(row.site): row for row in wanted}.values():
        pair = _pair(row, reference, candidate)
        if pair is not None and len(charts) < SHOWN:
            charts.append(_chart(str(row.site), reference, candidate, *pair))
    return [Heading(text=tr("page.differences")), *charts] if charts else []


def _chart(site: str, reference: Run, candidate: Run, a: Record, b: Record) -> Chart:
    low, high, count, nonfinite = math.inf, -math.inf, 0, 0
    total = 0.0
    for part in _differences(reference, candidate, a, b):
        known = part[np.isfinite(part)]
        nonfinite += len(part) - len(known)
        count += len(known)
        if len(known):
            low, high = min(low, float(known.min())), max(high, float(known.max()))
            total += float(np.abs(known).sum())
    if not count or low == high:
        low, high = (low - 0.5, low + 0.5) if count else (-0.5, 0.5)
    edges = np.linspace(low, high, BINS + 1)
    counts = np.zeros(BINS, np.int64)
    for part in _differences(reference, candidate, a, b):
        counts += np.histogram(part[np.isfinite(part)], edges)[0]
    said = tr("chart.difference.said", mean=number(total / count if count else math.nan, 3), count=count)
    if nonfinite:
        said += tr("chart.difference.nonfinite", count=nonfinite)
    spec = histogram(edges.tolist(), counts.tolist(), tr("chart.difference.title", site=site))
    return Chart(spec=spec, caption=said)


def _differences(reference: Run, candidate: Run, a: Record, b: Record) -> Iterator[Values]:
    """Candidate minus reference in float64, block by block."""
    one, two = array_of(reference, a), array_of(candidate, b)
    count = math.prod(a.kept_shape)
    wide = [len(array.raw) // count for array in (one, two)]
    for start in range(0, count, BLOCK):
        parts = []
        for array, width in zip((one, two), wide, strict=True):
            raw = array.raw[start * width : (start + BLOCK) * width]
            parts.append(to_numpy(raw, array.dtype, (len(raw) // width,)).astype(np.float64))
        with np.errstate(invalid="ignore", over="ignore"):
            yield parts[1] - parts[0]


def _pair(row: Row, reference: Run, candidate: Run) -> tuple[Record, Record] | None:
    """The records of a row, where it is plain which they are and they can be subtracted."""
    a, b = _record(reference, row.site, row.step, row.order), _record(candidate, row.candidate_site, row.step, None)
    if a is None or b is None or a.kept_shape != b.kept_shape or not math.prod(a.kept_shape):
        return None
    plain = all(not record.kept_dtype.startswith("complex") for record in (a, b))
    return (a, b) if a.kept == b.kept == "tensor" and plain else None


def _record(run: Run, site: Site, step: int, order: int | None) -> Record | None:
    if site not in run:
        return None
    found = [record for record in run[site] if record.step == step and order in (None, record.order)]
    found = found or list(run[site])
    return found[0] if len(found) == 1 else None
