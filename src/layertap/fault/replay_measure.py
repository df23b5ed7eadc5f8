"""What all taps of one run share: each value is measured against the trace, and exchanged where that is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, takewhile
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from layertap.fault.call_stack import CallStack
from layertap.fault.inplace_writes import InplaceWrites
from layertap.fault.masks import Masks
from layertap.fault.model_runner import version
from layertap.fault.moved_values import MovedValues
from layertap.fault.reference_trace import Event, ModuleCall, ReferenceTrace, ReplayResult, call_of
from layertap.fault.tensor_cache import CachedTensor, TensorCache
from layertap.fault.tensor_swap import Nudge, as_given
from layertap.fault.value_layouts import masklike
from layertap.measure.dense import dense
from layertap.measure.pair.deferred import PendingPair, alike, begin, form_of, settle
from layertap.measure.pair.difference import Difference
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.fault.sharded_replay import RankParts


@dataclass(slots=True)
class Lowered:
    """What the reference computes in the candidate's dtype and with its quantised weights, from the right values."""

    slots: dict[Site, CachedTensor] = field(default_factory=dict)
    filling: bool = True
    """Whether the run that it is given to is that of the reference itself."""


class Begun(NamedTuple):
    """A measurement that may be under way."""

    site: Site
    caller: ModuleCall | None
    found: PendingPair | Difference
    rank: int


class MeasuredTensor(NamedTuple):
    """A measurement, and of which tensor in which version."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    found: PendingPair | Difference


@dataclass(slots=True, kw_only=True)
class ReplayOptions:
    """How a model is run against the trace."""

    force: bool
    """Whether what flows is replaced by the trace's; a run that is not forced is free."""
    nudge: Nudge | None = None
    """Changes what is entered."""
    keep: frozenset[Site] = frozenset()
    judge: bool = True
    """Whether values are measured; if not, they are only exchanged."""
    put_back: frozenset[tuple[str, str]] = frozenset()
    """In a free run, the paths and ends whose values are exchanged for the reference's all the same."""
    like: Sequence[Event] = ()
    """What a free run of the same model showed, if it repeats itself: up to the first value that is exchanged for
    another one, this run is that one over again, and nothing is measured or exchanged."""
    skip: frozenset[Site] = frozenset()
    """Places of which no result is used: they are not measured."""
    lowered: Lowered | None = None
    """The trace of the reference in the candidate's dtype: it is filled, or measured against as well."""
    seeded: bool = False
    """Whether random numbers are drawn from the same seed in each module."""
    parts: RankParts | None = None
    """Where each rank's values lie in the reference's, if the candidate runs on several."""
    whole: bool = False
    """Whether the model that runs has the whole values all the same: the reference."""
    ends: frozenset[str] | None = None
    """The only roles whose values are exchanged; None for all."""


