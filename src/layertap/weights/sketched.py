"""A tensor of which another process said only what it is recognised by: casts are proven, other changes estimated."""

from __future__ import annotations

import torch

from layertap.measure import Measurement, measure, merge
from layertap.measure.sketch import cosine, relative_l2
from layertap.result import Note
from layertap.weights.describe import short
from layertap.weights.entries import Entry

CASTS = (torch.bfloat16, torch.float16)
"""Dtypes in which a tensor's fingerprint is kept as well."""


def known_of(entry: Entry) -> dict[str, int]:
    """Its fingerprint after a cast to each coarser dtype."""
    if not entry.dtype.is_floating_point or entry.dtype.itemsize <= 2:
        return {}
    return {short(dtype): measured_as(entry, dtype).fingerprint for dtype in CASTS}


def measured_as(entry: Entry, dtype: torch.dtype) -> Measurement:
    parts, offset = [], 0
    for block in entry.blocks():
        parts.append(measure(block.to(dtype), offset=offset))
        offset += block.numel()
    return merge(parts) if parts else measure(torch.empty(0, dtype=dtype))


def sketched(
    entry: Entry, source: Entry, here: Measurement, there: Measurement
) -> tuple[str, tuple[str, ...], str, Note]:
    """(Status, others, rule, evidence) of a pair of one shape, of which one has no values here."""
    kinds = Note("audit.kinds", source=short(source.dtype), own=short(entry.dtype))
    for known, other in ((entry, source), (source, entry)):
        if known.known is None or known.dtype == other.dtype:
            continue
        own = other.known.casts if other.known is not None else {}
        if known.known.casts.get(short(other.dtype)) == (here if other is entry else there).fingerprint:
            return "cast", (source.name,), "cast", kinds
        if other.readable and other.dtype.is_floating_point and known.dtype.is_floating_point:
            own = {short(known.dtype): measured_as(other, known.dtype).fingerprint}
        if own.get(short(known.dtype)) == known.known.measured.fingerprint:
            return "cast", (source.name,), "cast", kinds
    if here.statistics.nonfinite or there.statistics.nonfinite:
        counts = {"here": here.statistics.nonfinite, "there": there.statistics.nonfinite}
        return "changed", (source.name,), "", Note("audit.nonfinite_sides", **counts)
    error = relative_l2(there.sketch, here.sketch, there.statistics.l2)
    note = Note("audit.sketched", error=error, cosine=cosine(here.sketch, there.sketch))
    return "changed", (source.name,), "", note
