"""The kept tensor of a site, as numbers, and the plane of it that a map shows."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import LayertapError, SiteNotFound
from layertap.site import Record
from layertap.store.dtype import to_numpy
from layertap.view.sides import Side

Array = npt.NDArray[Any]

_HELD = 256 << 20
"""Bytes of tensors that are kept at hand between two requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a run has of a site at one step."""

    side: Side
    record: Record
    values: Array | None
    """The tensor; None where only statistics were kept, or it cannot be read."""
    why: str = ""
    """Why there is no tensor."""


class _Cache:
    """The tensors that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Any, ...], Array] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> Array | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: tuple[Any, ...], values: Array) -> None:
        with self._lock:
            self._held[key] = values
            while len(self._held) > 1 and sum(one.nbytes for one in self._held.values()) > _HELD:
                self._held.popitem(last=False)


_cache = _Cache()


def kept(side: Side, site: str, step: int | None) -> Kept:
    """The record of a site at a step (the last where none is named), and its tensor."""
    with side.lock:
        found = side.run[site]
        if step is not None:
            found = found.at(step=step)
        elif found.steps:
            found = found.at(step=found.steps[-1])
        record = side.run.records_at(found._rows[:1])[0]
        key = (side.source, side.version, str(record.site), record.step, record.rank, record.order)
        values, why = _cache.get(key), ""
        if values is None:
            try:
                raw = side.run.kept_bytes(record)
                values = to_numpy(raw, record.kept_dtype, record.kept_shape)
                if values.dtype.kind == "c":
                    values = np.stack([values.real, values.imag], -1)
                _cache.put(key, values)
            except LayertapError as error:
                why = str(error)
    return Kept(side=side, record=record, values=values, why=why)


def step_records(side: Side, site: str) -> list[Record]:
    """The records of a site over all steps, without their sketches."""
    with side.lock:
        try:
            return side.run[site].listed()
        except SiteNotFound:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Two axes of a tensor, the last two; the leading ones are held at `index`."""

    shape: tuple[int, ...]
    index: tuple[int, ...]
    rows: int
    columns: int
    top: int = 0
    left: int = 0
    height: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], index: tuple[int, ...] = (), window: tuple[int, ...] = ()) -> Plane:
        """The plane at `index`, or the part of it in `window`: top, left, height, width.

        >>> Plane.of((2, 16, 48), (1,)).index, Plane.of((48,)).rows, Plane.of((9, 9), (), (8, 8, 5, 5)).height
        ((1,), 1, 1)
        """
        rows, columns = (1, 1) if not shape else (1, shape[0]) if len(shape) == 1 else (shape[-2], shape[-1])
        leading = shape[:-2]
        places = tuple(
            min(max(place, 0), max(size - 1, 0))
            for place, size in zip((*index, *(0,) * len(leading)), leading, strict=False)
        )
        top, left, height, width = window if len(window) == 4 else (0, 0, rows, columns)
        top, left = min(max(top, 0), max(rows - 1, 0)), min(max(left, 0), max(columns - 1, 0))
        height, width = min(max(height, 1), rows - top), min(max(width, 1), columns - left)
        return cls(
            shape=shape, index=places, rows=rows, columns=columns, top=top, left=left, height=height, width=width
        )

    def cut(self, values: Array) -> npt.NDArray[np.float64]:
        """This part of a tensor's values."""
        plane = values[self.index] if self.index else values
        plane = plane.reshape(self.rows, self.columns)
        part = plane[self.top : self.top + self.height, self.left : self.left + self.width]
        return np.asarray(part, np.float64)

    @property
    def whole(self) -> bool:
        return (self.height, self.width) == (self.rows, self.columns)

    def place(self, row: int, column: int) -> tuple[int, ...]:
        """The index in the tensor of a place of this part."""
        inside = (self.top + row, self.left + column)
        return (*self.index, *inside[2 - min(2, len(self.shape)) :])


def minus(b: Array, a: Array) -> npt.NDArray[np.float64]:
    """b - a in double precision; equal infinities differ by nothing."""
    one, two = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where((one == two) & np.isinf(one), 0.0, two - one))


def flat_place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a value by its place in C order."""
    return tuple(int(one) for one in np.unravel_index(flat, shape)) if shape else ()


def largest(values: Array, count: int) -> list[int]:
    """The places in C order of the largest magnitudes: NaN first, then Inf, then the rest."""
    flat = np.abs(np.asarray(values, np.float64)).reshape(-1)
    flat = np.where(np.isnan(flat), math.inf, flat)
    nan = np.flatnonzero(np.isnan(np.asarray(values, np.float64).reshape(-1)))[:count]
    count = min(count, flat.size)
    if not count:
        return []
    rest = np.argpartition(-flat, count - 1)[:count]
    rest = rest[np.argsort(-flat[rest], kind="stable")]
    return list(dict.fromkeys([*nan.tolist(), *rest.tolist()]))[:count]
