"""Whether tensors have the same bits, and whether all values are finite: at about the speed at which they are read.

Both sides are read in pieces that stay in the processor's cache, and compared there. Nothing is hashed: most tensors of
most audits are equal to their partner, and for these one comparison is all the proof there is.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from layertap.errors import BadArgument
from layertap.files import open_regular
from layertap.messages import tr
from layertap.weights.entries import Entry

PIECE = 1 << 20
"""Bytes of either side that are compared at once."""
PART = 1 << 26
"""A larger tensor is compared by several threads."""
THREADS = min(max(os.cpu_count() or 1, 2), 8)

Tick = Callable[[int], None]

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class Same:
    """What one comparison gave."""

    equal: bool
    finite: bool
    """Whether the first side's values are; only certain where they are equal."""


def compare(pairs: Sequence[tuple[Entry, Entry]], tick: Tick) -> list[Same]:
    """For pairs of one size, in parallel: whether they have the same bits. `tick` is called with the bytes read."""
    jobs = [(index, begin, end) for index, (a, _) in enumerate(pairs) for begin, end in _parts(a, pairs[index][1])]
    found = [Same(True, True)] * len(pairs)
    if not jobs:
        return found

    def work(job: tuple[int, int, int]) -> tuple[int, Same]:
        index, begin, end = job
        return index, _compared(*pairs[index], begin, end, tick)

    with ThreadPoolExecutor(min(THREADS, len(jobs))) as pool:
        for index, same in pool.map(work, jobs):
            known = found[index]
            found[index] = Same(known.equal and same.equal, known.finite and same.finite)
    return found


def finite(entries: Sequence[Entry], tick: Tick) -> list[bool]:
    """Whether all values are neither NaN nor infinite, in parallel."""

    def work(entry: Entry) -> bool:
        if not _floating(entry.dtype):
            return True
        found = True
        for piece in raw(entry, 0, entry.nbytes, _buffer(0)):
            tick(len(piece))
            found = found and _finite(piece, entry.dtype)
        return found

    with ThreadPoolExecutor(min(THREADS, max(len(entries), 1))) as pool:
        return list(pool.map(work, entries))


def glimpse(entry: Entry) -> bytes:
    """Some bytes from the beginning and the middle: tensors that differ here are not the same."""
    middle = entry.nbytes // 2
    found = b""
    for begin in (0, middle):
        end = min(begin + 64, entry.nbytes)
        found += b"".join(bytes(piece) for piece in raw(entry, begin, end, _buffer(0)))
    return found


def same_bits(a: Entry, b: Entry) -> bool:
    """Whether two tensors of one size have the same bits; stops at the first that differ."""
    return a.nbytes == b.nbytes and _compared(a, b, 0, a.nbytes, lambda _: None, needs_finite=False).equal


def raw(entry: Entry, begin: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    """The bytes of a part of a tensor, piece by piece; a piece is overwritten by the next."""
    if entry.stored is not None:
        yield from _of_file(entry, begin, end, buffer)
        return
    at = 0
    for block in (entry.live,) if entry.live is not None else entry.blocks():
        view = bytes_of(block)
        lower, upper = max(begin - at, 0), min(end - at, len(view))
        for start in range(lower, upper, len(buffer)):
            yield view[start : min(start + len(buffer), upper)]
        at += len(view)
        if at >= end:
            return


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's bytes, not copied where it is in C order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    held: Any = flat.view(torch.uint8).numpy()
    return memoryview(held)


def _of_file(entry: Entry, begin: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    # Read, not mapped: the pages of a map count as this process's memory, and a file that shrinks would kill it.
    place: Any = entry.stored
    with open_regular(place.path, buffering=0) as file:
        file.seek(place.begin + begin)
        at = begin
        while at < end:
            size, got = min(end - at, len(buffer)), 0
            while got < size:  # whole pieces: a number must not be cut in two
                count = file.readinto(buffer[got:size])
                if not count:
                    ended = {"path": place.path, "at": place.begin + at + got, "end": place.end}
                    raise BadArgument(tr("checkpoint.ended", **ended))
                got += count
            at += size
            yield buffer[:size]


def _parts(a: Entry, b: Entry) -> Iterator[tuple[int, int]]:
    """Parts that can be read by themselves; whole where either side has to be made piece by piece."""
    step = PART if all(entry.stored is not None or entry.live is not None for entry in (a, b)) else max(a.nbytes, 1)
    for begin in range(0, a.nbytes, step):
        yield begin, min(begin + step, a.nbytes)


def _compared(a: Entry, b: Entry, begin: int, end: int, tick: Tick, *, needs_finite: bool = True) -> Same:
    checked = not (needs_finite and _floating(a.dtype))
    sound = True
    with ExitStack() as stack:
        left = stack.enter_context(_Stream(raw(a, begin, end, _buffer(0))))
        right = stack.enter_context(_Stream(raw(b, begin, end, _buffer(1))))
        at = begin
        while at < end:
            one, two = left.ready(), right.ready()
            size = min(len(one), len(two))
            if not size:
                raise BadArgument(tr("checkpoint.fewer", name=a.name))
            if _memcmp(_address(one), _address(two), size):
                tick(2 * (end - at))
                return Same(False, sound)
            sound = sound and (checked or _finite(one[: size - size % a.dtype.itemsize], a.dtype))
            left.take(size)
            right.take(size)
            tick(2 * size)
            at += size
    return Same(True, sound)


class _Stream:
    """Pieces of any length, taken in others."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces: Any = pieces
        self._left = memoryview(b"")

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.close()

    def ready(self) -> memoryview:
        while not len(self._left):
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left = piece
        return self._left

    def take(self, size: int) -> None:
        self._left = self._left[size:]


def _floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


_EXPONENT: dict[torch.dtype, tuple[Any, int]] = {
    torch.bfloat16: (np.uint16, 0xFF00),
    torch.float16: (np.uint16, 0xF800),
    torch.float32: (np.uint32, 0xFF000000),
    torch.float64: (np.uint64, 0xFFE0000000000000),
    torch.complex64: (np.uint32, 0xFF000000),
    torch.complex128: (np.uint64, 0xFFE0000000000000),
}
"""The bits as an integer, and the least of it, shifted out of its sign, that is infinity or NaN."""


def _finite(piece: memoryview, dtype: torch.dtype) -> bool:
    """By numpy, in this thread: torch would start threads of its own in each of ours."""
    if not len(piece):
        return True
    if dtype not in _EXPONENT:
        values = torch.frombuffer(piece, dtype=dtype).float()
        return bool(torch.isfinite(values).all())
    kind, limit = _EXPONENT[dtype]
    bits: Any = np.frombuffer(piece, kind)
    shifted = np.frombuffer(_buffer(2), kind)[: len(bits)] if len(bits) * bits.itemsize <= PIECE else None
    return int(np.left_shift(bits, kind(1), out=shifted).max()) < limit


def _address(piece: memoryview) -> int:
    return int(np.frombuffer(piece, np.uint8).ctypes.data)


_local = threading.local()


def _buffer(number: int) -> memoryview:
    """One of this thread's three buffers; fresh ones would cost their page faults each time."""
    held = getattr(_local, "buffers", None)
    if held is None or len(held[0]) != PIECE:
        held = _local.buffers = tuple(memoryview(bytearray(PIECE)) for _ in range(3))
    return memoryview(held[number])
