"""A 64-bit number for every row and every column of a tensor, by which parts of it are found again in others.

A row's number is the sum of weight(j) × bits(j) modulo 2^64, so equal numbers mean equal bits, up to accident. A column
is numbered the same way, so that the rows of a transposed tensor have the numbers of the other's columns. Values are
first brought to one dtype, the coarser of the two sides: a cast is then found like anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from layertap.weights.entries import Entry

PIECE = 1 << 20
"""Elements that are hashed at once; a piece's products stay in cache."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Hashes:
    """What a tensor's parts are recognised by, each read from it when it is first asked for."""

    def __init__(self, entry: Entry, dtype: torch.dtype) -> None:
        self._entry, self._dtype = entry, dtype
        self._shape = entry.shape or (1,)

    @cached_property
    def rows(self) -> Any:
        """uint64 of every index of the first axis, over all the others; of a vector, of its elements."""
        first = self._shape[0]
        return self._along(first, self._entry.numel // first if first else 0)

    @cached_property
    def lines(self) -> Any:
        """uint64 of every line along the last axis; the same array as `rows` up to two axes."""
        if len(self._shape) <= 2:
            return self.rows
        width = self._shape[-1]
        return self._along(self._entry.numel // max(width, 1), width)

    @cached_property
    def columns(self) -> Any:
        """uint64 of every column of every matrix of the last two axes; empty up to one axis."""
        if len(self._shape) < 2 or not self._entry.numel:
            return np.empty(0, np.uint64)
        height, width = self._shape[-2:]
        found = torch.zeros((self._entry.numel // (height * width), width), dtype=torch.int64)
        down, at = weights(height)[:, None], 0
        for piece in _lines(self._entry, self._dtype, width):
            end = at + len(piece)
            begin = at
            while begin < end:
                matrix, row = divmod(begin, height)
                until = min(end, (matrix + 1) * height)
                part = piece[begin - at : until - at]
                found[matrix] += (part * down[row : row + len(part)]).sum(0)
                begin = until
            at = end
        return _salted(found.numpy().reshape(-1), height)

    def _along(self, count: int, width: int) -> Any:
        found = np.empty(count, np.int64)
        if count and width:
            along, at = weights(width), 0
            for piece in _lines(self._entry, self._dtype, width):
                found[at : at + len(piece)] = (piece * along).sum(1).numpy()
                at += len(piece)
        return _salted(found, width)  # lines of different lengths must not agree by being zero


def _salted(found: Any, length: int) -> Any:
    return found.view(np.uint64) + np.uint64((length * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)


def _lines(entry: Entry, dtype: torch.dtype, width: int) -> Iterator[torch.Tensor]:
    """The bits as int64, some whole lines at a time; a line longer than a piece is one piece."""
    rest: list[torch.Tensor] = []
    held = 0
    for block in entry.blocks():
        for part in block.split(max(PIECE // 2, 1)):
            rest.append(as_bits(part, dtype))
            held += part.numel()
            if held >= max(width, PIECE // 2):
                joined = torch.cat(rest) if len(rest) > 1 else rest[0]
                whole = held - held % width
                if whole:
                    yield joined[:whole].view(-1, width)
                rest, held = [joined[whole:]], held - whole
    if held:
        joined = torch.cat(rest)
        yield joined[: held - held % width].view(-1, width)


def as_bits(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bits of the values in `dtype`, as int64."""
    if values.dtype != dtype and values.is_floating_point() and dtype.is_floating_point:
        values = values.to(dtype)
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype == torch.bool:
        return values.reshape(-1).to(torch.int64)
    return values.reshape(-1).view(_BITS[values.dtype.itemsize]).to(torch.int64)


def weights(count: int) -> torch.Tensor:
    """`count` odd 64-bit numbers, always the same."""
    return _weights(1 << max(count - 1, 0).bit_length())[:count]


@lru_cache(maxsize=4)
def _weights(count: int) -> torch.Tensor:
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(z.view(np.int64))
