"""What travels from a tap to the writer: a record whose numbers are still on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from layertap.capture.keep import STATS, Level
from layertap.measure.result import Measurement
from layertap.messages import tr
from layertap.site import Record, Sharding, Site

REASONS = 40
"""Different reasons that one line of the receipt counts one by one."""


@dataclass(slots=True)
class Tally:
    """The running count behind one line of the receipt."""

    fired: int = 0
    tensors: int = 0
    direct: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    recomputed: int = 0
    dropped: int = 0

    def skip(self, reason: str) -> None:
        if len(self.skipped) >= REASONS and reason not in self.skipped:
            reason = tr("capture.other_reasons")
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where tensors come from that no module's call brings: a loss, an optimizer's state."""

    path: str
    kind: str
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All of a record but its numbers."""

    site: Site
    kind: str
    order: int
    step: int
    epoch: int | None
    batch: int | None
    phase: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    sharding: Sharding | None
    asked: bool
    tally: Tally

    def record(self, measured: Measurement, level: Level, host: torch.Tensor | None) -> Record:
        """The finished record."""
        return Record(
            site=self.site,
            kind=self.kind,
            order=self.order,
            step=self.step,
            epoch=self.epoch,
            batch=self.batch,
            phase=self.phase,
            rank=self.rank,
            shape=self.shape,
            dtype=self.dtype,
            device=self.device,
            sharding=self.sharding,
            asked=self.asked,
            statistics=measured.statistics,
            fingerprint=measured.fingerprint,
            sketch=measured.sketch,
            kept=STATS.name if host is None else level.name,
            kept_shape=() if host is None else tuple(host.shape),
            kept_dtype="" if host is None else dtype_name(host.dtype),
        )


@dataclass(slots=True)
class PendingRecord:
    """One tensor under way; `arrive` waits for its numbers and, where it is kept, its host copy."""

    draft: Draft
    level: Level
    arrive: Callable[[], tuple[Measurement, torch.Tensor | None]]
    nbytes: int = 0


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name without the prefix."""
    return str(dtype).removeprefix("torch.")
