"""The CPU's measure: onepass.c, built by hatch_build.py and loaded with ctypes, run on a few threads.

ctypes lets go of Python's lock for the call, so threads of this one process do. They take chunks off a counter that
the C code shares between them; the calling thread works too, and never waits for a helper that has not begun.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.messages import tr
from layertap.site import Statistics

LIBRARY = Path(__file__).with_name("_onepass.dylib" if sys.platform == "darwin" else "_onepass.so")
THREADED = 1 << 18
"""Waking a helper costs about as much as measuring this many elements alone."""

# The numbers of onepass.c. Bytes without a sign, booleans among them, are read alike; float8 goes through a table.
_KINDS = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 4,
    torch.uint8: 5,
    torch.bool: 5,
    torch.int16: 6,
    torch.uint16: 7,
    torch.float64: 8,
    torch.int32: 9,
    torch.uint32: 10,
    torch.int64: 11,
    torch.uint64: 12,
}
_TABLE = 3
FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)

_HEAD = struct.Struct("=q5d4qQ")  # finite, mean, m2, abs_sum, min, max; nan, pos_inf, neg_inf, zero; fingerprint
_RESULT = np.dtype([("head", "V", _HEAD.size), ("first", "f8", FIRST), ("sketch", "f8", BUCKETS)])


def available() -> bool:
    """Whether the compiled library is there; without a compiler at build time it is not."""
    return _library() is not None


def supported(dtype: torch.dtype) -> bool:
    """Whether onepass.c can read `dtype`; complex tensors are passed as their real view."""
    return dtype in _KINDS or dtype in FLOAT8


def measure(tensor: torch.Tensor, *, offset: int = 0, statistics_only: bool = False) -> Measurement:
    """Measures a contiguous, real tensor in the CPU's memory, whose first element has the flat index `offset`."""
    library = _library()
    assert library is not None, "ask available() first"
    count, full = tensor.numel(), int(not statistics_only)
    chunks: int = library.layertap_chunks(count, offset)
    results = np.empty(chunks, _RESULT)
    counter = ctypes.c_int64(0)
    table = _table(tensor.dtype) if tensor.dtype in FLOAT8 else None
    kind = _TABLE if table is not None else _KINDS[tensor.dtype]
    arguments = (
        *(tensor.data_ptr(), count, offset, kind, None if table is None else table.ctypes.data, full),
        *(results.ctypes.data, ctypes.byref(counter)),
    )
    threads = min(torch.get_num_threads(), chunks) if count >= THREADED else 1
    helpers = [_submit(library, arguments) for _ in range(threads - 1)]
    library.layertap_measure(*arguments)
    for helper in helpers:
        # A helper that the system did not get round to finds no work left, so there is nothing to wait for.
        if helper is not None and not helper.cancel():
            helper.result()
    sketch = np.empty(BUCKETS if full else 0, "<f4")
    library.layertap_merge(results.ctypes.data, chunks, sketch.ctypes.data if full else None)
    return _finish(results[0], count, sketch.tobytes())


def _finish(result: np.void, count: int, sketch: bytes) -> Measurement:
    _, mean, m2, abs_sum, low, high, nan, pos_inf, neg_inf, zero, fingerprint = _HEAD.unpack(result["head"].tobytes())
    statistics = Statistics.of(
        count=count,
        mean=mean,
        m2=m2,
        abs_sum=abs_sum,
        min=low,
        max=high,
        nan=nan,
        pos_inf=pos_inf,
        neg_inf=neg_inf,
        zero=zero,
        first=tuple(result["first"][:count].tolist()),
    )
    return Measurement(statistics=statistics, fingerprint=fingerprint if sketch else 0, sketch=sketch)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    if not LIBRARY.exists() or sys.byteorder != "little":
        return None
    library = ctypes.CDLL(str(LIBRARY))
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.layertap_chunks.argtypes = (number, number)
    library.layertap_chunks.restype = number
    library.layertap_measure.argtypes = (pointer, number, number, flag, pointer, flag, pointer, pointer)
    library.layertap_measure.restype = None
    library.layertap_merge.argtypes = (pointer, number, pointer)
    library.layertap_merge.restype = None
    library.layertap_result_size.restype = number
    if library.layertap_result_size() != _RESULT.itemsize:
        raise ImportError(tr("measure.rebuild_onepass", LIBRARY=LIBRARY))
    library.layertap_init()
    return library


@lru_cache
def _table(dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """What each of the 256 bytes means, as torch reads them."""
    table: npt.NDArray[np.float32] = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32).numpy()
    return table


_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a child inherits the pool but none of its threads


def _submit(library: ctypes.CDLL, arguments: tuple[object, ...]) -> Future[None] | None:
    if not _pool:
        _pool.append(ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="layertap-measure"))
    try:
        return _pool[0].submit(library.layertap_measure, *arguments)
    except RuntimeError:  # the interpreter is shutting down and takes no more work: the caller does it alone
        return None
