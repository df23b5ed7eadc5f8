"""Weights that a module computes from others: weight norm and other parametrizations, on either side."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from layertap.result import Note
from layertap.weights.describe import short
from layertap.weights.differences import differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.quantised import ROUNDED
from layertap.weights.sides import Relation
from layertap.weights.sources import of_tensor

_PARTS = (("_g", "_v"), ("parametrizations.{}.original0", "parametrizations.{}.original1"))
"""What the length and the direction of weight norm are called: in its old form, and as a parametrization."""


def computed_weights(model: Weights, other: Weights) -> dict[str, Relation]:
    """Relations of weights that one side holds and the other computes, proven on what is computed."""
    return dict(_of_parts(model, other)) | dict(_to_parts(model, other))


def _of_parts(model: Weights, other: Weights) -> Iterator[tuple[str, Relation]]:
    """The model's weight is what weight norm makes of two tensors there."""
    for name, entry in model.entries.items():
        names = _parts(name, other)
        if name in other.entries or names is None or not entry.readable:
            continue
        length, direction = (other.entries[part] for part in names)
        if direction.shape != entry.shape or not length.readable or not direction.readable:
            continue
        relation = _proven(entry, weight_norm(length.read(), direction.read()), names, "weight norm")
        if relation is not None:
            yield name, relation


def _to_parts(model: Weights, other: Weights) -> Iterator[tuple[str, Relation]]:
    """The model computes with its parametrization what is stored there."""
    for path, module in model.model.named_modules() if model.model is not None else ():
        for own in getattr(module, "parametrizations", None) or ():
            name = f"{path}.{own}" if path else own
            source = other.entries.get(name)
            inside = f"{path}.parametrizations.{own}." if path else f"parametrizations.{own}."
            held = [part for part in model.entries if part.startswith(inside) and part not in other.entries]
            if source is None or not source.readable or not held:
                continue
            with torch.no_grad():
                relation = _proven(of_tensor(name, getattr(module, own)), source.read(), (name,), "parametrized")
            if relation is not None:
                for part in held:
                    yield part, relation


def weight_norm(length: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """A direction brought to a length, over the axes along which the length is one."""
    axes = [axis for axis, size in enumerate(length.shape) if size == 1 and axis < direction.ndim]
    wide = direction.double()
    size = wide.square().sum(axes, keepdim=True).sqrt() if axes else wide.norm()
    return (wide * length.double() / size.clamp_min(1e-300)).to(direction.dtype)


def _parts(name: str, other: Weights) -> tuple[str, str] | None:
    above, dot, own = name.rpartition(".")
    candidates = [(name + ends[0], name + ends[1]) for ends in _PARTS[:1]]
    candidates += [(above + dot + one.format(own), above + dot + two.format(own)) for one, two in _PARTS[1:]]
    return next((pair for pair in candidates if all(part in other.entries for part in pair)), None)


def _proven(entry: Entry, value: torch.Tensor, names: tuple[str, ...], rule: str) -> Relation | None:
    if tuple(value.shape) != entry.shape:
        return None
    apart = differences(entry, of_tensor(entry.name, value))
    if not apart.error <= ROUNDED * torch.finfo(entry.dtype).eps:
        return None
    if rule == "weight norm":
        note = Note("audit.weight_norm", first=names[0], second=names[1])
    else:
        note = Note("audit.parametrized", name=names[0])
    kinds = Note("audit.kinds", source=short(value.dtype), own=short(entry.dtype))
    cast = value.dtype != entry.dtype
    changed = Note("audit.and_cast", first=note, second=kinds) if cast else note
    return Relation("converted", names, rule, changed, lossy=True)
