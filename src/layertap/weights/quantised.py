"""Weights that a checkpoint holds as small numbers and scales, or as a base and a low-rank addition."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from layertap.result import Note
from layertap.weights.differences import together
from layertap.weights.entries import Entry

_SCALES = ("_scale", "_scale_inv", "_scales", ".scale", ".scales")
_ZEROS = ("_zero_point", "_zeros", ".zero_point", ".zeros")
_SMALL = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
ROUNDED = 4.0
"""Unit roundoffs of the model's dtype that a product of two rounded numbers may be off by."""
STEP = 0.75
"""How far a rounded value may be from the original, in steps of its grid: half a step, and some room for rounding."""
BITS = 4
"""The coarsest grid that is assumed where a quantised tensor does not say how many bits it has."""


def dequantised(model: Entry, source: Entry, entries: Mapping[str, Entry]) -> tuple[tuple[str, ...], str] | None:
    """(The names of scales and zeros, evidence) where the model's weight is the source times its scales.

    The scales are one a row, one a block, or one for all.
    """
    if source.dtype not in _SMALL or source.shape != model.shape or not model.dtype.is_floating_point:
        return None
    stem = source.name.removesuffix(".weight")
    names = [source.name + end for end in _SCALES] + [f"{stem}.weight_scale", f"{stem}.scale", f"{stem}.scales"]
    names.append(f"{stem}.SCB")
    for name in dict.fromkeys(names):
        if name not in entries or not entries[name].readable:
            continue
        wanted, scale = source.read().float(), entries[name].read().float()
        spread = _spread(scale / 127 if name.endswith(".SCB") else scale, wanted)
        if spread is None:
            continue
        zeros = next((source.name + end for end in _ZEROS if source.name + end in entries), "")
        offset = _spread(entries[zeros].read().float(), wanted) if zeros else None
        wanted = wanted - offset if offset is not None else wanted
        used = (name, zeros) if offset is not None else (name,)
        here = model.read().float()
        for way, product in (("×", wanted * spread), ("÷", wanted / spread)):
            error = _error(here, product)
            if error <= ROUNDED * torch.finfo(model.dtype).eps:
                return used, Note("audit.scales", way=way, shape=tuple(scale.shape), error=error)
            # The other way round: what the values were rounded from.
            room = STEP * spread.abs() * torch.maximum(wanted.abs() / 8, torch.ones(())) if way == "×" else None
            if room is not None and bool(((here - product).abs() <= room).all()):
                return used, Note("audit.rounded_scales", way=way, shape=tuple(scale.shape), error=error)
    return None


def rounded(model: Entry, source: Entry) -> str:
    """Evidence that one side is the other, rounded to a grid of few values in every row; empty where it is not."""
    bits = next((known for kind, known in _BITS.items() if kind in (model.quantised + source.quantised).lower()), BITS)
    levels = max(2 ** (bits - 1) - 1, 1)
    worst = total = size = 0.0
    for a, b in together(model, source, max(model.shape[-1] if model.shape else 1, 1)):
        x, y = a.double(), b.double()
        room = torch.maximum(x.abs().amax(1), y.abs().amax(1)).clamp_min(1e-30)
        apart = (x - y).abs()
        worst = max(worst, float((apart.amax(1) / room).max()))
        total, size = total + float(apart.square().sum()), size + float(y.square().sum())
    if worst > STEP / levels * 1.5:
        return ""
    kind = " and ".join(dict.fromkeys(part for part in (source.quantised, model.quantised) if part))
    return Note("audit.rounded_as", kind=kind, value=(total / size) ** 0.5 if size else 0.0)


_BITS = {"q8": 8, "int8": 8, "float8": 4, "q6": 6, "q5": 5, "q4": 4, "iq4": 4, "int4": 4, "q3": 3, "iq3": 3, "q2": 2}
"""How many bits a value has by what its kind is called; eight-bit floats keep three or four."""


def _spread(scale: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """Scales in the shape of the weight: one for all, one a row, one a block."""
    if scale.numel() == 1:
        return scale.reshape(()).expand(like.shape)
    if like.ndim == 2 and scale.ndim == 1 and len(scale) == len(like):
        return scale[:, None].expand(like.shape)
    if scale.ndim != like.ndim:
        return None
    for axis, (size, parts) in enumerate(zip(like.shape, scale.shape, strict=True)):
        block = -(-size // parts) if parts else 0
        if not block or -(-size // block) != parts:
            return None
        scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
    return scale


def merged_lora(model: Entry, base: Entry, entries: Mapping[str, Entry]) -> tuple[tuple[str, str], str] | None:
    """(The two factors' names, evidence) where the model's weight is the base plus a multiple of their product."""
    if base.shape != model.shape or len(model.shape) != 2:
        return None
    stem = base.name.removesuffix(".weight").removesuffix(".base_layer")
    for one in entries:
        if ".lora_A" not in one or one.partition(".lora_A")[0].removeprefix("base_model.model.") != stem.removeprefix(
            "base_model.model."
        ):
            continue
        two = one.replace(".lora_A", ".lora_B")
        if two not in entries:
            continue
        product = entries[two].read().double() @ entries[one].read().double()
        if product.shape != model.shape or not product.any():
            continue
        here, there = model.read().double(), base.read().double()
        by = float(((here - there) * product).sum() / product.square().sum())
        error = _error(here, there + by * product)
        if error <= ROUNDED * torch.finfo(model.dtype).eps:
            return (one, two), Note("audit.lora", by=by, error=error)
    return None


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float(wanted.double().norm())
    return float((found.double() - wanted.double()).norm()) / size if size else float(found.double().norm())
