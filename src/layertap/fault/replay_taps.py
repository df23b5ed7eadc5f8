"""The taps of a replay: one writes the trace, one measures a module against it and exchanges what it is told to."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors
from layertap.fault.contrast import Contrast, Pending, begin, form_of, settle
from layertap.fault.inplace_writes import InplaceWrites
from layertap.fault.masks import Masks
from layertap.fault.model_runner import autocast_now, seed, version
from layertap.fault.reference_trace import Event, Key, ModuleCall, ReferenceTrace, ReplayResult
from layertap.fault.swapping import Nudge, Swaps, as_given, flows, gate, swap
from layertap.fault.tensor_cache import CachedTensor, TensorCache
from layertap.fault.value_layouts import masklike, plain

if TYPE_CHECKING:
    from layertap.fault.sharded_replay import Parts


class CallStack:
    """Who is inside whom, and how often each was called."""

    def __init__(self, seeded: bool) -> None:
        self.inside: list[ModuleCall] = []
        self.calls: Counter[str] = Counter()
        self.measuring = False
        """Whether what is computed now is ours, and not the model's."""
        self._again: Counter[str] = Counter()
        self._seeded = seeded

    def enter(self, page: str) -> tuple[int, bool]:
        """Which call this is, and whether it is one made again on the way back, by activation checkpointing."""
        again = torch._C._current_graph_task_id() != -1
        counter = self._again if again else self.calls
        call = counter[page]
        counter[page] += 1
        self.inside.append((page, call))
        self.reseed(page, call, 0)
        return call, again

    def leave(self, page: str, call: int) -> None:
        self.inside.pop()
        self.reseed(page, call, 1)

    def reseed(self, page: str, call: int, end: int) -> None:
        """Where a model draws random numbers, both sides begin each module, and go on after it, with the same seed."""
        if self._seeded:
            seed(zlib.crc32(f"{page}@{call}/{end}".encode()))

    @property
    def caller(self) -> ModuleCall | None:
        return self.inside[-2] if len(self.inside) > 1 else None


_BACK = {"entry": "grad_input", "exit": "grad_output"}


class RecordTap:
    def __init__(self, stack: CallStack, trace: ReferenceTrace, page: str, names: tuple[str, ...]) -> None:
        self._stack, self._trace, self._page = stack, trace, page
        self._names = names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        call, again = self._stack.enter(self._page)
        if not again:
            self._trace.calls[self._page] += 1
            self._trace.casts[self._page] = autocast_now()
        swaps = self._write(call, again, "entry", _arriving(self._names, args, kwargs))
        args, kwargs = swap((args, kwargs), swaps)
        return args, kwargs, (call, again, args, kwargs)

    def leave(self, token: tuple[int, bool, taps.Args, taps.Kwargs], output: Any) -> Any:
        call, again, args, kwargs = token
        self._stack.leave(self._page, call)
        self._write(call, again, "after", _in_objects(self._names, args, kwargs))
        return swap(output, self._write(call, again, "exit", leaves(output)))

    def _write(self, call: int, again: bool, end: str, found: Iterator[Leaf]) -> Swaps:
        swaps: Swaps = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            if not again:
                self._trace.slots[self._page, call, end, leaf.path] = self._trace.cache.put(leaf.tensor)
            if flows(leaf.tensor) and end in _BACK:
                swaps[id(leaf.tensor)] = leaf.tensor, gate(leaf.tensor, None, self._back(call, end, leaf.path))
        return swaps

    def _back(self, call: int, end: str, leaf: str) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            self._trace.slots[self._page, call, _BACK[end], leaf] = self._trace.cache.put(grad)
            return grad

        return back


@dataclass(slots=True)
class Lowered:
    """What the reference computes in the candidate's dtype and with its quantised weights, from the right values."""

    slots: dict[Key, CachedTensor] = field(default_factory=dict)
    filling: bool = True
    """Whether the run that it is given to is that of the reference itself."""


class Begun(NamedTuple):
    """A measurement that may be under way."""

    key: Key
    caller: ModuleCall | None
    found: Pending | Contrast
    rank: int


