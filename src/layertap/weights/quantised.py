"""Weights that a checkpoint holds as small numbers and scales, or as a base and a low-rank addition."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from layertap.weights.entries import Entry

_SCALES = ("_scale", "_scale_inv", "_scales", ".scale", ".scales")
_SMALL = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
ROUNDED = 4.0
"""Unit roundoffs of the model's dtype that a product of two rounded numbers may be off by."""


def dequantised(model: Entry, source: Entry, entries: Mapping[str, Entry]) -> tuple[str, str] | None:
    """(The scales' name, evidence) where the model's weight is the source times its scales; by row, block or whole."""
    if source.dtype not in _SMALL or source.shape != model.shape or not model.dtype.is_floating_point:
        return None
    stem = source.name.removesuffix(".weight")
    names = [source.name + end for end in _SCALES] + [f"{stem}.weight_scale", f"{stem}.scale", f"{stem}.scales"]
    for name in dict.fromkeys(names):
        if name in entries:
            wanted, scale = source.read().float(), entries[name].read().float()
            spread = _spread(scale, wanted)
            if spread is None:
                continue
            for way, product in (("×", wanted * spread), ("÷", wanted / spread)):
                error = _error(model.read().float(), product)
                if error <= ROUNDED * torch.finfo(model.dtype).eps:
                    return name, f"values {way} scales of shape {tuple(scale.shape)}, error {error:.2g}"
    return None


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
            return (one, two), f"base + {by:.4g} × B·A, error {error:.2g}"
    return None


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float(wanted.double().norm())
    return float((found.double() - wanted.double()).norm()) / size if size else float(found.double().norm())
