"""What is known of a record before its tensor is measured, and the counts behind a line of the receipt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from layertap.capture.keep import STATS, Level
from layertap.capture.short_way import TapCounts
from layertap.messages import tr
from layertap.site import Sharding, Site
from layertap.store.plans import RecordPlan

REASONS = 40
"""Different reasons that one line of the receipt counts one by one."""


class Tally(TapCounts):
    """The running counts behind one line of the receipt."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: dict[str, int] = {}
        """Tensors that were not taken, by the reason."""

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


def plan_of(draft: Draft, level: Level = STATS, kept: torch.Tensor | None = None) -> RecordPlan:
    """What a draft has in common with others; `kept` has the shape and dtype of what is kept, if something is."""
    double = draft.dtype.startswith("complex")
    keeps = kept is not None and level.keeps
    return RecordPlan(
        path=draft.site.path,
        role=draft.site.role,
        leaf=draft.site.leaf,
        kind=draft.kind,
        rank=draft.rank,
        shape=draft.shape,
        dtype=draft.dtype,
        device=draft.device,
        sharding=draft.sharding,
        asked=draft.asked,
        count=math.prod(draft.shape) * (2 if double else 1),
        kept=level.name if keeps else STATS.name,
        kept_shape=tuple(kept.shape) if keeps and kept is not None else (),
        kept_dtype=dtype_name(kept.dtype) if keeps and kept is not None else "",
        nbytes=kept.numel() * kept.element_size() if keeps and kept is not None else 0,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name without the prefix."""
    return str(dtype).removeprefix("torch.")
