"""Which steps a folder holds already, for those who go on writing into it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from layertap.errors import LayertapError
from layertap.store.run import Run


def recorded_steps(path: Path, rank: int) -> tuple[int | None, int | None]:
    """The first and the last step that a rank has recorded in a folder already; other ranks may be at work in it."""
    try:
        table = Run(path).table(["step", "rank"])
    except LayertapError:
        return None, None
    found = pc.min_max(table.filter(pc.equal(table.column("rank"), rank)).column("step"))
    return found["min"].as_py(), found["max"].as_py()
