"""One .npy, in a file, in an archive or in a text, read within bounds and without running code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import CorruptRun
from layertap.files import check_unpacked, reading
from layertap.messages import tr


def read_npy(source: Any, what: str, stored: int) -> npt.NDArray[Any]:
    """The array in an open stream of `stored` bytes; a CorruptRun for what is damaged or holds objects.

    Not by `np.load`, which reserves what a damaged header asks for.
    """
    with reading(what, tr("formats.not_numbers")):
        major, _ = np.lib.format.read_magic(source)
        header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(source)
        if dtype.hasobject:  # numpy's advice, allow_pickle, is how such a file gets to run its code
            raise ValueError(tr("formats.pickled"))
        expected = math.prod(shape) * dtype.itemsize
        check_unpacked(what, expected, stored)
        raw = bytearray(source.read())
    if len(raw) != expected:
        raise CorruptRun(
            tr("formats.size", what=what, count=len(raw), dtype=dtype, shape=list(shape), expected=expected)
        )
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
