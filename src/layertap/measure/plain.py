"""The same measure with torch's own operations, for any device: slower, a few passes, block by block.

The fingerprint agrees with onepass.c bit for bit, statistics and sketch up to rounding. Nothing waits for the device
until `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch

from layertap.measure.definition import BUCKETS, FIRST, LANE_SEED, LANES, ROW_SEED
from layertap.measure.result import Measurement, merge_moments
from layertap.site import Statistics

BYTE = torch.uint8
_LOW = 0xFFFFFFFF
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = (torch.uint16, torch.uint32)  # torch has few operations on these, so they are read as signed and masked


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMeasurement:
    """What the device has been asked for; `finish` waits for it."""

    count: int
    blocks: torch.Tensor
    """A row a block: finite, mean, m2, abs_sum, min, max, nan, pos_inf, neg_inf, zero."""
    first: torch.Tensor
    fingerprint: torch.Tensor | None
    sketch: torch.Tensor | None


def start(tensor: torch.Tensor, *, offset: int = 0, statistics_only: bool = False) -> PendingMeasurement:
    """Enqueues the work for a contiguous, real tensor whose first element has the flat index `offset`."""
    flat = tensor.detach().reshape(-1)
    size = LANES * (64 if flat.device.type == "cpu" else 1024)  # a few MB of temporaries, or a few dozen on a GPU
    blocks, prints, sketches = [], [], []
    # Blocks end where rows of the whole end, so only the first and the last one need padding.
    edges = [0, *range(size - offset % size, flat.numel(), size), flat.numel()]
    for begin, end in pairwise(edges):
        part = flat[begin:end]
        values = values_of(part)
        finite = torch.isfinite(values)
        kept = torch.where(finite, values, 0)
        blocks.append(_statistics(values, kept, finite))
        if not statistics_only:
            prints.append(_fingerprint(part, offset + begin))
            sketches.append(_sketch(kept, offset + begin))
    return PendingMeasurement(
        count=flat.numel(),
        blocks=torch.stack(blocks),
        first=values_of(flat[:FIRST]),
        fingerprint=torch.stack(prints).sum() if prints else None,
        sketch=torch.stack(sketches).sum(dim=0) if sketches else None,
    )


def finish(pending: PendingMeasurement) -> Measurement:
    """Waits for the device and merges the blocks in order."""
    finite, mean, m2, rows = 0, 0.0, 0.0, pending.blocks.cpu().double().tolist()
    for row in rows:
        finite, mean, m2 = merge_moments((finite, mean, m2), (int(row[0]), row[1], row[2]))
    low, high = min(row[4] for row in rows), max(row[5] for row in rows)
    if low == high:  # a constant has no rounding to show
        mean, m2 = low, 0.0
    statistics = Statistics.of(
        count=pending.count,
        mean=mean,
        m2=m2 if m2 == m2 else float("inf"),
        abs_sum=sum(row[3] for row in rows),
        min=low,
        max=high,
        nan=sum(int(row[6]) for row in rows),
        pos_inf=sum(int(row[7]) for row in rows),
        neg_inf=sum(int(row[8]) for row in rows),
        zero=sum(int(row[9]) for row in rows),
        first=tuple(pending.first.cpu().double().tolist()),
    )
    if pending.fingerprint is None or pending.sketch is None:
        return Measurement(statistics=statistics, fingerprint=0, sketch=b"")
    sketch = pending.sketch.cpu().to(torch.float32).numpy().astype("<f4").tobytes()
    return Measurement(statistics=statistics, fingerprint=int(pending.fingerprint) % 2**64, sketch=sketch)


def fingerprints(rows: torch.Tensor) -> torch.Tensor:
    """The fingerprint of each row of a contiguous matrix, as an int64 of the same bits."""
    words = words_of(rows)
    length = words.shape[1]
    weights = _weights(0, words.new_empty(-(-length // LANES), 0)).view(-1)[:length]
    return (weights * words).sum(dim=1)


def values_of(part: torch.Tensor) -> torch.Tensor:
    """In float64 (on MPS, which has none, in float32)."""
    wide = torch.float32 if part.device.type == "mps" else torch.float64
    if part.dtype == torch.uint64:
        words = part.view(torch.int64)
        upper, lower = ((words >> 32) & _LOW).to(wide), (words & _LOW).to(wide)
        return torch.add(lower, upper, alpha=2**32)  # both exact, so that only the sum rounds
    if part.dtype in _UNSIGNED:
        return words_of(part).to(wide)
    if part.dtype.is_floating_point and part.element_size() == 1:
        return part.to(torch.float32).to(wide)
    return part.to(wide)


def words_of(part: torch.Tensor) -> torch.Tensor:
    """The fingerprint's words, zero-extended."""
    size = part.element_size()
    mask: int = (1 << 8 * min(size, 4)) - 1
    return part.view(_SIGNED[min(size, 4)]).to(torch.int64) & mask


def _statistics(values: torch.Tensor, kept: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    count = finite.sum().to(values.dtype)
    mean = kept.sum() / count.clamp(min=1)
    off = torch.where(finite, values - mean, 0)
    big = torch.full((1,), float("inf"), dtype=values.dtype, device=values.device)  # an empty block has no extremes
    return torch.stack(
        [
            count,
            mean + off.sum() / count.clamp(min=1),  # the first mean carries the rounding of a long sum
            (off * off).sum(),
            kept.abs().sum(),
            torch.cat([torch.where(finite, values, float("inf")), big]).min(),
            torch.cat([torch.where(finite, values, -float("inf")), -big]).max(),
            torch.isnan(values).sum().to(values.dtype),
            torch.isposinf(values).sum().to(values.dtype),
            torch.isneginf(values).sum().to(values.dtype),
            (values == 0).sum().to(values.dtype),
        ]
    )


def _fingerprint(part: torch.Tensor, offset: int) -> torch.Tensor:
    words = words_of(part)
    grid, row = _grid(words, offset * (words.numel() // max(1, part.numel())))
    return (_weights(row, grid) * grid).sum()  # int64 wraps around, which is the arithmetic modulo 2^64 that we want


def _sketch(kept: torch.Tensor, offset: int) -> torch.Tensor:
    grid, row = _grid(kept, offset)
    signed = torch.where(_weights(row, grid) >= 2**31, -grid, grid)
    return signed.sum(dim=0).view(LANES // BUCKETS, BUCKETS).sum(dim=0)


def _grid(flat: torch.Tensor, offset: int) -> tuple[torch.Tensor, int]:
    """In whole rows, zeros added before and after, and the number of the first row."""
    before = offset % LANES
    after = -(before + flat.numel()) % LANES
    if before or after:
        flat = torch.cat([flat.new_zeros(before), flat, flat.new_zeros(after)])
    return flat.view(-1, LANES), offset // LANES


def _weights(row: int, grid: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(row, row + len(grid), device=grid.device)
    return (hashes(rows, ROW_SEED).unsqueeze(1) * _lane_hashes(grid.device)) & _LOW


@lru_cache
def _lane_hashes(device: torch.device) -> torch.Tensor:
    return hashes(torch.arange(LANES, device=device), LANE_SEED)


def hashes(numbers: torch.Tensor, seed: int) -> torch.Tensor:
    """definition.mix in int64, since torch's uint32 cannot multiply."""
    h = (numbers + seed) & _LOW
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _LOW
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _LOW
    return (h ^ (h >> 16)) | 1
