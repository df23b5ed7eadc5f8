"""What differs between two modules and no rounding explains, proved by putting the reference's in its place.

In a narrow dtype a wrong weight or setting may hide below the rounding of what it makes. But the two modules hold other
numbers, and that is certain. Whether it is to blame is tried: with the reference's numbers in its place, the candidate
computes what the reference computes in that dtype, or comes much nearer to it. Where code makes up for other numbers (a
norm that adds 1 to its weight), it does not, and there is nothing to be said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import Event, ReplayResult
from layertap.fault.result import ModuleRow
from layertap.judge.calibration import LIMIT_OF_MODULES
from layertap.measure.dense import same_values
from layertap.measure.pair.deferred import compare_tensors, on_one_device
from layertap.measure.pair.difference import UNMEASURED, Difference
from layertap.result import Note
from layertap.site import Site

SEEN = 0.25
"""An effect of this many times the floor is worth a trial."""
SHOWN = 0.02
"""An effect that is a smaller share of what the numbers differ by was made up for elsewhere."""
GONE = 0.5
"""What is left of an effect, at most, when its reason is taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDifference:
    """Two modules that force other numbers or settings."""

    reference_path: str
    tensors: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """The candidate's, and the reference's."""
    settings: tuple[tuple[nn.Module, str, Any], ...]
    """The candidate's module, the name, and the reference's value."""
    site: Site
    """Where its effect is largest."""
    effect: Difference


def is_rounded(wanted: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether values are others but for rounding: to their own dtype, or by way of a narrower one.

    >>> third = torch.tensor([1 / 3, 2 / 3])
    >>> is_rounded(third, third.to(torch.bfloat16)), is_rounded(third, third.to(torch.float16).float())
    (True, True)
    >>> is_rounded(third, 1.001 * third)
    False
    """
    if wanted.shape != values.shape:
        return False
    wanted, values = on_one_device(wanted.detach(), values.detach())
    if not (wanted.is_floating_point() and values.is_floating_point()):
        return torch.equal(wanted, values)
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda r: r,
        lambda r: r.to(torch.bfloat16),
        lambda r: r.to(torch.float16),
        _truncated,
    ]
    return any(same_values(way(wanted).to(values.dtype), values) for way in ways)


def _truncated(values: torch.Tensor) -> torch.Tensor:
    """In bfloat16 by leaving bits off, as some converters do."""
    return (values.float().contiguous().view(torch.int32) & -65536).view(torch.float32)


def suspected(
    pairing: Pairing,
    replayed: ReplayResult,
    floors: Mapping[Site, Difference],
    least: float,
    called: Collection[str],
    rows: Iterable[ModuleRow],
) -> list[TriedDifference]:
    """The modules that are within their floor, and force something else than the reference's."""
    owned: dict[str, list[Event]] = {}
    for event in replayed.events:
        if event.owner is not None:
            owned.setdefault(event.owner[0], []).append(event)
    found = []
    for row in rows:
        ours, theirs = pairing.reference.get(row.reference_path), pairing.candidate.get(row.reference_path)
        if row.ratio > LIMIT_OF_MODULES or ours is None or theirs is None or not _one_class(ours, theirs):
            continue
        seen = [(_effect(event, floors, least), event) for event in owned.get(row.reference_path, ())]
        if not seen:
            continue
        effect, event = max(seen, key=lambda pair: pair[0])
        if effect < SEEN:
            continue
        tensors = tuple(_tensors(ours, theirs, row.reference_path, called))
        # One kind at a time: a setting that makes up for other weights must not go with them.
        settings = () if tensors else tuple(_settings_apart(ours, theirs))
        here = event.beside or event.found
        if settings or (tensors and _size(here) > SHOWN * max(_error(*pair) for pair in tensors)):
            found.append(
                TriedDifference(
                    reference_path=row.reference_path, tensors=tensors, settings=settings, site=event.site, effect=here
                )
            )
    return found


def proven(suspects: Iterable[TriedDifference], trial: ReplayResult) -> dict[str, Note]:
    """By path, the modules whose effect went away with what was exchanged; with evidence."""
    after = {event.site: event.beside or event.found for event in trial.events}
    found: dict[str, Note] = {}
    for one in suspects:
        if one.site in after and _size(after[one.site]) < GONE * _size(one.effect):
            what = ", ".join(name for _, name, _ in one.settings) or Note("fault.weights")
            before, left = _size(one.effect), _size(after[one.site])
            found[one.reference_path] = Note("fault.by_exchange", what=what, before=before, after=left)
    return found


@contextmanager
def exchanged(suspects: Iterable[TriedDifference]) -> Iterator[None]:
    """The candidate with the reference's numbers in these modules."""
    tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
    settings: list[tuple[nn.Module, str, Any]] = []
    try:
        with torch.no_grad():
            for one in suspects:
                for mine, right in one.tensors:
                    tensors.append((mine, mine.detach().clone()))
                    mine.copy_(right)
                for module, name, value in one.settings:
                    settings.append((module, name, getattr(module, name)))
                    setattr(module, name, value)
        yield
    finally:
        with torch.no_grad():
            for mine, before in reversed(tensors):
                mine.copy_(before)
        for module, name, value in reversed(settings):
            setattr(module, name, value)


def _one_class(ours: nn.Module, theirs: nn.Module) -> bool:
    one, other = type(ours), type(theirs)
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _effect(event: Event, floors: Mapping[Site, Difference], least: float) -> float:
    """How many times the floor a value is away from what the reference makes in the same dtype."""
    found, floor = event.beside or event.found, floors.get(event.site, UNMEASURED)
    if found.equal or found.shape or found.mismatched or found.nonfinite_mismatch or found.absent:
        return 0.0
    return max(
        found.error / max(floor.error, least),
        found.row_error / max(floor.row_error, 2 * least),
        found.column_error / max(floor.column_error, 2 * least),
    )


def _error(mine: torch.Tensor, right: torch.Tensor) -> float:
    found = compare_tensors(right.detach().to(mine.dtype), mine.detach())
    return 0.0 if found is None else found.error


def _size(found: Difference) -> float:
    return max(found.error, found.row_error, found.column_error)


def _tensors(
    ours: nn.Module, theirs: nn.Module, path: str, called: Collection[str]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters and buffers that differ, of a module and of children that it reads without calling them."""
    right = dict(ours.named_modules())
    for name, module in theirs.named_modules():
        if name and ((f"{path}.{name}" if path else name) in called or name not in right):
            continue
        wanted = dict(_direct(right[name]))
        for own, tensor in _direct(module):
            other = wanted.get(own)
            alike = other is not None and _plain(tensor) and _plain(other) and tensor.shape == other.shape
            if other is not None and alike and not is_rounded(other, tensor):
                yield tensor, other


def _direct(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _plain(tensor: torch.Tensor) -> bool:
    known = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta and not tensor.is_inference()
    return known and tensor.layout == torch.strided and not tensor.is_quantized


def _settings_apart(ours: nn.Module, theirs: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Numbers with a point, as a scale or an epsilon is. A switch or a size may only choose another honest kernel."""
    right = vars(ours)
    for name, value in vars(theirs).items():
        wanted = right.get(name)
        numbers = {type(value), type(wanted)} in ({float}, {float, type(None)})  # a cap or a scale may be left out
        if numbers and name in right and value != wanted and not name.startswith("_"):
            yield theirs, name, wanted
