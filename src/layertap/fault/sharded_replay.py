"""A replay of a candidate whose tensors lie on several ranks: each rank is measured by its own part of what is right.

RankParts.learn(...)    one run of the candidate: how its plain tensors are cut, which of them are summands
RankParts.measure(...)  one value: the reference's cut as the rank holds it, measured, and given in its place
RankParts.merged(...)   what all ranks measured, equal on all of them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from layertap.fault.places import Choice, Place, RankLayout, choices, chosen, layout_of, placed
from layertap.fault.reference_trace import Event, ModuleCall, ReferenceTrace, ReplayResult, end_of
from layertap.fault.tensor_cache import CachedTensor
from layertap.fault.world import World
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import Difference
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.fault.replay_measure import Replay
    from layertap.fault.stated_parts import StatedParts

ARRIVING = ("input", "grad_output")
"""What is given to a module, forward and back."""
WRONG = 0.01
"""An error that is worth the question whether the ranks hold summands; in eight bits rounding alone is no larger."""
SUMMED = 0.1
"""Summands are what they are if the error of their sum is at most this part of the smallest of theirs."""


@dataclass(slots=True)
class _Seen:
    """What the learning run saw of one value on one rank."""

    whole: tuple[int, ...]
    part: tuple[int, ...]
    errors: dict[Choice, float]
    """By the way to cut; the empty choice is the whole."""
    place: Place | None = None
    """Of a DTensor."""
    error: float = 0.0
    """Of a DTensor's part."""


