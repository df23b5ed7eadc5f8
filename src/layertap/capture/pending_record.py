"""A record before its tensor is measured, and how its plan says what is kept."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch

from layertap.capture.keep import Level
from layertap.site import Site
from layertap.store.plans import RecordPlan

if TYPE_CHECKING:
    from layertap.capture.module_tap import CallMoment
    from layertap.capture.site_counts import SiteCounts


class PendingRecord(NamedTuple):
    """What a record has in common with others (`plan`), and what it alone has."""

    plan: RecordPlan
    order: int
    """Its place in the step's order of execution."""
    moment: CallMoment
    """When; `moment.call` is the number of the call in the record's site."""
    counts: SiteCounts
    """Where it is counted."""

    @property
    def site(self) -> Site:
        """With the number of the call."""
        return Site(path=self.plan.path, role=self.plan.role, leaf=self.plan.leaf, call=self.moment.call)


def with_kept(plan: RecordPlan, level: Level, kept: torch.Tensor) -> RecordPlan:
    """The plan of tensors of which that much is kept; `kept` has the shape and dtype of what is."""
    if not level.keeps:
        return plan
    nbytes = kept.numel() * kept.element_size()
    return plan.changed(kept=level.name, kept_shape=tuple(kept.shape), kept_dtype=dtype_name(kept.dtype), nbytes=nbytes)


def without_kept(plan: RecordPlan) -> RecordPlan:
    """The plan of the same tensors where only their statistics are recorded."""
    return plan.changed(kept="stats", kept_shape=(), kept_dtype="", nbytes=0)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """torch's name without the prefix."""
    return str(dtype).removeprefix("torch.")
