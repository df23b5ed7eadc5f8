"""What a writer is given to keep: the bytes of a tensor, checked against its record, and their fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from layertap.errors import BadArgument
from layertap.measure.fingerprint import fingerprint
from layertap.messages import tr
from layertap.site import Record
from layertap.store.dtype import size_of


def as_bytes(record: Record, data: Any) -> memoryview:
    """The kept tensor's bytes, checked against what the record says of them."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BadArgument(tr("store.not_contiguous", site=record.site))
    view = view.cast("B") if view.nbytes else memoryview(b"")
    expected = size_of(record.kept_dtype, record.kept_shape)
    if record.kept == "stats" or not record.kept_dtype or (expected is not None and expected != len(view)):
        raise BadArgument(
            tr(
                "store.bytes_given",
                site=record.site,
                count=len(view),
                kept=record.kept,
                kept_dtype=record.kept_dtype or tr("store.no_kept_dtype"),
                kept_shape=list(record.kept_shape),
            )
            + (tr("store.which_is_bytes", expected=expected) if expected is not None else "")
        )
    return view


def with_fingerprint(record: Record, data: memoryview) -> Record:
    """The record with the fingerprint of its kept bytes, which a whole tensor's own measure has given already."""
    if record.kept_fingerprint is not None:
        return record
    if record.kept == "tensor" and record.sketch:
        return replace(record, kept_fingerprint=record.fingerprint)
    return replace(record, kept_fingerprint=fingerprint(np.frombuffer(data, np.uint8), record.kept_dtype))
