"""The evidence of a mode's precision, summed up; read from its outcome, without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from layertap.messages import tr
from layertap.result import Note

_USUAL = (2, 4, 8)
MOST_BITS = 16
"""Rounding to more places is seen as floating point."""


def bits_of(evidence: Mapping[str, Any]) -> int:
    """The bits of the coarsest whole-number or 8-bit arithmetic, or rounding, that was seen; 0 where there is none."""
    found = [_width(dtype) for dtype in evidence.get("parameters", {})]
    for text in evidence.get("kernels", {}):
        found += [_width(dtype) for dtype in text.partition("(")[2].rstrip(")").split(", ")]
    for text in evidence.get("casts", {}):
        found += [_width(dtype) for dtype in text.split(" → ")]
    for widths in _grids(evidence).values():
        found += [_usual(bits, max(widths)) for bits in widths]
    return min((bits for bits in found if 1 < bits <= MOST_BITS), default=0)


def _grids(evidence: Mapping[str, Any]) -> dict[str, list[int]]:
    """The widths of the grids that weights, outputs and rounded tensors lie on."""
    found = {where: [grid["bits"] for grid in evidence.get(where, {}).values()] for where in ("weights", "outputs")}
    found["rounding"] = [int(text.split()[-2]) for text in evidence.get("rounding", {}) if text.endswith(" bits")]
    return {where: widths for where, widths in found.items() if widths}


def _usual(bits: int, widest: int) -> int:
    """An odd width among wider ones is a tensor that does not fill its grid."""
    return bits if bits in _USUAL or bits == widest else next((one for one in _USUAL if one >= bits), bits)


def dtypes_of(evidence: Mapping[str, Any]) -> list[str]:
    """All dtypes of parameters and kernels."""
    found = list(evidence.get("parameters", {}))
    for text in evidence.get("kernels", {}):
        found += text.partition("(")[2].rstrip(")").split(", ")
    return list(dict.fromkeys(dtype for dtype in found if dtype))


def _width(dtype: str) -> int:
    """Bits of a narrow type of weights; 0 for others, and for what indices and masks are made of."""
    match = re.fullmatch(r"u?int([1-8])|float8_\w+|float(4|6)_\w+", dtype)
    if match is None:
        return 0
    return int(match[1] or match[2] or 8)


def summary(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Dtype → what shows that it is used, in words that need no language: names and numbers."""
    texts: dict[str, list[str]] = {}
    for dtype, found in evidence.get("parameters", {}).items():
        texts.setdefault(dtype, []).append(Note("sweeping.parameters", found=found["tensors"], found2=found["values"]))
    kernels: dict[str, int] = {}
    for text, count in evidence.get("kernels", {}).items():
        for dtype in set(text.partition("(")[2].rstrip(")").split(", ")) - {""}:
            kernels[dtype] = kernels.get(dtype, 0) + count
    for dtype, count in kernels.items():
        texts.setdefault(dtype, []).append(Note("sweeping.kernels", count=count))
    widths = _grids(evidence)
    for where in ("weights", "outputs"):
        bits: dict[int, list[str]] = {}
        for path, found in evidence.get(where, {}).items():
            bits.setdefault(_usual(found["bits"], max(widths[where])), []).append(path)
        for width, paths in sorted(bits.items()):
            first = evidence[where][paths[0]]
            step = tr("sweeping.grid_step", first=first["step"]) if first.get("step") else ""
            text = tr(
                "sweeping.grid",
                count=len(paths),
                where=tr(f"sweeping.{where}"),
                width=width,
                paths=paths[0] or tr("sweeping.the_model"),
                first=first["distinct"],
                step=step,
            )
            texts.setdefault(f"int{width}", []).append(text)
    for text, count in evidence.get("rounding", {}).items():
        if text.endswith(" bits"):
            width = _usual(int(text.split()[-2]), max(widths["rounding"]))
            texts.setdefault(f"int{width}", []).append(f"{count} × {text}")
    return {dtype: "; ".join(parts) for dtype, parts in texts.items()}