@dataclass(slots=True, kw_only=True)
class Replay(ReplayOptions):
    """What all taps of one run share."""

    stack: CallStack
    replayed: ReplayResult
    trace: ReferenceTrace
    begun: list[Begun] = field(default_factory=list)
    beside: dict[int, PendingPair | Difference] = field(default_factory=dict)
    """By the number of the measurement, the same value against the lowered reference's."""
    masks: Masks = field(default_factory=Masks)
    writes: InplaceWrites = field(default_factory=InplaceWrites)
    misgiven: set[ModuleCall] = field(default_factory=set)
    """Calls that were given a value of another size."""
    flowing: set[Site] = field(default_factory=set)
    """Values through which a gradient can go back."""
    measured: dict[tuple[int, int], MeasuredTensor] = field(default_factory=dict)
    """By the identities of a slot and a tensor, what is measured between them: several modules are given one tensor."""
    moved: MovedValues = field(default_factory=MovedValues)
    callers: dict[ModuleCall, ModuleCall | None] = field(default_factory=dict)
    without_grad: set[ModuleCall] = field(default_factory=set)
    """Calls that were made where gradients are off."""

    @classmethod
    def of(cls, options: ReplayOptions, stack: CallStack, trace: ReferenceTrace) -> Replay:
        given = {one.name: getattr(options, one.name) for one in fields(options)}
        return cls(stack=stack, replayed=ReplayResult(), trace=trace, **given)

    def forces(self, key: Site) -> bool:
        """Whether what is here is exchanged for the reference's."""
        if self.ends is not None and key.role not in self.ends:
            return False
        return self.force or (key.path, key.role) in self.put_back

    def looks_at(self, key: Site) -> bool:
        """Whether the trace's value is needed there: to measure what is found, or to exchange it."""
        judges = self.judge and key not in self.skip
        return judges or self.parts is not None or self.forces(key) or key in self.keep

    def asked_for(self, modules: Mapping[str, nn.Module]) -> Iterator[CachedTensor]:
        """The values of the trace that a run with taps on these modules asks for."""
        again = {event.site for event in takewhile(lambda event: not self._parts_at(event), self.like)}
        asked = (
            slot
            for key, slot in self.trace.slots.items()
            if key.path in modules and key not in again and self.looks_at(key)
        )
        return chain(asked, () if self.lowered is None else self.lowered.slots.values())

    def measure(self, key: Site, caller: ModuleCall | None, found: torch.Tensor) -> torch.Tensor | None:
        """Measures one value; returns the right one, in the form that it has here, if it has a right one."""
        slot = self.trace.slots.get(key)
        if slot is None:
            self.replayed.unforced.append(key)
            return None
        if not self.looks_at(key):
            return None
        if self.force and self.trace.cache.slot_of(found) is slot:
            equal = alike(found.numel())  # it was put there by us
            self.begun += [Begun(key, caller, equal, rank) for rank in self.ranks]
            return found
        if self.like and self._as_before(key, caller):
            if self.forces(key):
                self.trace.cache.remember(found, slot)  # it is as right as a copy of what is there
            return None
        if self.misgiven and key.role == "output" and call_of(key) in self.misgiven:
            self.replayed.unforced.append(key)  # what it makes of other values is neither right nor wrong
            return None
        known = self._known(slot, found)
        if known is not None and not (self.forces(key) or self.lowered or self.parts or key in self.keep):
            self.begun.append(Begun(key, caller, known, 0))
            return None
        right = slot.get(found.device)
        if self.parts is not None:
            given = self.parts.measure(self, key, caller, right, found)
        else:
            given = self.against(key, caller, right, found, slot=slot)
        if self.force and given is not None and not self.nudges(key) and self.forces(key):
            self.trace.cache.remember(given, slot)
        return given

    def _parts_at(self, event: Event) -> bool:
        """Whether another value is put there than the one that was found in the free run."""
        return event.found.shape or (self.forces(event.site) and not event.found.equal)

    def _as_before(self, key: Site, caller: ModuleCall | None) -> bool:
        """Whether it is known from a run that was the same up to here; then its measurement is taken over."""
        place = len(self.begun)
        event = self.like[place] if place < len(self.like) else None
        if event is None or event.site != key or event.caller != caller or self._parts_at(event):
            self.like = ()  # from here on they part
            return False
        self.begun.append(Begun(key, caller, event.found, 0))
        return True

    def against(
        self,
        key: Site,
        caller: ModuleCall | None,
        right: torch.Tensor,
        found: torch.Tensor,
        rank: int = 0,
        slot: CachedTensor | None = None,
    ) -> torch.Tensor | None:
        """Measures what is compared with what is right there; returns that in the form that it has here, if it is to
        be exchanged. Of a `slot` it is known whether the same two were measured before."""
        mine, layout = found, None
        form = form_of(right, found)
        values = dense(found)
        if values is None or (form is None and right.ndim == found.ndim) or right.is_complex() != found.is_complex():
            form = None
        elif form is None or form.shape:
            held = dense(right)
            nested = found.is_nested or right.is_nested or held is None
            layout = None if nested or held is None else self.trace.layouts.between(held, found)
            if layout is not None:
                found = layout.here(found, right.shape)
            elif not nested and form is not None and self._sized_otherwise(key, right, found):
                self.begun.append(Begun(key, caller, form, rank))
            form = None
        begun = None if form is None and layout is None else self._begin_once(slot, right, found)
        if begun is None:
            self.replayed.unforced.append(key)
            return None
        self._lay_beside(key, found)
        self.begun.append(Begun(key, caller, begun, rank))
        if self.keep and key in self.keep:
            self.replayed.kept[key] = found.detach().clone()
            self.replayed.held[key, rank] = self.replayed.kept[key]
        if not self.forces(key):
            return None
        if layout is not None:
            right = layout.there(right, mine.shape)
        return self.as_given(right, mine, copied=not self.nudges(key))

    def nudges(self, key: Site) -> bool:
        """Whether what is handed on there is not the reference's own value, but a copy that is moved a little."""
        return self.nudge is not None and key.role == "input"

    def as_given(self, right: torch.Tensor, found: torch.Tensor, copied: bool = True) -> torch.Tensor | None:
        """The reference's value in the place of another."""
        return as_given(right, found, copied)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose values are measured in this process."""
        return (0,) if self.parts is None else self.parts.world.here

    def _lay_beside(self, key: Site, found: torch.Tensor) -> None:
        lowered = self.lowered
        if lowered is None or not self.judge or self.parts is not None or not found.is_floating_point():
            return  # sums over ranks go in another order: no two runs compute the same bits
        if lowered.filling:
            lowered.slots[key] = self.trace.cache.put(found)
        elif key in lowered.slots:
            slot = lowered.slots[key]
            begun = self._begin_once(slot, slot.get(found.device), found)
            if begun is not None:
                self.beside[len(self.begun)] = begun

    def _sized_otherwise(self, key: Site, right: torch.Tensor, found: torch.Tensor) -> bool:
        """Whether a module returns more or less than the reference's, although it was given as much."""
        if key.role == "input" and "." not in key.leaf and not masklike(right) and not masklike(found):
            self.misgiven.add(call_of(key))  # of a cache, or a mask that fits one, the size says nothing
        return key.role == "output" and right.numel() != found.numel() and call_of(key) not in self.misgiven

    def _begin_once(
        self, slot: CachedTensor | None, wanted: torch.Tensor, found: torch.Tensor
    ) -> PendingPair | Difference | None:
        """As `_begin`; where one tensor is handed on to several modules, all of them have one measurement."""
        known = None if slot is None else self._known(slot, found)
        if known is not None:
            return known
        begun = self._begin(wanted, found)
        if slot is not None and begun is not None and self.judge and not found.is_inference():
            self.measured[id(slot), id(found)] = MeasuredTensor(weakref.ref(found), version(found), begun)
        return begun

    def _known(self, slot: CachedTensor, found: torch.Tensor) -> PendingPair | Difference | None:
        known = self.measured.get((id(slot), id(found)))
        same = known is not None and known.tensor() is found and known.version == version(found)
        return known.found if known is not None and same else None

    def _begin(self, wanted: torch.Tensor, found: torch.Tensor) -> PendingPair | Difference | None:
        if not self.judge:
            return form_of(wanted, found)
        void = self.trace.void_in(found)
        if void is not None and wanted.shape == found.shape and found.is_floating_point():
            found = torch.where(void & torch.isfinite(found), wanted.to(found.dtype), found)
        return begin(wanted, found)

    def note_lost_gradients(self, modules: Mapping[str, nn.Module]) -> None:
        """Gradients that one side has and the other has not, where they get lost."""
        if not any(key.role == "param_grad" for key in self.trace.slots):
            return
        seen = {one.site for one in self.begun} | set(self.replayed.unforced)
        missing = [key for key in self.trace.slots if key.role in ("param_grad", "grad_input") and key not in seen]
        extra = [
            key
            for key in self.replayed.unforced
            if key.role == "param_grad" and (key.path, key.leaf) in self.trace.parameters
        ]
        owned = [(key, modules[key.path]._parameters.get(key.leaf)) for key in missing if key.path in modules]
        frozen = [key for key, own in owned if key.role == "param_grad" and own is not None and not own.requires_grad]
        reached = {call_of(key) for key in seen if key.role == "grad_output"}
        cut = [key for key, own in owned if call_of(key) in reached and (own is not None or key in self.flowing)]
        found = {key: call_of(key) for key in [*(frozen or cut), *extra]}
        for key, owner in (found | ({} if frozen else self._not_reached(seen, reached))).items():
            absent = Difference(relative_l2=1.0, absent=True, count=1)
            self.begun += [Begun(key, owner, absent, rank) for rank in self.ranks]

    def _not_reached(self, seen: set[Site], reached: set[ModuleCall]) -> dict[Site, ModuleCall]:
        """Calls to whose results no gradient comes back although one comes to their caller, and where it gets lost."""
        wanted: dict[ModuleCall, list[Site]] = {}
        for key in self.trace.slots:
            if key.role in ("grad_output", "grad_input"):
                wanted.setdefault(call_of(key), []).append(key)
        found: dict[Site, ModuleCall] = {}
        for call, caller in self.callers.items():
            arriving = [key for key in wanted.get(call, ()) if key.role == "grad_output"]
            above = caller in reached or not any(key.role == "grad_output" for key in wanted.get(caller or call, ()))
            if call in reached or not arriving or caller is None or not above:
                continue
            if call not in self.without_grad and self.flowing.isdisjoint(arriving):
                own = [key for key in wanted[call] if key.role == "grad_input" and key not in seen]
                found[own[0] if own else arriving[0]] = call
            elif not self._read_by(call) - reached:
                found[arriving[0]] = caller  # it is the caller that does not go on with what it was given
        return found

    def _read_by(self, call: ModuleCall) -> set[ModuleCall]:
        """The calls that are given what this one returns, beside it or around it."""
        slots = {id(slot) for key, slot in self.trace.slots.items() if call_of(key) == call and key.role == "output"}
        inside = f"{call[0]}."
        return {
            call_of(key)
            for key, slot in self.trace.slots.items()
            if key.role == "input" and id(slot) in slots and not key.path.startswith(inside)
        }

    @property
    def into(self) -> TensorCache | None:
        """Objects are written into only in a forced run: elsewhere a nudge would be added to a nudge."""
        return self.trace.cache if self.force else None

    def settled(self) -> list[tuple[int, Event]]:
        """All measurements, each with the rank that it is of."""
        begun = [*(one.found for one in self.begun), *self.beside.values()]
        waiting = {id(one): one for one in begun if isinstance(one, PendingPair)}
        read = dict(zip(waiting, settle([*waiting.values()]), strict=True))

        def result(one: PendingPair | Difference) -> Difference:
            return read[id(one)] if isinstance(one, PendingPair) else one

        found = [result(one.found) for one in self.begun]
        beside = {number: result(one) for number, one in self.beside.items()}
        events = [
            (one.rank, Event(site=one.site, caller=one.caller, found=found[number], beside=beside.get(number)))
            for number, one in enumerate(self.begun)
        ]
        return self._in_order(events)

    def _in_order(self, events: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
        """With gradients that never came where they were due: before what ran after them in the reference."""
        late = [one for one in events if one[1].found.absent]
        if not late:
            return events
        order = {key: number for number, key in enumerate(self.trace.slots)}
        late.sort(key=lambda one: order.get(one[1].site, len(order)))
        found: list[tuple[int, Event]] = []
        for one in events:
            if one[1].found.absent:
                continue
            while late and order.get(late[0][1].site, len(order)) < order.get(one[1].site, -1):
                found.append(late.pop(0))
            found.append(one)
        return [*found, *late]