@dataclass(slots=True)
class RankParts:
    """Where each rank's values lie in the reference's."""

    world: World
    stated: StatedParts | None = None
    """What the mapping says, of which nothing is guessed."""
    learning: bool = False
    own_grads: dict[Site, CachedTensor] = field(default_factory=dict)
    """This rank's gradients of the reference, before they were averaged over ranks."""
    unclear: list[Site] = field(default_factory=list)
    """Values whose layout the numbers do not tell."""
    _places: dict[tuple[Site, int], Place] = field(default_factory=dict)
    _layouts: dict[Site, RankLayout] = field(default_factory=dict)
    _memo: dict[RankLayout, dict[int, Place | None]] = field(default_factory=dict)
    _seen: dict[tuple[Site, int], _Seen] = field(default_factory=dict)
    _held: dict[tuple[Site, int], CachedTensor] = field(default_factory=dict)
    _summands: dict[Site, dict[int, tuple[torch.Tensor, Place, ModuleCall | None]]] = field(default_factory=dict)

    def note_layout(self, key: Site, whole: tuple[int, ...] | None, tensor: torch.Tensor) -> None:
        """The gradient of a DTensor lies as the DTensor does."""
        layout = layout_of(tensor)
        if layout is not None and layout.shape == whole:
            self._layouts[key] = layout.reduced()

    def place(self, key: Site, rank: int) -> Place | None:
        """The part that a rank holds there; None where nothing says that it is less than the whole."""
        layout = self._layouts.get(key)
        if layout is None:
            return self._places.get((key, rank))
        if layout not in self._memo:
            self._memo[layout] = layout.places(self.world)
        known = self._memo[layout].get(rank)
        if known is not None:
            self._places[key, rank] = known
        return known

    def measure(
        self, task: Replay, key: Site, caller: ModuleCall | None, right: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor | None:
        """Measures what each rank that is here holds; returns what each is to hold, as one value."""
        if not task.whole:
            layout = layout_of(found)
            if layout is not None and layout.shape == tuple(right.shape):  # or the reference is on the same ranks
                self._layouts[key] = layout
        if self.stated is not None:
            self._take_stated(self.stated, key, tuple(right.shape))
        given: dict[int, torch.Tensor] = {}
        places = {rank: self.place(key, rank) for rank in self.world.here}
        with self.world.aside():
            wanted = self.world.parts(right)
            for rank, mine in self.world.parts(found).items():
                place = places[rank]
                if self.learning and not task.whole:
                    place = self._learned(task, key, rank, wanted[rank], mine, place)
                value = self._measure_one(task, key, caller, wanted[rank], mine, place, rank)
                if value is not None:
                    given[rank] = value
        return self.world.joined(given, found) if len(given) == len(self.world.here) else None

    def _take_stated(self, stated: StatedParts, key: Site, whole: tuple[int, ...]) -> None:
        for rank in self.world.here:
            place = stated.place(key, rank, whole)
            if place is not None:
                self._places[key, rank] = place

    def _measure_one(
        self,
        task: Replay,
        key: Site,
        caller: ModuleCall | None,
        right: torch.Tensor,
        mine: torch.Tensor,
        place: Place | None,
        rank: int,
    ) -> torch.Tensor | None:
        if place is None or len(place.spans) != right.ndim or place.whole:
            return task.against(key, caller, right, mine, rank)
        part = place.cut(right)
        if task.whole:  # the reference holds all of it; its rounding is looked at where the candidate's is
            whole = mine.shape == right.shape
            task.against(key, caller, part if whole else right, place.cut(mine) if whole else mine, rank)
            return task.as_given(right, mine)
        if not place.reduction:
            return task.against(key, caller, part, mine, rank)
        if task.judge and mine.shape == part.shape and mine.is_floating_point():
            self._summands.setdefault(key, {})[rank] = (mine.detach().clone(), place, caller)
        elif task.judge:
            task.replayed.unforced.append(key)
            return None
        return task.as_given(place.summand(part, rank), mine)

    def add_summands(self, task: Replay) -> None:
        """Adds up what the ranks held as summands, and measures the sums."""
        if task.whole:
            return
        mine = {rank: [key for key, held in self._summands.items() if rank in held] for rank in self.world.here}
        keys = dict.fromkeys(key for held in self.world.gather(mine).values() for key in held)
        for key in keys:
            held = self._summands.get(key, {})
            sent = {rank: held[rank][0].cpu() if rank in held else None for rank in self.world.here}
            parts = self.world.gather(sent)
            with self.world.aside():
                for rank, (value, place, caller) in held.items():
                    own = [part for other in place.group if (part := parts[other]) is not None]
                    if len(own) < len(place.group) or any(part.shape != value.shape for part in own):
                        task.replayed.unforced.append(key)
                        continue
                    total = torch.stack([part.double() for part in own]).sum(0)
                    total = total / len(own) if place.reduction == "avg" else total
                    right = place.cut(task.trace.slots[key].get())
                    task.against(key, caller, right, total.to(right.dtype), rank)
        self._summands.clear()

    def average(self, trace: ReferenceTrace) -> None:
        """Gradients of parameters are averaged over ranks that were given other data, as training in parallel does."""
        grads = [key for key in trace.slots if key.role == "param_grad"]
        marks = self.world.of_all([float(trace.slots[key].get().double().sum()) for key in grads])
        if all(one == marks[0] for one in marks) or len({len(one) for one in marks}) > 1:
            return
        for key in grads:
            own = trace.slots[key].get()
            self.own_grads[key] = trace.slots[key]
            trace.slots[key] = trace.cache.put(self.mean(own))

    def mean(self, own: torch.Tensor) -> torch.Tensor:
        """The mean over all ranks."""
        if len(self.world.here) > 1:
            return own
        found = self.world.of_all(own.cpu())
        return torch.stack([one.double() for one in found]).mean(0).to(own)

    def _learned(
        self, task: Replay, key: Site, rank: int, right: torch.Tensor, mine: torch.Tensor, place: Place | None
    ) -> Place | None:
        """Notes what a value looks like; returns the part that it most likely is, to go on with."""
        whole, part = tuple(right.shape), tuple(mine.shape)
        seen = self._seen[key, rank] = _Seen(whole=whole, part=part, errors={}, place=place)
        if place is not None:
            if not place.reduction and place.shape(whole) == part:
                seen.error = _apart(place.cut(right), mine)
            elif self.stated is not None and place.shape(whole) != part:
                self.stated.note_shape(key, rank, place.shape(whole), part)
            return place
        if whole == part and not mine.is_floating_point():
            return None
        if whole == part:
            seen.errors[()] = _apart(right, mine)
            if seen.errors[()] > WRONG:
                self._held[key, rank] = task.trace.cache.put(mine)
            return None
        for choice in choices(self.world, rank, whole, part):
            other = placed(self.world, rank, whole, choice)
            if other is not None:
                seen.errors[choice] = _apart(other.cut(right), mine)
        if not seen.errors:
            return None
        best = min(seen.errors, key=lambda choice: seen.errors[choice])
        return placed(self.world, rank, whole, best)

    def decide(self, trace: ReferenceTrace) -> None:
        """After the learning run: the layout of every value, the same on all ranks."""
        if self.stated is not None:
            self.stated.settle()
        mine: dict[int, dict[Site, _Seen]] = {rank: {} for rank in self.world.here}
        for (key, rank), seen in self._seen.items():
            mine[rank][key] = seen
        gathered = self.world.gather(mine)
        order = {key: number for number, key in enumerate(trace.slots)}
        keys = sorted({key for seen in gathered.values() for key in seen}, key=lambda key: order.get(key, len(order)))
        votes: Counter[Choice] = Counter()
        unclear: list[Site] = []
        for key in keys:
            errors = {
                rank: seen[key].errors for rank, seen in gathered.items() if key in seen and seen[key].place is None
            }
            cut = {rank: found for rank, found in errors.items() if found and () not in found}
            if not cut:
                continue
            found = chosen(cut)
            if found is None:
                self.unclear.append(key)
            elif found[1]:
                votes[found[0]] += 1
                self._take(key, cut, gathered, found[0])
            else:
                unclear.append(key)
        for key in unclear:
            cut = {rank: seen[key].errors for rank, seen in gathered.items() if key in seen and seen[key].errors}
            known = [choice for choice, _ in votes.most_common() if all(choice in found for found in cut.values())]
            found = chosen(cut, known[0] if known else None)
            if found is not None:
                self._take(key, cut, gathered, found[0])
        self._decide_summands(keys, gathered, trace)
        self._seen.clear()
        self._held.clear()

    def _take(
        self, key: Site, cut: Mapping[int, Any], gathered: Mapping[int, dict[Site, _Seen]], choice: Choice
    ) -> None:
        for rank in cut:
            if rank in self.world.here:
                place = placed(self.world, rank, gathered[rank][key].whole, choice)
                if place is not None:
                    self._places[key, rank] = place

    def _decide_summands(
        self, keys: list[Site], gathered: Mapping[int, dict[Site, _Seen]], trace: ReferenceTrace
    ) -> None:
        """Values that are wrong on every rank, while their sum is right, and what is made of them is right too."""
        wrong = [
            key
            for key in keys
            if all(key in seen and seen[key].errors.get((), 0.0) > WRONG for seen in gathered.values())
            and key.role not in ("param_grad", "after")
        ]
        groups: dict[Site, dict[int, tuple[int, ...]]] = {}
        for key in wrong:
            parts = self.world.gather({rank: self._held[key, rank].get() for rank in self.world.here})
            right = self.world.gather({rank: trace.slots[key].get() for rank in self.world.here})
            found = self.summed(parts, right)
            if found is not None:
                groups[key] = found
        for key, by_rank in groups.items():
            if _used(key, gathered, groups):
                for rank in self.world.here:
                    whole: tuple[None, ...] = (None,) * len(gathered[rank][key].whole)
                    self._places[key, rank] = Place(spans=whole, group=by_rank[rank], reduction="sum")

    def summed(
        self, parts: Mapping[int, torch.Tensor], right: Mapping[int, torch.Tensor]
    ) -> dict[int, tuple[int, ...]] | None:
        """The ranks whose values add up to what is right, for each rank; None where no sum is right."""
        with self.world.aside():
            least = min(_apart(right[rank], part) for rank, part in parts.items())
            for dim in self.world.dims:
                fibers = {rank: self.world.fiber(dim, rank) for rank in parts}
                if any(len(fiber) < 2 for fiber in fibers.values()):
                    continue
                sums = (
                    _apart(right[rank], torch.stack([parts[other].double() for other in fiber]).sum(0))
                    for rank, fiber in fibers.items()
                )
                if least > WRONG and max(sums) <= SUMMED * least:
                    return fibers
        return None

    def merged(self, result: ReplayResult, trace: ReferenceTrace, own: list[tuple[int, Event]]) -> ReplayResult:
        """What all ranks saw, the same on each of them."""
        mine = {
            rank: (
                [event for at, event in own if at == rank],
                result.unforced,
                dict(result.calls),
                dict(result.masks),
                dict(result.casts),
            )
            for rank in self.world.here
        }
        order = {key: number for number, key in enumerate(trace.slots)}
        events: dict[Site, dict[int, Event]] = {}
        calls: Counter[str] = Counter()
        unforced: dict[Site, None] = {}
        for rank, (seen, left, called, masks, casts) in sorted(self.world.gather(mine).items()):
            for event in seen:
                known = events.setdefault(event.site, {}).get(rank)
                events[event.site][rank] = event if known is None or known.found.error < event.found.error else known
            unforced |= dict.fromkeys(left)
            for path, count in called.items():
                calls[path] = max(calls[path], count)
            result.masks |= masks
            result.casts |= casts
        result.events = [
            _one(found) for _, found in sorted(events.items(), key=lambda item: order.get(item[0], len(order)))
        ]
        result.unforced = [key for key in unforced if key not in events]
        result.calls = calls
        return result


def _used(key: Site, gathered: Mapping[int, dict[Site, _Seen]], groups: Mapping[Site, Any]) -> bool:
    """Whether somebody adds the summands up: what the module above makes of them is right."""
    path, call, end = key.path, key.call, key.role
    same = {"input": "output", "output": "output", "grad_input": "grad_input", "grad_output": "grad_input"}[end]
    if end in ARRIVING:  # the module itself adds up what arrives, so that it must not be given the whole
        made = [one for one in next(iter(gathered.values())) if end_of(one) == (path, call, same)]
        return any(_worst(one, gathered) > WRONG and one not in groups for one in made)
    while path:
        path = path.rpartition(".")[0]
        made = [one for one in next(iter(gathered.values())) if (one.path, one.role) == (path, same)]
        if made and not all(one in groups for one in made):
            return all(_worst(one, gathered) <= WRONG for one in made if one not in groups)
    return False


def _worst(key: Site, gathered: Mapping[int, dict[Site, _Seen]]) -> float:
    return max(min(seen[key].errors.values(), default=seen[key].error) for seen in gathered.values() if key in seen)


def _one(found: Mapping[int, Event]) -> Event:
    """The measurements of all ranks as one: the worst of each number, and who measured what."""
    events = [found[rank] for rank in sorted(found)]
    first = next((event for event in events if event.caller is not None), events[0])
    beside = [event.beside for event in events if event.beside is not None]
    errors = tuple((rank, _size(found[rank].found)) for rank in sorted(found))
    return replace(
        first,
        found=_worst_of([event.found for event in events]),
        beside=_worst_of(beside) if beside else None,
        by_rank=errors,
    )


def _worst_of(found: list[Difference]) -> Difference:
    worst = max(found, key=lambda one: (one.absent, one.shape, one.nonfinite_mismatch, one.mismatched, one.error))
    for one in found:
        worst = worst.worst(one)
    counts = [one.count for one in found if one.count]
    return replace(
        worst,
        equal=all(one.equal for one in found),
        absent=any(one.absent for one in found),
        truth=any(one.truth for one in found),
        count=min(counts, default=0),
    )


def _size(found: Difference) -> float:
    return max(found.error, found.mismatched, float(found.nonfinite_mismatch > 0), float(found.absent))


def _apart(right: torch.Tensor, found: torch.Tensor) -> float:
    measured = compare_tensors(right.to(found.device), found.to(right.dtype))
    return 1.0 if measured is None else _size(measured)
