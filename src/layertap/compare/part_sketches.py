"""Ranks that kept statistics alone against a side that kept the tensor: each part by its own fingerprint and sketch.

The whole tensor is cut as the ranks hold it, and each piece measured as its rank has measured it. That is nearer to the
error than one sketch of the whole, which parts of earlier runs do not add up to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.compare.tensors import array_of, elements
from layertap.judge.measured import Measured
from layertap.measure.sketch import relative_l2
from layertap.site import Record
from layertap.store import Run
from layertap.store.assembly import whole_of
from layertap.store.merged import MergedRun


def by_parts(runs: tuple[Run, Run], records: tuple[Record, Record]) -> Measured | None:
    """The error of a pair of which one side is a tensor and the other statistics of parts; None for other pairs."""
    for side in (0, 1):
        run, other, record = runs[side], runs[1 - side], records[1 - side]
        if isinstance(run, MergedRun) and record.kept == "tensor" and record.kept_shape == records[side].shape:
            parts = run.parts_of(records[side])
            if parts and all(part.sketch for part in parts) and find_spec("torch") is not None:
                return _measured(other, record, parts, reference=records[0])
    return None


def _measured(other: Run, record: Record, parts: Sequence[Record], *, reference: Record) -> Measured | None:
    whole = whole_of(parts)
    if whole.reduction or not reference.statistics.l2 > 0:
        return None
    cells = elements(array_of(other, record))
    squared, same = 0.0, True
    for part in whole.parts:
        mine = part.records[0]
        measured = _measure(part.cut(cells), record.kept_dtype)
        exact = mine.dtype == record.kept_dtype and measured.fingerprint == mine.fingerprint
        same &= exact
        squared += 0.0 if exact else relative_l2(measured.sketch, mine.sketch, 1.0) ** 2
    if same:
        return Measured(identical=True, error=0.0, how="exact")
    return Measured(error=math.sqrt(squared) / reference.statistics.l2, how="sketch")


def _measure(cells: npt.NDArray[np.uint8], dtype: str) -> Any:
    """What a rank would record of a tensor with these bytes."""
    import torch

    from layertap.measure import measure

    flat = torch.frombuffer(bytearray(np.ascontiguousarray(cells).tobytes()), dtype=getattr(torch, dtype))
    return measure(flat)
