"""The signs of a pair in the CPU's memory by signs.c, built by hatch_build.py and loaded with ctypes."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from layertap.messages import tr

LIBRARY = Path(__file__).parents[1] / ("_signs.dylib" if sys.platform == "darwin" else "_signs.so")
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 8}
"""The numbers of onepass.c."""
_LINES = ("worst_row", "row_index", "worst_column", "column_index")
_FOUND = ("wrong", "square", "product", "total", *_LINES, "nonfinite", "calm", "grid")


class _Signs(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b")),
        *((name, ctypes.c_int64) for name in ("kind_a", "kind_b", "rows", "width")),
        *((name, ctypes.c_double) for name in ("closed_a", "closed_b", "massive")),
        *((name, ctypes.c_void_p) for name in ("row", "column")),
        ("several", ctypes.c_int64),
        *((name, ctypes.c_double) for name in _FOUND),
    ]


def available() -> bool:
    """Whether the compiled library is there; without a compiler at build time it is not."""
    return _library() is not None


def fits(tensor: torch.Tensor) -> bool:
    """Whether signs.c can read a tensor's numbers."""
    return tensor.dtype in _KINDS and tensor.device.type == "cpu"


def signs(
    reference: torch.Tensor, candidate: torch.Tensor, closed: tuple[float, float], massive: float, several: int
) -> list[float]:
    """Squared error, squared reference, their product, the sum of the errors, the worst row and column with their
    indices, how many are not finite on one side only, the error without massive lines, whether all lie on a grid.

    `closed` is what represents minus infinity on either side.
    """
    library = _library()
    assert library is not None, "ask available() first"
    left, right = reference.contiguous(), candidate.contiguous()
    width = left.shape[-1] if left.ndim else 1
    rows = left.numel() // width
    row, column = np.zeros(2 * rows), np.zeros(2 * width)
    task = _Signs(
        a=left.data_ptr(),
        b=right.data_ptr(),
        kind_a=_KINDS[left.dtype],
        kind_b=_KINDS[right.dtype],
        rows=rows,
        width=width,
        closed_a=closed[0],
        closed_b=closed[1],
        massive=massive,
        row=row.ctypes.data,
        column=column.ctypes.data,
        several=several,
    )
    if not library.layertap_signs(ctypes.byref(task)):
        raise MemoryError(tr("measure.out_of_memory"))
    return [getattr(task, name) for name in _FOUND]


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    if not LIBRARY.exists() or sys.byteorder != "little":
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.layertap_signs.argtypes = [ctypes.c_void_p]
    library.layertap_signs.restype = ctypes.c_int
    library.layertap_signs_size.restype = ctypes.c_int64
    if library.layertap_signs_size() != ctypes.sizeof(_Signs):
        raise ImportError(tr("measure.rebuild_signs", LIBRARY=LIBRARY))
    return library