@dataclass(slots=True)
class Replay:
    """What all taps of one run share."""

    stack: CallStack
    replayed: ReplayResult
    trace: ReferenceTrace
    force: bool
    nudge: Nudge | None
    keep: frozenset[Key]
    judge: bool = True
    """Whether values are measured; if not, they are only exchanged."""
    put_back: frozenset[tuple[str, str]] = frozenset()
    """In a free run, the pages and ends whose values are exchanged for the reference's all the same."""
    lowered: Lowered | None = None
    begun: list[Begun] = field(default_factory=list)
    beside: dict[int, Pending | Contrast] = field(default_factory=dict)
    """By the number of the measurement, the same value against the lowered reference's."""
    masks: Masks = field(default_factory=Masks)
    writes: InplaceWrites = field(default_factory=InplaceWrites)
    misgiven: set[ModuleCall] = field(default_factory=set)
    """Calls that were given a value of another size."""
    flowing: set[Key] = field(default_factory=set)
    """Values through which a gradient can go back."""
    parts: Parts | None = None
    """Where each rank's values lie in the reference's, if the candidate runs on several."""
    whole: bool = False
    """Whether the model that runs has the whole values all the same: the reference."""
    ends: frozenset[str] | None = None
    """The only ends whose values are exchanged; None for all."""

    def forces(self, key: Key) -> bool:
        """Whether what is here is exchanged for the reference's."""
        if self.ends is not None and key[2] not in self.ends:
            return False
        return self.force or (key[0], key[2]) in self.put_back

    def measure(self, key: Key, caller: ModuleCall | None, found: torch.Tensor) -> torch.Tensor | None:
        """Measures one value; returns the right one, in the form that it has here, if it has a right one."""
        slot = self.trace.slots.get(key)
        if slot is None:
            self.replayed.unforced.append(key)
            return None
        if self.force and self.trace.cache.slot_of(found) is slot:
            self._put_by_us(key, caller, found)
            return found
        if key[2] == "exit" and key[:2] in self.misgiven:
            self.replayed.unforced.append(key)  # what it makes of other values is neither right nor wrong
            return None
        right = slot.get(found.device)
        if self.parts is not None:
            given = self.parts.measure(self, key, caller, right, found)
        else:
            given = self.against(key, caller, right, found)
        if self.force and self.forces(key) and given is not None:
            self.trace.cache.remember(given, slot)
        return given

    def against(
        self, key: Key, caller: ModuleCall | None, right: torch.Tensor, found: torch.Tensor, rank: int = 0
    ) -> torch.Tensor | None:
        """Measures what is held against what is right there; returns that in the form that it has here."""
        mine, layout = found, None
        form = form_of(right, found)
        values = plain(found)
        if values is None or (form is None and right.ndim == found.ndim) or right.is_complex() != found.is_complex():
            form = None
        elif form is None or form.shape:
            dense = plain(right)
            nested = found.is_nested or right.is_nested or dense is None
            layout = None if nested or dense is None else self.trace.layouts.between(dense, found)
            if layout is not None:
                found = layout.here(found, right.shape)
            elif not nested and form is not None and self._sized_otherwise(key, right, found):
                self.begun.append(Begun(key, caller, form, rank))
            form = None
        begun = None if form is None and layout is None else self._begin(right, found)
        if begun is None:
            self.replayed.unforced.append(key)
            return None
        self._lay_beside(key, found)
        self.begun.append(Begun(key, caller, begun, rank))
        if key in self.keep:
            self.replayed.kept[key] = found.detach().clone()
            self.replayed.held[key, rank] = self.replayed.kept[key]
        if layout is not None:
            right = layout.there(right, mine.shape)
        return as_given(right, mine)

    def as_given(self, right: torch.Tensor, found: torch.Tensor) -> torch.Tensor | None:
        """The reference's value in the place of another."""
        return as_given(right, found)

    def _put_by_us(self, key: Key, caller: ModuleCall | None, found: torch.Tensor) -> None:
        exact = Contrast(exact=True, count=found.numel())
        self.begun += [Begun(key, caller, exact, rank) for rank in self.ranks]

    def _lay_beside(self, key: Key, found: torch.Tensor) -> None:
        lowered = self.lowered
        if lowered is None or not self.judge or self.parts is not None or not found.is_floating_point():
            return  # sums over ranks go in another order: nobody computes the same bits
        if lowered.filling:
            lowered.slots[key] = self.trace.cache.put(found)
        elif key in lowered.slots:
            begun = self._begin(lowered.slots[key].get(found.device), found)
            if begun is not None:
                self.beside[len(self.begun)] = begun

    def _sized_otherwise(self, key: Key, right: torch.Tensor, found: torch.Tensor) -> bool:
        """Whether a module returns more or less than the reference's, although it was given as much."""
        if key[2] == "entry" and "." not in key[3] and not masklike(right) and not masklike(found):
            self.misgiven.add(key[:2])  # of a cache, or a mask that fits one, the size says nothing
        return key[2] == "exit" and right.numel() != found.numel() and key[:2] not in self.misgiven

    def _begin(self, wanted: torch.Tensor, found: torch.Tensor) -> Pending | Contrast | None:
        if not self.judge:
            return form_of(wanted, found)
        void = self.trace.void_in(found)
        if void is not None and wanted.shape == found.shape and found.is_floating_point():
            found = torch.where(void & torch.isfinite(found), wanted.to(found.dtype), found)
        return begin(wanted, found)

    def note_lost_gradients(self, modules: Mapping[str, nn.Module]) -> None:
        """Gradients that one side has and the other has not, where they get lost."""
        seen = {one.key for one in self.begun} | set(self.replayed.unforced)
        missing = [key for key in self.trace.slots if key[2] in ("param_grad", "grad_input") and key not in seen]
        extra = [
            key
            for key in self.replayed.unforced
            if key[2] == "param_grad" and (key[0], key[3]) in self.trace.parameters
        ]
        if not any(key[2] == "param_grad" for key in self.trace.slots):
            return
        owned = [(key, modules[key[0]]._parameters.get(key[3])) for key in missing if key[0] in modules]
        frozen = [key for key, own in owned if key[2] == "param_grad" and own is not None and not own.requires_grad]
        reached = {key[:2] for key in seen if key[2] == "grad_output"}
        cut = [key for key, own in owned if key[:2] in reached and (own is not None or key in self.flowing)]
        for key in dict.fromkeys([*(frozen or cut), *extra]):
            absent = Contrast(error=1.0, absent=True, count=1)
            self.begun += [Begun(key, key[:2], absent, rank) for rank in self.ranks]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose values are measured in this process."""
        return (0,) if self.parts is None else self.parts.world.here

    @property
    def into(self) -> TensorCache | None:
        """Objects are written into only in a forced run: elsewhere a nudge would be added to a nudge."""
        return self.trace.cache if self.force else None

    def settled(self) -> list[tuple[int, Event]]:
        """All measurements, each with the rank that it is of."""
        waiting = [one.found for one in self.begun if isinstance(one.found, Pending)]
        later = [number for number, one in self.beside.items() if isinstance(one, Pending)]
        read = iter(settle([*waiting, *(one for one in self.beside.values() if isinstance(one, Pending))]))
        found = [next(read) if isinstance(one.found, Pending) else one.found for one in self.begun]
        beside = {number: one for number, one in self.beside.items() if isinstance(one, Contrast)}
        beside |= {number: next(read) for number in later}
        return [
            (one.rank, Event(key=one.key, caller=one.caller, found=found[number], beside=beside.get(number)))
            for number, one in enumerate(self.begun)
        ]


_Token = tuple[int, bool, ModuleCall | None]


class ForceTap:
    def __init__(self, task: Replay, page: str, names: tuple[str, ...], module: nn.Module) -> None:
        self._task, self._page, self._names, self._module = task, page, names, module

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        stack = self._task.stack
        call, again = stack.enter(self._page)
        token = call, again, stack.caller
        stack.measuring = True
        self._task.replayed.casts[self._page] = autocast_now()
        if self._page in self._task.trace.calls:
            self._look_at_masks(token, args, kwargs)
            swaps = self._compare(token, "entry", _arriving(self._names, args, kwargs))
            args, kwargs = swap((args, kwargs), swaps, self._task.into)
        if any(key[:2] == (self._page, call) for key in self._task.keep):
            self._task.replayed.arguments[self._page] = _copied((args, kwargs))
        stack.measuring = False
        given = [(tensor, version(tensor)) for tensor in _tensors((args, kwargs))]
        return args, kwargs, (token, args, kwargs, given)

    def leave(self, token: tuple[_Token, taps.Args, taps.Kwargs, list[tuple[torch.Tensor, int]]], output: Any) -> Any:
        begun, args, kwargs, given = token
        stack = self._task.stack
        stack.measuring = True
        self._task.writes.note(given, (self._page, begun[0]))
        if self._page in self._task.trace.calls:
            swaps = self._compare(begun, "after", _in_objects(self._names, args, kwargs))
            swap((args, kwargs), swaps, self._task.into)
            output = swap(output, self._compare(begun, "exit", leaves(output)), self._task.into)
        stack.leave(self._page, begun[0])
        stack.measuring = False
        return output

    def _look_at_masks(self, token: _Token, args: taps.Args, kwargs: taps.Kwargs) -> None:
        call, again, caller = token
        if again or not self._task.force or not self._task.judge:
            return
        trace = self._task.trace
        found = {leaf.path: leaf.tensor for leaf in _arriving(self._names, args, kwargs) if _mask(leaf.tensor)}
        slots = {name: trace.slots[self._page, call, "entry", name] for name in trace.leaves(self._page, call, "entry")}
        right = {name: slot.get() for name, slot in slots.items() if slot.ndim > 1}
        right = {name: tensor for name, tensor in right.items() if _mask(tensor)}
        names = self._names_of(call, "entry", list(found), list(right))
        for name in dict.fromkeys((*right, *(names.get(path, path) for path in found))):
            mine = next((tensor for path, tensor in found.items() if names.get(path, path) == name), None)
            self._task.masks.meet((self._page, call), caller, name, right.get(name), mine, self._module)

    def _compare(self, token: _Token, end: str, found: Iterator[Leaf]) -> Swaps:
        call, again, caller = token
        task = self._task
        swaps: Swaps = {}
        tensors = [(leaf.path, leaf.tensor) for leaf in found if leaf.tensor is not None]
        names = self._names_of(call, end, [path for path, _ in tensors])
        for path, tensor in tensors:
            if id(tensor) in swaps:
                continue
            key = (self._page, call, end, names.get(path, path))
            # A value that a neighbour has spoilt is the neighbour's doing, not the caller's.
            maker = (task.writes.writer(tensor) if end == "entry" else None) or caller
            value = self._again(key, tensor) if again else task.measure(key, maker, tensor)
            given = value if value is not None and task.forces(key) else tensor
            if task.nudge is not None and end == "entry":
                given = task.nudge(given)
            if flows(tensor) and end in _BACK:
                task.flowing.add((*key[:2], _BACK[end], key[3]))
                if task.parts is not None and not task.whole:
                    slot = task.trace.slots.get(key)
                    whole = None if slot is None else tuple(slot.get().shape)
                    task.parts.note_layout((*key[:2], _BACK[end], key[3]), whole, tensor)
                back = self._back(call, end, key[3], caller)
                swaps[id(tensor)] = tensor, gate(tensor, None if given is tensor else given, back)
            elif given is not tensor:
                swaps[id(tensor)] = tensor, given
        return swaps

    def _names_of(self, call: int, end: str, paths: list[str], theirs: list[str] | None = None) -> dict[str, str]:
        """Of a value that has no namesake: where each side has one such, whatever it is wrapped in, they are paired."""
        theirs = self._task.trace.leaves(self._page, call, end) if theirs is None else theirs
        left, right = [path for path in paths if path not in theirs], [name for name in theirs if name not in paths]
        return {left[0]: right[0]} if len(left) == len(right) == 1 else {}

    def _again(self, key: Key, found: torch.Tensor) -> torch.Tensor | None:
        slot = self._task.trace.slots.get(key)
        return None if slot is None else as_given(slot.get(), found)

    def _back(self, call: int, end: str, leaf: str, caller: ModuleCall | None) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            right = self._task.measure((self._page, call, _BACK[end], leaf), caller, grad)
            if right is None or not self._task.forces((self._page, call, _BACK[end], leaf)):
                return grad
            return self._task.nudge(right) if self._task.nudge is not None and end == "exit" else right

        return back


def _arriving(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> Iterator[Leaf]:
    """The tensors of a call under the names of the parameters."""
    given = {names[i] if i < len(names) else str(i): value for i, value in enumerate(args)}
    return call_leaves((), given | kwargs)


def _in_objects(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> Iterator[Leaf]:
    """Of the tensors of a call, those that lie in objects: a module may have written there."""
    plain = {id(tensor) for tensor in _tensors((args, kwargs))}
    return (leaf for leaf in _arriving(names, args, kwargs) if leaf.tensor is not None and id(leaf.tensor) not in plain)


def _mask(tensor: torch.Tensor | None) -> bool:
    """Whether a value is a mask; numbers are looked at only where they have the shape of scores."""
    if tensor is None or plain(tensor) is not tensor or tensor.ndim < 2:
        return False
    scores = tensor.ndim == 4 or tensor.shape[-1] == tensor.shape[-2]
    return masklike(tensor) and (scores or tensor.dtype == torch.bool)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def meet(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, meet)
    return found


def _copied(call: tuple[Any, Any]) -> tuple[Any, Any]:
    """As it is now: a cache is written into later."""
    plain: tuple[Any, Any] = map_tensors(call, lambda tensor: tensor.detach().clone())
    try:
        copied: tuple[Any, Any] = copy.deepcopy(plain)
    except (RuntimeError, TypeError):  # something in it refuses: then it is handed on as it is
        return plain
    return copied
