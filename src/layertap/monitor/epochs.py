"""Statistics of whole epochs, merged exactly from those of their batches.

A mean of the batches' means is wrong as soon as the last batch is smaller, and a mean of deviations always is. Counts,
means and squared deviations combine by Chan's formula, so an epoch's statistics are those of all its values together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from layertap.measure.result import merge_statistics
from layertap.site import Record, Site, Statistics
from layertap.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStatistics:
    """What one site gave in one epoch and phase."""

    site: Site
    """Without the call: all calls of the epoch are together."""
    epoch: int | None
    phase: str
    records: int
    statistics: Statistics


def epoch_statistics(run: Run | Iterable[Record]) -> list[EpochStatistics]:
    """For each site, epoch and phase of a run, all ranks and calls together; in order of first appearance."""
    records = run.records() if isinstance(run, Run) else run
    groups: dict[tuple[Site, int | None, str], list[Statistics]] = {}
    for record in records:
        if record.asked:
            site = Site(path=record.site.path, role=record.site.role, leaf=record.site.leaf)
            groups.setdefault((site, record.epoch, record.phase), []).append(record.statistics)
    return [
        EpochStatistics(site=site, epoch=epoch, phase=phase, records=len(parts), statistics=merge_statistics(parts))
        for (site, epoch, phase), parts in groups.items()
    ]
