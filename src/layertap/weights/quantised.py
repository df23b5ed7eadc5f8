"""Weights that a checkpoint holds as small numbers and scales, or as a base and a low-rank addition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from layertap.result import Note
from layertap.weights.differences import together
from layertap.weights.entries import Entry, Weights

_SCALES = ("_scale", "_scale_inv", "_scales", ".scale", ".scales")
_ZEROS = ("_zero_point", "_zeros", ".zero_point", ".zeros")
_SMALL = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
ROUNDED = 4.0
"""Unit roundoffs of the model's dtype that a product of two rounded numbers may be off by."""
STEP = 0.75
"""How far a rounded value may be from the original, in steps of its grid: half a step, and some room for rounding."""
APART = 0.1
"""By how much a factor has to differ from what it should be, to count as another one."""
BITS = 4
"""The coarsest grid that is assumed where a quantised tensor does not say how many bits it has."""


@dataclass(frozen=True, slots=True)
class MergedPart:
    """What a tensor was made of beside its partner, and whether that is as it should be."""

    used: tuple[str, ...]
    note: Note
    right: bool = True


def dequantised(model: Entry, source: Entry, entries: Mapping[str, Entry]) -> MergedPart | None:
    """The scales and zeros by which the model's weight is the source: one scale a row, a block, or for all."""
    if source.dtype not in _SMALL or source.shape != model.shape or not model.dtype.is_floating_point:
        return None
    stem = source.name.removesuffix(".weight")
    names = [source.name + end for end in _SCALES] + [f"{stem}.weight_scale", f"{stem}.scale", f"{stem}.scales"]
    names.append(f"{stem}.SCB")
    wrong = None
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
        for way, product in (("times", wanted * spread), ("over", wanted / spread)):
            error = _error(here, product)
            known: dict[str, Any] = {"shape": str(tuple(scale.shape)), "error": error}
            if error <= ROUNDED * torch.finfo(model.dtype).eps:
                return MergedPart(used, Note(f"audit.{way}_scales", **known))
            # The other way round: what the values were rounded from.
            room = STEP * spread.abs() * torch.maximum(wanted.abs() / 8, torch.ones(())) if way == "times" else None
            if room is not None and bool(((here - product).abs() <= room).all()):
                return MergedPart(used, Note("audit.rounded_scales", **known))
            by = float((here.double() * product.double()).sum() / product.double().square().sum().clamp_min(1e-300))
            if abs(by - 1) > APART and _error(here, by * product) < APART / 2:
                wrong = MergedPart(used, Note("audit.wrong_scales", shape=known["shape"], by=by), right=False)
    return wrong


def rounded(model: Entry, source: Entry, known: str = "") -> Note | None:
    """Evidence that one side is the other, rounded to a grid of few values in every row; None where it is not."""
    kinds = [kind for kind in (source.quantised or known, model.quantised) if kind]
    bits = min(map(_bits, kinds), default=BITS)
    levels = max(2 ** (bits - 1) - 1, 1)
    worst = total = size = 0.0
    for a, b in together(model, source, max(model.shape[-1] if model.shape else 1, 1)):
        x, y = a.double(), b.double()
        room = torch.maximum(x.abs().amax(1), y.abs().amax(1)).clamp_min(1e-30)
        apart = (x - y).abs()
        worst = max(worst, float((apart.amax(1) / room).max()))
        total, size = total + float(apart.square().sum()), size + float(y.square().sum())
    if not worst <= STEP / levels * 1.5:
        return None
    return Note("audit.rounds", kind=" + ".join(dict.fromkeys(kinds)), error=(total / size) ** 0.5 if size else 0.0)


def _bits(kind: str) -> int:
    """How many bits a value has by what its kind is called; eight-bit floats keep three or four."""
    found = re.findall(r"(?:int|q)(\d+)", kind.lower())
    return min(int(found[-1]), 8) if found else BITS  # the class comes first, and may be named after what it packs into


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


def merged_lora(model: Entry, base: Entry, other: Weights) -> MergedPart | None:
    """The factors where the model's weight is the base plus a multiple of their product."""
    if base.shape != model.shape or len(model.shape) != 2:
        return None
    entries = other.entries
    stem = _stem(base.name.removesuffix(".weight").removesuffix(".base_layer"))
    for one in entries:
        if ".lora_A" not in one or _stem(one.partition(".lora_A")[0]) != stem:
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
            wanted = _adapter_scale(other.config)
            if wanted is not None and abs(by / wanted - 1) > APART:
                return MergedPart((one, two), Note("audit.lora_twice", by=by, wanted=wanted), right=False)
            return MergedPart((one, two), Note("audit.lora", by=by, error=error))
    return None


def _stem(name: str) -> str:
    return name.removeprefix("base_model.model.")


def _adapter_scale(config: Mapping[str, Any]) -> float | None:
    """By what an adapter's product is multiplied, as its own configuration states."""
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if not isinstance(alpha, (int, float)) or not isinstance(rank, int) or rank <= 0:
        return None
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float(wanted.double().norm())
    return float((found.double() - wanted.double()).norm()) / size if size else float(found.double().norm())
