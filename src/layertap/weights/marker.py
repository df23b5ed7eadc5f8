"""Memory that is not written yet, filled with a marker: what still has it after loading was never loaded.

transformers makes room for tensors that a checkpoint lacks, and lets the class initialise them. Where the class forgets
one, it keeps whatever the memory held before. As long as the room holds a marker, that shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from layertap.result import Note
from layertap.weights.result import AuditRow

_INTEGER = 0x5A


def mark(tensors: Iterable[torch.Tensor]) -> None:
    """Fills each with NaN, or with a number that no count and no index is likely to be."""
    with torch.no_grad():
        for tensor in tensors:
            if not tensor.is_meta and tensor.numel():
                tensor.fill_(_value(tensor.dtype))


def unwritten(tensor: torch.Tensor) -> int:
    """How many of its values still hold the marker."""
    if tensor.is_meta or tensor.dtype == torch.bool or not tensor.numel():
        return 0
    value = _value(tensor.dtype)
    held = tensor.detach()
    found = held.isnan() if isinstance(value, float) else held == value
    return int(found.sum())


def never_written(rows: Iterable[AuditRow], model: Any, marked: Iterable[str]) -> list[AuditRow]:
    """The rows, with those of tensors that still hold the marker as `unwritten`; one is added where it had none."""
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    left = {}
    for name in marked:
        count = unwritten(held[name]) if name in held else 0
        if count:
            total = held[name].numel()
            part = Note("audit.partly_written", count=count, total=total)
            left[name] = Note("audit.never_written") if count == total else part
    found = []
    for row in rows:
        detail = left.pop(row.name, None)
        found.append(replace(row, status="unwritten", rule="", detail=detail) if detail is not None else row)
    for name, detail in left.items():
        shape, dtype = tuple(held[name].shape), str(held[name].dtype).removeprefix("torch.")
        found.append(AuditRow(name=name, other="", status="unwritten", detail=detail, shape=shape, dtype=dtype))
    return found


def _value(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype == torch.bool else _INTEGER
