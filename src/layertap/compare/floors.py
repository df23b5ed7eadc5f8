"""The floor at each site, measured by runs that differ from the reference by rounding alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layertap.compare.align import align
from layertap.compare.measured_pairs import RunPair, measured_pairs
from layertap.engine import Engine
from layertap.judge.floor import Floor, FloorKey, key_of
from layertap.store import Run


def measured_floors(engine: Engine, reference: Run, floors: Sequence[Run]) -> dict[FloorKey, Floor]:
    """Lays each floor run beside the reference; where there are several, the largest error counts."""
    found: dict[FloorKey, Floor] = {}
    for run in floors:
        alignment = align(reference, run)
        pairs = ((pair, False) for pair in alignment.pairs)
        for pair, measured in measured_pairs(engine, RunPair(reference, run, alignment.trims), pairs):
            if math.isnan(measured.error):
                continue
            here = measured.difference
            row = here.row.relative if here and here.row else measured.error
            column = here.column.relative if here and here.column else measured.error
            key = key_of(pair.reference)
            old = found.get(key)
            found[key] = Floor(
                error=max(measured.error, old.error if old else 0.0),
                row=max(row, old.row if old else 0.0),
                column=max(column, old.column if old else 0.0),
                kind="measured",
            )
    return found
