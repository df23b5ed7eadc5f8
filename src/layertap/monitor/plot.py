"""Attention weights as a picture: one small map for each head, in a file that needs no plotting library.

An SVG holds a bitmap for each head and the words beside it; a PNG holds the maps alone. Both are written here, in a few
lines, since a heat map needs no more.
"""

from __future__ import annotations

import base64
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument
from layertap.messages import tr

Image = npt.NDArray[np.uint8]
SIDE = 180
"""The width of a head's map in the SVG."""
# Viridis at nine places; between them colours are mixed linearly. Its lightness grows evenly, also in print.
_COLOURS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (170, 220, 50), (253, 231, 37)],
    np.float64,
)  # fmt: skip
_MISSING = (214, 39, 40)


def plot_attention(weights: Any, path: str | os.PathLike[str], *, title: str = "attention", sample: int = 0) -> Path:
    """Draws attention weights, a map for each head: targets down, sources across, dark is 0, bright the largest.

        plot_attention(weights, "attention.svg")          # [heads, target, source]; or a batch of them, or one map

    NaN is red. `sample` chooses from a batch. Each head's brightness is its own; the number beside it is its maximum.
    """
    maps = _maps(weights, sample)
    path = Path(path)
    if path.suffix == ".svg":
        path.write_text(_svg(maps, title), encoding="utf-8")
    elif path.suffix == ".png":
        path.write_bytes(png(_sheet([coloured(head) for head in maps])))
    else:
        raise BadArgument(tr("monitor.plot_suffix", path=path))
    return path


def coloured(values: npt.NDArray[Any]) -> Image:
    """A matrix as colours, from 0 (or its minimum, if that is lower) to its maximum."""
    values = np.asarray(values, np.float64)
    finite = np.isfinite(values)
    low = min(0.0, float(values[finite].min(initial=0.0)))
    high = float(values[finite].max(initial=low))
    place = np.where(finite, (np.where(finite, values, low) - low) / ((high - low) or 1.0), 0.0) * (len(_COLOURS) - 1)
    below = np.minimum(place.astype(int), len(_COLOURS) - 2)
    share = (place - below)[..., None]
    image = _COLOURS[below] * (1 - share) + _COLOURS[below + 1] * share
    image[~finite] = _MISSING
    return np.asarray(image.round(), np.uint8)


def png(image: Image) -> bytes:
    """An RGB image as the bytes of a PNG file.

    >>> png(np.zeros((2, 3, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _maps(weights: Any, sample: int) -> npt.NDArray[Any]:
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu().float().numpy()
    maps = np.asarray(weights)
    if maps.ndim == 4:
        if not -len(maps) <= sample < len(maps):
            raise BadArgument(tr("monitor.plot_sample", sample=sample, count=len(maps)))
        maps = maps[sample]
    if maps.ndim == 2:
        maps = maps[None]
    if maps.ndim != 3 or not maps.size:
        raise BadArgument(tr("monitor.plot_shape", shape=list(maps.shape)))
    return maps


def _svg(maps: npt.NDArray[Any], title: str) -> str:
    across = math.ceil(math.sqrt(len(maps)))
    down = math.ceil(len(maps) / across)
    step, top = SIDE + 24, 34
    size = f'width="{across * step + 12}" height="{top + down * (step + 8)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<text x="12" y="20" font-size="15">{escape(title)} · {maps.shape[1]} × {maps.shape[2]}</text>',
    ]
    for number, head in enumerate(maps):
        x, y = 12 + number % across * step, top + number // across * (step + 8)
        data = base64.b64encode(png(coloured(head))).decode("ascii")
        finite = head[np.isfinite(head)]
        label = f"max {finite.max():.3g}" if finite.size else tr("monitor.plot_no_finite")
        missing = head.size - finite.size
        label += tr("monitor.plot_missing", missing=missing) if missing and finite.size else ""
        place = f'x="{x}" y="{y + 18}" width="{SIDE}" height="{SIDE}" preserveAspectRatio="none"'
        parts += [
            f'<text x="{x}" y="{y + 12}">head {number} · {label}</text>',
            f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _sheet(images: list[Image]) -> Image:
    """The maps side by side, each point at least four pixels wide, a white line between them."""
    scale = max(1, 128 // max(images[0].shape[:2]))
    large = [image.repeat(scale, axis=0).repeat(scale, axis=1) for image in images]
    height, width, _ = large[0].shape
    across = math.ceil(math.sqrt(len(large)))
    down = math.ceil(len(large) / across)
    sheet = np.full((down * (height + 4) - 4, across * (width + 4) - 4, 3), 255, np.uint8)
    for number, image in enumerate(large):
        y, x = number // across * (height + 4), number % across * (width + 4)
        sheet[y : y + height, x : x + width] = image
    return sheet
