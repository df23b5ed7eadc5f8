"""The sums of a part with torch's own operations, for any device; nothing waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layertap.measure.definition import BUCKETS, LANE_SEED, LANES, ROW_SEED
from layertap.measure.part.place import Box
from layertap.measure.plain import hashes, values_of, words_of

_LOW = 0xFFFFFFFF
_BLOCK = 1 << 18
"""Elements at a time on a CPU; their indices and weights take some 64 bytes each."""
_BLOCK_ON_DEVICE = 1 << 24


def start(tensor: torch.Tensor, boxes: Sequence[Box]) -> tuple[torch.Tensor, torch.Tensor]:
    """The fingerprint as an int64 of the same bits, and the sketch, of boxes of a contiguous, real tensor."""
    device = tensor.device
    fingerprint = torch.zeros((), dtype=torch.int64, device=device)
    sketch = torch.zeros(BUCKETS, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    most = _BLOCK if device.type == "cpu" else _BLOCK_ON_DEVICE
    for box in boxes:
        for piece in box.pieces(most):
            _add(tensor, piece, fingerprint, sketch)
    return fingerprint, sketch


def _add(tensor: torch.Tensor, box: Box, fingerprint: torch.Tensor, sketch: torch.Tensor) -> None:
    extents = [level.extent for level in box.levels]
    index = torch.full((1,) * len(extents), box.whole_start, dtype=torch.int64, device=tensor.device)
    for axis, level in enumerate(box.levels):
        places = torch.arange(level.extent, device=tensor.device) * level.whole_step
        index = index + places.view(-1, *(1,) * (len(extents) - axis - 1))
    index = index.reshape(-1)
    begin = tensor.storage_offset() + box.start
    part = tensor.as_strided(extents, [level.step for level in box.levels], begin).reshape(-1)
    words = words_of(part).view(len(index), -1)
    place = index.unsqueeze(1) * words.shape[1] + torch.arange(words.shape[1], device=tensor.device)
    fingerprint += (_weights(place) * words).sum()  # int64 wraps around, which is the arithmetic modulo 2^64
    values = values_of(part)
    kept = torch.where(torch.isfinite(values), values, 0)
    sketch.index_add_(0, index % LANES % BUCKETS, torch.where(_weights(index) >= 2**31, -kept, kept))


def _weights(index: torch.Tensor) -> torch.Tensor:
    return (hashes(index // LANES, ROW_SEED) * hashes(index % LANES, LANE_SEED)) & _LOW
