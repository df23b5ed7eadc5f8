"""A pair of tensors by pair.c, built by hatch_build.py and loaded with ctypes, on all cores."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layertap.measure.float8 import float8_values
from layertap.measure.pair import plain
from layertap.measure.pair.plain import Task, Totals
from layertap.messages import tr

LIBRARY = Path(__file__).parents[1] / ("_pair.dylib" if sys.platform == "darwin" else "_pair.so")
THREADED = 1 << 18
"""Below so many elements there is one chunk, or too little in a second one to wake a helper for it."""

# The numbers of onepass.c. Bytes without a sign, booleans among them, are read alike; float8 goes through a table.
_KINDS = dict(float32=0, float16=1, bfloat16=2, int8=4, uint8=5, bool=5, int16=6, uint16=7)
_KINDS |= dict(float64=8, int32=9, uint32=10, int64=11, uint64=12)
_TABLE = 3
_SAME = ("rows", "columns", "row_group", "column_group", "rtol", "atol", "eps", "scale")
_COUNTS = 5
"""So many fields of Totals, the first, are counts."""
_WORDS = ("fingerprint_a", "fingerprint_b")


class _TotalsStruct(ctypes.Structure):
    _fields_ = [
        (field.name, ctypes.c_uint64 if field.name in _WORDS else ctypes.c_int64 if i < _COUNTS else ctypes.c_double)
        for i, field in enumerate(fields(Totals))
    ]


class _PairStruct(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "table_a", "table_b")),
        *((name, ctypes.c_int64) for name in ("kind_a", "kind_b", "rows", "columns", "row_group", "column_group")),
        *((name, ctypes.c_double) for name in ("rtol", "atol", "eps", "scale", "smallest")),
        *((name, ctypes.c_void_p * 2) for name in ("row", "column")),
        ("histogram", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("next", "merged")),
        ("totals", _TotalsStruct),
    ]


def available() -> bool:
    """Whether the compiled library is there; without a compiler at build time it is not."""
    return _library() is not None


def measure(task: Task) -> Totals:
    """Goes over the pair once and adds to the task's rows, columns and histogram."""
    library = _library()
    assert library is not None, "ask available() first"
    tables = [float8_values(name) if name not in _KINDS else None for name in (task.dtype_a, task.dtype_b)]
    pair = _PairStruct(
        a=task.a.ctypes.data,
        b=task.b.ctypes.data,
        kind_a=_KINDS.get(task.dtype_a, _TABLE),
        kind_b=_KINDS.get(task.dtype_b, _TABLE),
        histogram=task.histogram.ctypes.data,
        smallest=2.0**task.least,
        **{name: getattr(task, name) for name in _SAME},
    )
    pair.table_a, pair.table_b = (table.ctypes.data if table is not None else None for table in tables)
    for k in range(2):
        pair.row[k], pair.column[k] = task.row[k].ctypes.data, task.column[k].ctypes.data
    for _, end in task.windows(_step(library, pair, task)):
        _run(library, pair, end)
    totals = Totals(**{field.name: getattr(pair.totals, field.name) for field in fields(Totals)})
    totals.max_ulp *= 2.0**task.mantissa
    return totals


def _step(library: ctypes.CDLL, pair: _PairStruct, task: Task) -> int:
    """How many elements are measured at a time: whole chunks of pair.c, and all of them where nothing is let go of."""
    count, largest = task.rows * task.columns, max(task.a.size, task.b.size)
    if task.release == (None, None) or largest <= plain.WINDOW or not hasattr(library, "layertap_pair_until"):
        return count
    _, rows, columns = _chunks(library, pair)
    return max(1, plain.WINDOW * count // largest // (rows * columns)) * rows * columns


def _chunks(library: ctypes.CDLL, pair: _PairStruct) -> tuple[int, int, int]:
    """How many chunks there are, and the rows and columns of one."""
    rows, columns = ctypes.c_int64(), ctypes.c_int64()
    count = library.layertap_pair_chunks(ctypes.byref(pair), ctypes.byref(rows), ctypes.byref(columns))
    return count, rows.value, columns.value


def _run(library: ctypes.CDLL, pair: _PairStruct, end: int) -> None:
    """Goes on with the chunks that lie wholly before the element `end`, with all threads."""
    count = pair.rows * pair.columns
    work: Callable[..., int] = library.layertap_pair
    arguments: tuple[object, ...] = (ctypes.byref(pair),)
    if end < count or pair.merged:
        chunks, rows, columns = _chunks(library, pair)
        line, within = divmod(
            end, rows * pair.columns
        )  # a chunk is whole lines of that many elements, or a part of one
        stop = chunks if end == count else line * -(-pair.columns // columns) + (within // columns if rows == 1 else 0)
        pair.next = pair.merged
        work, arguments = library.layertap_pair_until, (*arguments, ctypes.c_int64(stop))
    helpers = []
    if count >= THREADED:
        helpers = [_submit(work, *arguments) for _ in range(threads() - 1)]
    failed = work(*arguments) != 0
    for helper in helpers:
        # A helper that the system did not get round to finds no work left, so there is nothing to wait for.
        if helper is not None and not helper.cancel():
            failed &= helper.result() != 0  # a thread without memory takes no chunk: the others do its work
    if failed:
        raise MemoryError(tr("measure.out_of_memory"))


def fingerprint(raw: npt.NDArray[np.uint8], size: int, offset: int) -> int:
    """The sum of fingerprint.py over contiguous words of `size` bytes, the first of which has the index `offset`."""
    library = _library()
    assert library is not None, "ask available() first"
    count, total = ctypes.c_int64(0), ctypes.c_uint64(0)
    arguments = (raw.ctypes.data, raw.size // size, offset, size, ctypes.byref(count), ctypes.byref(total))
    helpers = []
    if raw.size // size >= THREADED:
        helpers = [_submit(library.layertap_fingerprint, *arguments) for _ in range(threads() - 1)]
    library.layertap_fingerprint(*arguments)
    for helper in helpers:
        if helper is not None and not helper.cancel():
            helper.result()
    return total.value


def threads() -> int:
    """As many as the process may run at once, or as `use_threads` has it."""
    if _most:
        return _most[0]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_threads(count: int) -> None:
    """So many threads from now on; the numbers are the same with any."""
    _most[:] = [count]


_most: list[int] = []


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    if not LIBRARY.exists() or sys.byteorder != "little":
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.layertap_pair.argtypes = (ctypes.c_void_p,)
    library.layertap_pair.restype = ctypes.c_int
    library.layertap_pair_size.restype = ctypes.c_int64
    library.layertap_pair_chunks.argtypes = (ctypes.c_void_p,) * 3
    library.layertap_pair_chunks.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.layertap_fingerprint.argtypes = (pointer, number, number, ctypes.c_int, pointer, pointer)
    library.layertap_fingerprint.restype = None
    if library.layertap_pair_size() != ctypes.sizeof(_PairStruct):
        raise ImportError(tr("measure.rebuild_pair", LIBRARY=LIBRARY))
    library.layertap_init()
    return library


_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a child inherits the pool but none of its threads


def _submit(work: Callable[..., int], *arguments: object) -> Future[int] | None:
    if not _pool:
        _pool.append(ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="layertap-pair"))
    try:
        return _pool[0].submit(work, *arguments)
    except RuntimeError:  # the interpreter is shutting down and takes no more work: the caller does it alone
        return None
