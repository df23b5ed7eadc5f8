"""The cause of an error in a candidate that runs on several ranks: what one rank holds, and how ranks are combined.

Every rank looks at what it holds, then all of them share what they saw: the explanation is the same on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from layertap.fault.cause import Clues, explain
from layertap.fault.local import unwrapped
from layertap.fault.module_differences import Explanation, how_apart, own_tensors, settings_of
from layertap.fault.places import Place, choices, chosen, layout_of, placed
from layertap.fault.reduction import Combined, explain_combination, near
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.result import ModuleRow
from layertap.fault.sharded_replay import RankParts
from layertap.fault.world import World
from layertap.measure.pair.deferred import compare_tensors
from layertap.result import Note
from layertap.site import Site

LEADS = 3.0
"""A rank stands out where its error is this many times the median of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a module is wrong, and on which ranks."""

    cause: str
    evidence: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    """Those at fault; empty where it is all of them."""


def explain_ranks(
    row: ModuleRow,
    clues: Clues,
    modules: tuple[nn.Module | None, nn.Module | None],
    parts: RankParts,
    runs: tuple[ReplayResult, ReplayResult],
) -> Explained:
    """`modules` are the reference's and the candidate's; `runs` a forced run, and one before it with other inputs."""
    world, trace = parts.world, clues.trace
    lost = next((absent for absent in clues.absent if absent.lost), None)
    if lost is not None:
        return Explained(cause=lost.cause, evidence=(lost.text,))
    off = ranks_off(row)
    explanation = _weights(parts, row, modules, trace)
    if explanation is None and not row.found.absent and not row.found.shape:
        combined = _combined(row.site, parts, trace, modules, runs)
        explanation = None if combined is None else explain_combination(combined, off)
    if explanation is None:
        explanation = _settings(world, modules)
    if explanation is None:
        explanation = _form(row, clues, parts, runs[0])
    cause, evidence, ranks = explanation
    ranks = () if len(ranks) == world.size else ranks
    where = (Note("cause.on_ranks", ranks=_listed(ranks or off), count=world.size),) if ranks or off else ()
    return Explained(cause=cause, evidence=(*evidence, *where), ranks=ranks or off)


def ranks_off(row: ModuleRow) -> tuple[int, ...]:
    """The ranks whose part carries the error, where it is not all of them."""
    errors = sorted(error for _, error in row.by_rank)
    if len(errors) < 2:
        return ()
    usual = errors[(len(errors) - 1) // 2]
    found = tuple(rank for rank, error in row.by_rank if error > LEADS * max(usual, row.floor))
    return () if len(found) == len(errors) else found


Told = tuple[str, tuple[str, ...], tuple[int, ...]]


def _weights(
    parts: RankParts, row: ModuleRow, modules: tuple[nn.Module | None, nn.Module | None], trace: ReferenceTrace
) -> Told | None:
    """The first of the module's tensors that is another than the reference's, on any rank."""
    world = parts.world
    ours, theirs = modules
    own = {} if ours is None or theirs is None else dict(_own(ours, theirs, row.page, trace))
    places = _places_of(parts, own, row.page)
    seen: dict[int, tuple[str, str, Note] | None] = dict.fromkeys(world.here)
    with world.aside():
        for name, (wanted, tensor) in own.items():
            for rank, mine in world.parts(unwrapped(tensor).detach()).items():
                if seen[rank] is None:
                    found = _tensor_apart(name, wanted.detach(), mine, places.get(name, {}), rank)
                    seen[rank] = found
    found_on = {rank: one for rank, one in sorted(world.gather(seen).items()) if one is not None}
    if not found_on:
        return None
    first = next(iter(found_on.values()))
    ranks = tuple(rank for rank, one in found_on.items() if one[0] == first[0])
    causes = [found_on[rank][1] for rank in ranks]
    cause = "shard" if "shard" in causes else "weights"
    notes = [found_on[rank][2] for rank in ranks if found_on[rank][1] == cause]
    return cause, tuple(dict.fromkeys(notes[:4])), ranks


def _own(
    ours: nn.Module, theirs: nn.Module, page: str, trace: ReferenceTrace
) -> Iterator[tuple[str, tuple[torch.Tensor, torch.Tensor]]]:
    right = dict(own_tensors(ours, page, set(trace.calls)))
    for name, tensor in own_tensors(theirs, page, set(trace.calls)):
        if name in right and not tensor.is_meta and right[name].ndim == tensor.ndim:
            if hasattr(right[name], "placements"):  # the reference is on the same ranks
                yield name, (unwrapped(right[name]), unwrapped(tensor).view_as(unwrapped(tensor)))
            else:
                yield name, (right[name], tensor)


def _places_of(
    parts: RankParts, own: Mapping[str, tuple[torch.Tensor, torch.Tensor]], page: str
) -> dict[str, dict[int, Place]]:
    """Which part of each tensor each rank is to hold; all ranks decide together where nothing states it."""
    world = parts.world
    found: dict[str, dict[int, Place]] = {}
    mine: dict[int, dict[str, tuple[Place | None, dict[object, float]]]] = {rank: {} for rank in world.here}
    for name, (wanted, tensor) in own.items():
        layout = layout_of(tensor)
        known = layout.places(world) if layout is not None else _stated(parts, name, tuple(wanted.shape), page)
        with world.aside():
            for rank, part in world.parts(unwrapped(tensor).detach()).items():
                errors: dict[object, float] = {}
                if layout is None and not known and part.shape != wanted.shape:
                    for choice in choices(world, rank, tuple(wanted.shape), tuple(part.shape)):
                        place = placed(world, rank, tuple(wanted.shape), choice)
                        if place is not None:
                            errors[choice] = _error(place.cut(wanted.detach()), part)
                mine[rank][name] = known.get(rank), errors
    gathered = world.gather(mine)
    for name, (wanted, _) in own.items():
        seen = {rank: one[name] for rank, one in gathered.items() if name in one}
        if any(errors for _, errors in seen.values()):
            best = chosen({rank: errors for rank, (_, errors) in seen.items()})  # type: ignore[misc]
            places = {} if best is None else {r: placed(world, r, tuple(wanted.shape), best[0]) for r in seen}
        else:
            places = {rank: place for rank, (place, _) in seen.items()}
        found[name] = {rank: place for rank, place in places.items() if place is not None}
    return found


def _stated(parts: RankParts, name: str, whole: tuple[int, ...], page: str) -> dict[int, Place | None]:
    """What the mapping says of a parameter."""
    if parts.stated is None:
        return {}
    key = Site(path=page, role="param", leaf=name)
    found = {rank: parts.stated.place(key, rank, whole) for rank in parts.world.here}
    return {} if None in found.values() else found


def _tensor_apart(
    name: str, wanted: torch.Tensor, mine: torch.Tensor, places: Mapping[int, Place], rank: int
) -> tuple[str, str, Note] | None:
    place = places.get(rank)
    right = wanted if place is None or place.reduction else place.cut(wanted)
    if right.shape != mine.shape:
        note = Note("cause.weight_shape", name=name, shape=tuple(mine.shape), shape2=tuple(right.shape))
        return name, "weights", note
    found = compare_tensors(right.to(mine.dtype), mine)
    if found is None or found.equal:
        return None
    for other, its in places.items():
        if other != rank and place is not None and its.spans != place.spans and not its.reduction:
            held = its.cut(wanted)
            if held.shape == mine.shape and held.any() and near(held, mine):
                return name, "shard", Note("cause.rank_part", name=name, rank=rank, other=other)
    return name, "weights", Note("cause.weight", name=name, how=how_apart(right, mine, found.error))


def _combined(
    key: Site,
    parts: RankParts,
    trace: ReferenceTrace,
    modules: tuple[nn.Module | None, nn.Module | None],
    runs: tuple[ReplayResult, ReplayResult],
) -> Combined | None:
    """What all ranks hold at one place; None where they do not all contain a tensor of the same kind."""
    world = parts.world
    slot = trace.slots.get(key)
    here = {
        rank: (
            parts.place(key, rank),
            _cpu(runs[0].held.get((key, rank))),
            _cpu(runs[1].held.get((key, rank))),
            None if slot is None else _cpu(slot.get()),
            None if key not in parts.own_grads else _cpu(parts.own_grads[key].get()),
        )
        for rank in world.here
    }
    seen = world.gather(here)
    if any(found is None or right is None or not found.is_floating_point() for _, found, _, right, _ in seen.values()):
        return None
    summands = _summands(parts, key, trace, modules)
    return Combined(
        world=world,
        places={rank: one[0] for rank, one in seen.items()},
        found={rank: one[1] for rank, one in seen.items() if one[1] is not None},
        before={rank: one[2] for rank, one in seen.items() if one[2] is not None},
        right={rank: one[3] for rank, one in seen.items() if one[3] is not None},
        own={rank: one[4] for rank, one in seen.items() if one[4] is not None},
        summands=summands,
        returned=key.role == "output",
        added=_added(modules[0]) if key.role == "output" else {},
    )


def _summands(
    parts: RankParts, key: Site, trace: ReferenceTrace, modules: tuple[nn.Module | None, nn.Module | None]
) -> dict[int, torch.Tensor]:
    """What each rank adds to the output of a linear layer whose input features are spread."""
    world = parts.world
    ours, theirs = modules
    given = [value for value in trace.at(key.path, key.call, "input").values() if value.is_floating_point()]
    mine: dict[int, torch.Tensor | None] = dict.fromkeys(world.here)
    weight = getattr(theirs, "weight", None)
    if key.role == "output" and isinstance(ours, nn.Linear) and isinstance(weight, torch.Tensor) and len(given) == 1:
        places = _places_of(parts, {"weight": (ours.weight, weight)}, key.path).get("weight", {})
        with world.aside(), torch.no_grad():
            for rank in world.here:
                spans = places[rank].spans if rank in places else ()
                if len(spans) == 2 and spans[0] is None and spans[1] is not None:
                    cut = Place(spans=(*[None] * (given[0].ndim - 1), spans[1]))
                    weight = places[rank].cut(ours.weight)
                    mine[rank] = nn.functional.linear(cut.cut(given[0]).to(weight), weight).cpu()
    found = world.gather(mine)
    return {rank: one for rank, one in found.items() if one is not None}


def _added(module: nn.Module | None) -> dict[str, torch.Tensor]:
    """The vectors that a module may add to what it returns."""
    if module is None:
        return {}
    return {name: tensor.detach().cpu() for name, tensor in module.named_parameters(recurse=False) if tensor.ndim == 1}


def _settings(world: World, modules: tuple[nn.Module | None, nn.Module | None]) -> Told | None:
    """A setting that differs; whole numbers are left out, since a rank has fewer heads than the whole."""
    ours, theirs = modules
    seen: Note | None = None
    if ours is not None and theirs is not None:
        right = dict(settings_of(ours))
        for name, value in settings_of(theirs):
            count = isinstance(value, int) and not isinstance(value, bool)
            if seen is None and not count and not isinstance(value, tuple) and name in right and right[name] != value:
                seen = Note("cause.setting", name=name, value=value, right=right[name])
    found = {rank: one for rank, one in world.gather(dict.fromkeys(world.here, seen)).items() if one is not None}
    if not found:
        return None
    return "config", (next(iter(found.values())),), tuple(found)


def _form(row: ModuleRow, clues: Clues, parts: RankParts, kept: ReplayResult) -> Told:
    """What the error of the worst rank looks like."""
    world, key = parts.world, row.site
    worst = max(row.by_rank, key=lambda pair: pair[1], default=(world.here[0], 0.0))[0]
    mine: dict[int, Explanation | None] = dict.fromkeys(world.here)
    if worst in world.here:
        with world.aside():
            place, slot, found = parts.place(key, worst), clues.trace.slots.get(key), kept.held.get((key, worst))
            right = None if slot is None else slot.get()
            if right is not None and place is not None and not place.reduction and len(place.spans) == right.ndim:
                right = place.cut(right)
            alike = right is not None and found is not None and right.shape == found.shape
            clues = Clues(
                row=row,
                trace=clues.trace,
                right=right if alike else None,
                found=found if alike else None,
                departure=None,
                absent=clues.absent,
            )
            mine[worst] = explain(clues, None, None)
    explanation = next((one for one in world.gather(mine).values() if one is not None), ("unknown", ()))
    return explanation[0], explanation[1], ()


def _error(right: torch.Tensor, found: torch.Tensor) -> float:
    measured = compare_tensors(right.to(found.dtype), found)
    return 1.0 if measured is None else max(measured.error, measured.mismatched)


def _cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().cpu()


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
