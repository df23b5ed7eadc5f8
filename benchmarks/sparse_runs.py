"""Runs of any size that take next to nothing on disk: tensors of zeros, which are holes in the file, with a few values.

`write(folder, tensors, shape)` makes one; `changed` are the tensors whose values are another's. A comparison reads all
of their bytes as it does any others. Used by over_ray.py and by tests/compare/test_over_ray.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path
from unittest.mock import patch

import numpy as np

from layertap.measure.definition import fingerprint_of
from layertap.site import Receipt, Record, Site, SiteReceipt, Statistics
from layertap.store import RunWriter, tensorfile

BLOCKS = 24
"""Places of a tensor that have values: the first, the last, and others between them."""
VALUES = 64
"""Numbers at each of them."""


def write(folder: Path, tensors: int, shape: tuple[int, ...], changed: Collection[int] = ()) -> None:
    """A run of float32 tensors, `layers.0` and so on; those in `changed` are off by three parts in a hundred."""
    writer = RunWriter(folder, info={"model": "sparse"}, durability="none")
    for number in range(tensors):
        places, values = contents(number, shape, number in changed)
        room = np.zeros(math.prod(shape), np.float32)  # of which the system gives only what is written to
        for place, some in zip(places, values, strict=True):
            room[place : place + VALUES] = some
        with patch.object(tensorfile, "_write_all", _write_holes(places, room.nbytes)):
            writer.add(record(number, shape, places, values), room.view(np.uint8))
        writer.commit()
    names = [SiteReceipt(path=f"layers.{n}", role="output", kind="Block", fired=1, tensors=1) for n in range(tensors)]
    nbytes = 4 * tensors * math.prod(shape)
    writer.close(Receipt(sites=tuple(names), steps=1, records=tensors, bytes=nbytes, seconds=0.0, overhead=0.0))


def contents(number: int, shape: tuple[int, ...], changed: bool) -> tuple[list[int], list[np.ndarray]]:
    """Where a tensor has values, and which."""
    rng = np.random.default_rng(number)
    places = np.linspace(0, math.prod(shape) - VALUES, BLOCKS).astype(np.int64).tolist()
    values = [rng.standard_normal(VALUES).astype(np.float32) for _ in places]
    return places, [1.03 * some if changed else some for some in values]


def record(number: int, shape: tuple[int, ...], places: list[int], values: list[np.ndarray]) -> Record:
    """What is known of it; zeros add nothing to a fingerprint."""
    flat, count = np.concatenate(values).astype(np.float64), math.prod(shape)
    marks = (fingerprint_of(v.view(np.uint32), place) for place, v in zip(places, values, strict=True))
    mark, mean, square = sum(marks) % 2**64, float(flat.sum()) / count, float(flat @ flat)
    known = Statistics(
        count=count,
        mean=mean,
        std=math.sqrt(square / count - mean * mean),
        min=float(flat.min()),
        max=float(flat.max()),
        abs_mean=float(np.abs(flat).sum()) / count,
        l2=math.sqrt(square),
        nan=0,
        pos_inf=0,
        neg_inf=0,
        zero=count - len(flat),
        first=tuple(map(float, values[0][:10])),
    )
    return Record(
        site=Site(path=f"layers.{number}"),
        kind="Block",
        order=number,
        step=0,
        phase="eval",
        shape=shape,
        dtype="float32",
        device="cpu",
        statistics=known,
        fingerprint=mark,
        sketch=b"",
        kept="tensor",
        kept_shape=shape,
        kept_dtype="float32",
        kept_fingerprint=mark,
    )


def _write_holes(places: list[int], nbytes: int):
    """In place of the writer's own way to write: only what is not zero, and the file is as long as with all of it."""

    def write(fd: int, data: memoryview) -> None:
        begin = os.lseek(fd, 0, os.SEEK_CUR)
        if len(data) != nbytes:  # the room for the header
            assert os.write(fd, data) == len(data)
            return
        for place in places:
            os.pwrite(fd, data[4 * place : 4 * (place + VALUES)], begin + 4 * place)
        os.ftruncate(fd, begin + len(data))
        os.lseek(fd, begin + len(data), os.SEEK_SET)

    return write
