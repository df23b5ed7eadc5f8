"""Maps of values as small pictures: at most 512 × 512, diverging colours on an arcsinh scale, NaN and Inf apart."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SIDE = 512
"""Pixels of a map in either direction; of more values the largest magnitude of each pixel is shown."""
MIDDLE = 125
STEPS = 2 * MIDDLE + 1
NAN, PLUS, MINUS = STEPS, STEPS + 1, STEPS + 2

Values = npt.NDArray[np.float64]

_LIGHT = ("#053061", "#2166ac", "#74add1", "#f6f6f4", "#f4a261", "#c2570c", "#5c2500")
_DARK = ("#c9e6ff", "#57aef0", "#17476f", "#16191d", "#6b3410", "#ec8233", "#ffe0c2")
_ODD = {NAN: "#e0218a", PLUS: "#ffd400", MINUS: "#00b894"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From a value to a colour: linear up to about `knee`, logarithmic from there to `limit`."""

    knee: float
    limit: float

    @classmethod
    def of(cls, *values: Values) -> Scale:
        """A scale for all of these values: the knee is their median magnitude, so that outliers hide nothing."""
        found = [np.abs(some[np.isfinite(some)]) for some in values]
        sizes = np.concatenate([some[some > 0][:: max(1, some.size // 200_000)] for some in found] or [np.empty(0)])
        limit = max((float(some.max()) for some in found if some.size), default=0.0)
        return cls(knee=float(np.median(sizes)) if sizes.size else 1.0, limit=limit)

    def place(self, values: Values) -> npt.NDArray[np.uint8]:
        """The number of a colour for each value."""
        codes = np.full(values.shape, MIDDLE, np.uint8)
        finite = np.isfinite(values)
        top = math.asinh(self.limit / self.knee) if self.limit else 1.0
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.arcsinh(np.where(finite, values, 0) / self.knee) / top
        codes[finite] = np.rint(MIDDLE + MIDDLE * np.clip(share[finite], -1, 1)).astype(np.uint8)
        codes[np.isnan(values)] = NAN
        codes[np.isposinf(values)] = PLUS
        codes[np.isneginf(values)] = MINUS
        return codes


def pooled(values: Values, side: int = SIDE) -> Values:
    """The values in at most `side` rows and columns: of each pixel the largest magnitude, with its sign; NaN wins.

    >>> pooled(np.array([[1.0, -3.0, 2.0, 0.0]]), 2).tolist()
    [[-3.0, 2.0]]
    """
    for axis in (0, 1):
        length = values.shape[axis]
        if length > side:
            starts = np.linspace(0, length, side, endpoint=False).astype(np.int64)
            high, low = np.maximum.reduceat(values, starts, axis), np.minimum.reduceat(values, starts, axis)
            values = np.where(np.isnan(high) | (high >= -low), high, low)
    return values


def picture(values: Values, scale: Scale, *, dark: bool = False) -> bytes:
    """A PNG of the values, a pixel each."""
    return png(scale.place(pooled(values)), palette(dark=dark))


def palette(*, dark: bool) -> list[tuple[int, int, int]]:
    """The colours by their numbers."""
    stops = np.array([_rgb(text) for text in (_DARK if dark else _LIGHT)], np.float64)
    places = np.linspace(0, len(stops) - 1, STEPS)
    colours = np.stack([np.interp(places, range(len(stops)), stops[:, channel]) for channel in range(3)], 1)
    found = [(int(r), int(g), int(b)) for r, g, b in np.rint(colours)]
    return [*found, *(_rgb(_ODD[code]) for code in (NAN, PLUS, MINUS))]


def png(codes: npt.NDArray[np.uint8], colours: list[tuple[int, int, int]]) -> bytes:
    """A PNG with a palette."""
    height, width = codes.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each line begins with the number of its filter, which is none
    lines[:, 1:] = codes
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(part for colour in colours for part in colour)),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def legend(*, dark: bool = False) -> bytes:
    """The colours from the most negative to the most positive."""
    return png(np.arange(STEPS, dtype=np.uint8)[None, :], palette(dark=dark))


def _rgb(text: str) -> tuple[int, int, int]:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)
