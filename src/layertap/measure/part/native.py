"""The CPU's sums of a part: parts.c, built by hatch_build.py and loaded with ctypes, run on a few threads."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure import native
from layertap.measure.definition import BUCKETS
from layertap.measure.part.place import Box
from layertap.messages import tr

LIBRARY = Path(__file__).parents[1] / ("_parts.dylib" if sys.platform == "darwin" else "_parts.so")
_SUMS = np.dtype([("fingerprint", "u8"), ("sketch", "f8", BUCKETS)])


class _BoxStruct(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "levels")),
        *((name, ctypes.c_int64) for name in ("depth", "start", "whole_start", "kind")),
        ("table", ctypes.c_void_p),
    ]


def available() -> bool:
    """Whether the compiled library is there; without a compiler at build time it is not."""
    return _library() is not None


def sums_of(tensor: torch.Tensor, box: Box) -> tuple[int, npt.NDArray[np.float64]]:
    """What a box of a contiguous, real tensor in the CPU's memory adds to fingerprint and sketch of the whole."""
    library = _library()
    assert library is not None, "ask available() first"
    levels = np.array([(level.extent, level.step, level.whole_step) for level in box.levels], np.int64)
    kind, table = native.kind_of(tensor.dtype)
    given = _BoxStruct(
        x=tensor.data_ptr(),
        levels=levels.ctypes.data,
        depth=len(levels),
        start=box.start,
        whole_start=box.whole_start,
        kind=kind,
        table=table or None,
    )
    results = np.empty(library.layertap_part_chunks(ctypes.byref(given)), _SUMS)
    counter = ctypes.c_int64(0)
    arguments = ctypes.byref(given), results.ctypes.data, ctypes.byref(counter)
    native.on_threads(library.layertap_part, arguments, count=box.count, chunks=len(results))
    with np.errstate(over="ignore", invalid="ignore"):
        return int(results["fingerprint"].sum(dtype=np.uint64)), results["sketch"].sum(axis=0)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    if not LIBRARY.exists() or sys.byteorder != "little":
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.layertap_part_size.restype = ctypes.c_int64
    if library.layertap_part_size() != _SUMS.itemsize:
        raise ImportError(tr("measure.rebuild_parts", LIBRARY=LIBRARY))
    library.layertap_part_chunks.argtypes = (ctypes.c_void_p,)
    library.layertap_part_chunks.restype = ctypes.c_int64
    library.layertap_part.argtypes = (ctypes.c_void_p,) * 3
    library.layertap_part.restype = None
    library.layertap_init()
    return library
