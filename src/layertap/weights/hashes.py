"""A 64-bit number for every row and every column of a tensor, by which parts of it are found again in others.

A row's number is the sum of weight(j) × bits(j) modulo 2^64, so equal numbers mean equal bits, up to accident. A column
is numbered the same way value by value, so that the rows of a transposed tensor have the numbers of the other's
columns. Values are first brought to one dtype, the coarser of the two sides: a cast is then found like anything else.
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
    """What a tensor's parts are recognised by, each read from it when it is first asked for.

    `rows` and `lines` are numbered by words of eight bytes, which is fast; they are found in others' rows and lines.
    Only numbers by single values can be found in columns: `row_values`, `line_values` and `columns`.
    """

    def __init__(self, entry: Entry, dtype: torch.dtype) -> None:
        self._entry, self._dtype = entry, dtype
        self.dtype = dtype
        self._shape = entry.shape or (1,)
        self._flat = len(self._shape) <= 2

    @cached_property
    def rows(self) -> Any:
        """uint64 of every index of the first axis, over all the others; of a vector, of its elements."""
        return self._folded(self.lines) if not self._flat else self._along(*self._line_sizes(), words=True)

    @cached_property
    def lines(self) -> Any:
        """uint64 of every line along the last axis; the same array as `rows` up to two axes."""
        return self.rows if self._flat else self._along(*self._line_sizes(), words=True)

    @cached_property
    def row_values(self) -> Any:
        """As `rows`, to be looked for among columns."""
        return self._folded(self.line_values) if not self._flat else self._along(*self._line_sizes(), words=False)

    @cached_property
    def line_values(self) -> Any:
        """As `lines`, to be looked for among columns."""
        return self.row_values if self._flat else self._along(*self._line_sizes(), words=False)

    @cached_property
    def columns(self) -> Any:
        """uint64 of every column of every matrix of the last two axes; empty up to one axis."""
        known = self._entry.known
        if known is not None and known.columns is not None and self._dtype == self._entry.dtype:
            return known.columns
        if len(self._shape) < 2 or not self._entry.numel or not self._entry.readable or self._dtype.is_complex:
            return np.empty(0, np.uint64)
        height, width = self._shape[-2:]
        found = np.zeros((self._entry.numel // (height * width), width), np.int64)
        down, at = weights(height).numpy(), 0
        for piece in _lines(self._entry, self._dtype, width):
            end = at + len(piece)
            begin = at
            while begin < end:
                matrix, row = divmod(begin, height)
                until = min(end, (matrix + 1) * height)
                part = piece[begin - at : until - at]
                found[matrix] += np.einsum("ij,i->j", part, down[row : row + len(part)])
                begin = until
            at = end
        return _salted(found.reshape(-1), height)

    def numbers(self, across: bool) -> Any:
        """Of its rows, or of its columns."""
        return self.columns if across else self.rows

    def zero(self, across: bool) -> np.uint64:
        """The number of a row, or a column, of zeros."""
        if across:
            return zero_number(self._shape[-2])
        return zero_number(self._line_sizes()[1] if self._flat else self._entry.numel // max(self._shape[0], 1))

    def _line_sizes(self) -> tuple[int, int]:
        width = self._shape[-1] if len(self._shape) > 1 else 1
        return self._entry.numel // max(width, 1), width

    def _folded(self, lines: Any) -> Any:
        """Of more than two axes: the numbers of the lines of each index of the first, folded into one number."""
        first = self._shape[0]
        if not first or not len(lines):
            return np.empty(0, np.uint64)
        planes = lines.view(np.int64).reshape(first, -1)
        found = np.einsum("ij,j->i", planes, weights(planes.shape[1]).numpy())
        return _salted(found, self._entry.numel // first)

    def _along(self, count: int, width: int, *, words: bool) -> Any:
        known = self._entry.known
        if known is not None:
            kept = known.lines if words else known.values
            usable = kept is not None and self._dtype == self._entry.dtype
            return kept if usable else np.empty(0, np.uint64)
        found = np.empty(count, np.int64)
        if count and width:
            at = 0
            for piece in (_words if words else _lines)(self._entry, self._dtype, width):
                along = weights(piece.shape[1]).numpy()
                # One fused pass; torch would write the products first.
                np.einsum("ij,j->i", piece, along, out=found[at : at + len(piece)])
                at += len(piece)
        return _salted(found, width)  # lines of different lengths must not agree by being zero


def _salted(found: Any, length: int) -> Any:
    return found.view(np.uint64) + zero_number(length)


def zero_number(length: int) -> np.uint64:
    """The number of so many zeros."""
    return np.uint64((length * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)


def _lines(entry: Entry, dtype: torch.dtype, width: int) -> Iterator[Any]:
    """The bits as int64, one a value, some whole lines at a time; a line longer than a piece is one piece."""
    for piece in _pieces(entry, dtype, width):
        yield as_bits(piece, dtype).view(len(piece) // width, -1).numpy()


def _words(entry: Entry, dtype: torch.dtype, width: int) -> Iterator[Any]:
    """The bits as int64, eight bytes of a line in each where a line has a multiple of that."""
    for piece in _pieces(entry, dtype, width):
        if width * piece.dtype.itemsize % 8 or piece.dtype.itemsize == 8:
            yield as_bits(piece, dtype).view(len(piece) // width, -1).numpy()
        else:
            yield piece.view(torch.uint8).numpy().view(np.int64).reshape(len(piece) // width, -1)


def _pieces(entry: Entry, dtype: torch.dtype, width: int) -> Iterator[torch.Tensor]:
    """The values in `dtype`, flat, some whole lines at a time."""
    rest: list[torch.Tensor] = []
    held, least = 0, max(width, PIECE // 2)
    for block in entry.blocks():
        for part in block.reshape(-1).split(max(PIECE // 2, 1)):
            floating = part.dtype != dtype and part.is_floating_point() and dtype.is_floating_point
            rest.append(part.to(dtype) if floating else part)
            held += part.numel()
            if held >= least:
                joined = torch.cat(rest) if len(rest) > 1 else rest[0]
                whole = held - held % width
                yield joined[:whole]
                rest, held = [joined[whole:]], held - whole
    if held >= width:
        yield torch.cat(rest)[: held - held % width]


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
