"""A part of a tensor: what it adds to the fingerprint and the sketch of the whole, whatever axes were cut.

    whole_sums(tensor, place)   -> WholeSums, wherever the tensor lives; waits for the result
    start(tensor, place)        the same without waiting -> PendingSums
    place.py    which elements of the whole a part has, and the boxes that they are      <- read first
    native.py   the CPU, by parts.c
    kernel.py   CUDA
    plain.py    any device, with torch's own operations

Parts of one partition add up to the whole's: fingerprints exactly, sketches up to the rounding of float32. Nothing here
imports torch until a tensor is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument
from layertap.measure.definition import BUCKETS
from layertap.measure.part.place import PartPlace, boxes_of
from layertap.measure.result import WholeSums, merge_sums
from layertap.messages import tr

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PartPlace", "PendingSums", "start", "unpacked", "whole_sums"]

COPY = 1 << 26
"""A non-contiguous tensor with more elements than this is measured slice by slice, not copied as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSums:
    """What a device has been asked for."""

    fingerprint: Tensor
    """An int64 of the same bits."""
    sketch: Tensor

    def finish(self) -> WholeSums:
        """Waits for the device."""
        sketch = self.sketch.cpu().numpy()
        return WholeSums(fingerprint=int(self.fingerprint) % 2**64, sketch=_floats(sketch))

    def packed(self) -> Tensor:
        """Both as bytes on the device, for `unpacked`."""
        import torch

        both = self.fingerprint.reshape(1).view(torch.uint8), self.sketch.to(torch.float64).view(torch.uint8)
        return torch.cat(both)


def unpacked(raw: npt.NDArray[np.uint8]) -> WholeSums:
    """What `packed` left, copied to the host."""
    data = raw.tobytes()
    return WholeSums(
        fingerprint=int.from_bytes(data[:8], "little"), sketch=_floats(np.frombuffer(data, "<f8", BUCKETS, 8))
    )


def whole_sums(tensor: Tensor, place: PartPlace) -> WholeSums:
    """What `tensor` adds to the fingerprint and the sketch of the whole, of which it is the elements at `place`.

    >>> import torch
    >>> from layertap.measure import measure
    >>> whole = torch.arange(12.0).view(3, 4)
    >>> halves = [PartPlace(spans=(((0, 3),), ((begin, begin + 2),)), shape=(3, 4)) for begin in (0, 2)]
    >>> sums = [whole_sums(part, place) for part, place in zip(whole.split(2, dim=1), halves)]
    >>> merge_sums(sums).fingerprint == measure(whole).fingerprint
    True
    """
    real, place = _prepared(tensor, place)
    if not real.is_contiguous():
        if real.numel() > COPY:
            rows = zip(real.split(1), place.rows(), strict=True)
            return merge_sums([whole_sums(row.contiguous(), one) for row, one in rows])
        real = real.contiguous()
    if real.device.type == "cpu":
        from layertap.measure.part import native

        if native.available():
            found = [native.sums_of(real, box) for box in boxes_of(place)]
            with np.errstate(over="ignore", invalid="ignore"):
                sketch = np.sum([np.zeros(BUCKETS), *(sums for _, sums in found)], axis=0)
            return WholeSums(fingerprint=sum(sums for sums, _ in found) % 2**64, sketch=_floats(sketch))
    return _start(real, place).finish()


def start(tensor: Tensor, place: PartPlace) -> PendingSums:
    """Enqueues the work on the tensor's device, on the stream that is current."""
    real, place = _prepared(tensor, place)
    return _start(real.contiguous(), place)


def _start(real: Tensor, place: PartPlace) -> PendingSums:
    from layertap.measure.part import kernel, plain

    boxes = boxes_of(place)
    fingerprint, sketch = (kernel if kernel.fits(real, boxes) else plain).start(real, boxes)
    return PendingSums(fingerprint=fingerprint, sketch=sketch)


def _prepared(tensor: Tensor, place: PartPlace) -> tuple[Tensor, PartPlace]:
    from layertap.measure import real_view

    if tuple(tensor.shape) != place.part:
        raise BadArgument(tr("measure.place", shape=list(tensor.shape), part=list(place.part)))
    return real_view(tensor), place.doubled() if tensor.is_complex() else place


def _floats(sketch: npt.NDArray[Any]) -> bytes:
    with np.errstate(over="ignore"):
        return bytes(sketch.astype("<f4").tobytes())
