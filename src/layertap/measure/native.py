"""The CPU's measure: onepass.c, built by hatch_build.py and loaded with ctypes, run on a few threads.

ctypes lets go of Python's lock for the call, so threads of this one process do. They take chunks off a counter that
the C code shares between them; the calling thread works too, and never waits for a helper that has not begun.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.measure.slab import SLAB_BYTES
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
    library, results = _measured(tensor, offset, full := int(not statistics_only))
    sketch = np.empty(BUCKETS if full else 0, "<f4")
    library.layertap_merge(results.ctypes.data, len(results), sketch.ctypes.data if full else None)
    return _finish(results[0], tensor.numel(), sketch.tobytes())


def measure_into(tensor: torch.Tensor, address: int) -> None:
    """Measures a contiguous, real tensor into the slab (slab.py) at this address, on several threads if it is large."""
    library, results = _measured(tensor, 0, 1)
    library.layertap_merge(results.ctypes.data, len(results), np.empty(BUCKETS, "<f4").ctypes.data)
    library.layertap_to_slab(results.ctypes.data, address)


def _measured(tensor: torch.Tensor, offset: int, full: int) -> tuple[ctypes.CDLL, npt.NDArray[np.void]]:
    library = _library()
    assert library is not None, "ask available() first"
    count = tensor.numel()
    chunks: int = library.layertap_chunks(count, offset)
    results = np.empty(chunks, _RESULT)
    counter = ctypes.c_int64(0)
    kind, table = kind_of(tensor.dtype)
    arguments = (
        *(tensor.data_ptr(), count, offset, kind, table or None, full),
        *(results.ctypes.data, ctypes.byref(counter)),
    )
    on_threads(library.layertap_measure, arguments, count=count, chunks=chunks)
    return library, results


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
    if library.layertap_result_size() != _RESULT.itemsize or not hasattr(library, "layertap_slab_size"):
        raise ImportError(tr("measure.rebuild_onepass", LIBRARY=LIBRARY))
    library.layertap_slab_size.restype = number
    assert library.layertap_slab_size() == SLAB_BYTES
    library.layertap_to_slab.argtypes = (pointer, pointer)
    library.layertap_to_slab.restype = None
    library.layertap_measure_rows.argtypes = (pointer, number)
    library.layertap_measure_rows.restype = None
    library.layertap_init()
    return library


def kind_of(dtype: torch.dtype) -> tuple[int, int]:
    """onepass.c's number of a dtype, and the address of the table by which its bytes are read, or 0."""
    if dtype in FLOAT8:
        return _TABLE, int(_table(dtype).ctypes.data)
    return _KINDS[dtype], 0


@lru_cache
def _table(dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """What each of the 256 bytes means, as torch reads them."""
    table: npt.NDArray[np.float32] = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32).numpy()
    return table


@lru_cache(maxsize=1)
def taker() -> Any:
    """`layertap_take(address, task, copy, slab)`: measures one tensor and keeps Python's lock.

    Giving the lock up and fighting for it again takes longer than measuring a small tensor.
    """
    assert _library() is not None, "ask available() first"
    function = ctypes.PyDLL(str(LIBRARY)).layertap_take
    function.argtypes = (ctypes.c_void_p,) * 4
    function.restype = None
    return function


TASK = np.dtype([("x", "u8"), ("count", "i8"), ("kind", "i8"), ("table", "u8"), ("out", "u8")])
"""A tensor to be measured: address, elements, onepass.c's number and table of its dtype, and where its slab goes."""


def measure_rows(tasks: npt.NDArray[np.void]) -> None:
    """Measures many small tensors in one call, which does not hold Python's lock; `tasks` has the dtype `TASK`."""
    library = _library()
    assert library is not None, "ask available() first"
    library.layertap_measure_rows(tasks.ctypes.data, len(tasks))


class _Share(threading.local):
    threads = 1 << 10


_share = _Share()


def limit_threads(most: int) -> None:
    """From here on this thread measures with so many threads at most, itself included."""
    _share.threads = most


def on_threads(function: Any, arguments: tuple[object, ...], *, count: int, chunks: int) -> None:
    """Calls a function of C that takes chunks off a counter, here and in helpers if there is work for them."""
    threads = min(torch.get_num_threads(), chunks, _share.threads) if count >= THREADED else 1
    helpers = [_submit(function, arguments) for _ in range(threads - 1)]
    function(*arguments)
    for helper in helpers:
        # A helper that the system did not get round to finds no work left, so there is nothing to wait for.
        if helper is not None and not helper.cancel():
            helper.result()


_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a child inherits the pool but none of its threads


def _submit(function: Any, arguments: tuple[object, ...]) -> Future[None] | None:
    if not _pool:
        _pool.append(ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="layertap-measure"))
    try:
        return _pool[0].submit(function, *arguments)
    except RuntimeError:  # the interpreter is shutting down and takes no more work: the caller does it alone
        return None
