"""What was kept of a record, as bytes with a shape: mapped and not read."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from layertap.errors import CorruptRun
from layertap.measure.pair import Array
from layertap.messages import tr
from layertap.site import Record
from layertap.store import Run
from layertap.store.mapped import release, was_cut


def array_of(run: Run, record: Record, *, later: bool = False) -> Array:
    """What was kept of a record, checked; if `later`, by the pass over the pair, which reads the bytes anyway."""
    raw = np.asarray(run.kept_bytes(record, verify=False if later else None, mapped=True))
    check = partial(_check, run, record, raw, later and run.checks(record))
    free = partial(release, raw)
    return Array(raw=raw, dtype=record.kept_dtype, shape=record.kept_shape, check=check, release=free)


def _check(run: Run, record: Record, raw: npt.NDArray[np.uint8], whole: bool, found: int) -> None:
    """What a pass has to ask at its end."""
    if was_cut(raw):
        raise CorruptRun(tr("compare.file_cut", run=run.name, file=record.file, site=record.site, step=record.step))
    if whole:
        run.check(record, found)


def elements(array: Array, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """The bytes with an axis for each of the tensor's and one more for the bytes of an element, not copied.

    `shape` has the same elements in the same order.
    """
    shape = array.shape if shape is None else shape
    count = math.prod(shape)
    return array.raw.reshape(*shape, len(array.raw) // count if count else 1)


def changed(array: Array, new: npt.NDArray[np.uint8]) -> Array:
    """The array with other elements, as `elements` gives them."""
    return replace(array, raw=np.ascontiguousarray(new).reshape(-1), shape=new.shape[:-1], release=None)
