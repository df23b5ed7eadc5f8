"""The taps of a replay: one writes the trace, one measures a module against it and exchanges what it is told to."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors
from layertap.fault.inplace_writes import InplaceWrites
from layertap.fault.masks import Masks
from layertap.fault.model_runner import autocast_now, seed, version
from layertap.fault.reference_trace import Event, Key, ModuleCall, ReferenceTrace, ReplayResult
from layertap.fault.tensor_cache import CachedTensor, TensorCache
from layertap.fault.value_layouts import masklike
from layertap.measure.dense import dense
from layertap.measure.pair.contrast import Contrast
from layertap.measure.pair.deferred import Pending, begin, form_of, settle

Nudge = Callable[[torch.Tensor], torch.Tensor]
Swaps = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By its identity, a tensor and what stands in for it."""


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


class _Gate(torch.autograd.Function):
    """Hands a value on, or another in its place, and sees its gradient come back."""

    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, passage: _Passage) -> torch.Tensor:
        ctx.passage = passage
        return found.clone() if passage.right is None else passage.right

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return ctx.passage.back(grad), None


@dataclass(frozen=True, slots=True)
class _Passage:
    right: torch.Tensor | None
    back: Nudge


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
        args, kwargs = _swap((args, kwargs), swaps)
        return args, kwargs, (call, again, args, kwargs)

    def leave(self, token: tuple[int, bool, taps.Args, taps.Kwargs], output: Any) -> Any:
        call, again, args, kwargs = token
        self._stack.leave(self._page, call)
        self._write(call, again, "after", _in_objects(self._names, args, kwargs))
        return _swap(output, self._write(call, again, "exit", leaves(output)))

    def _write(self, call: int, again: bool, end: str, found: Iterator[Leaf]) -> Swaps:
        swaps: Swaps = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            if not again:
                self._trace.slots[self._page, call, end, leaf.path] = self._trace.cache.put(leaf.tensor)
            if _flows(leaf.tensor) and end in _BACK:
                swaps[id(leaf.tensor)] = leaf.tensor, _gate(leaf.tensor, None, self._back(call, end, leaf.path))
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
    begun: list[tuple[Key, ModuleCall | None, Pending | Contrast]] = field(default_factory=list)
    beside: dict[int, Pending | Contrast] = field(default_factory=dict)
    """By the number of the measurement, the same value against the lowered reference's."""
    masks: Masks = field(default_factory=Masks)
    writes: InplaceWrites = field(default_factory=InplaceWrites)
    misgiven: set[ModuleCall] = field(default_factory=set)
    """Calls that were given a value of another size."""
    flowing: set[Key] = field(default_factory=set)
    """Values through which a gradient can go back."""

    def forces(self, key: Key) -> bool:
        """Whether what is here is exchanged for the reference's."""
        return self.force or (key[0], key[2]) in self.put_back

    def measure(self, key: Key, caller: ModuleCall | None, found: torch.Tensor) -> torch.Tensor | None:
        """Measures one value; returns the right one, in the form that it has here, if it has a right one."""
        slot = self.trace.slots.get(key)
        if slot is None:
            self.replayed.unforced.append(key)
            return None
        if self.force and self.trace.cache.slot_of(found) is slot:
            self.begun.append((key, caller, Contrast(exact=True, count=found.numel())))  # it was put there by us
            return found
        if key[2] == "exit" and key[:2] in self.misgiven:
            self.replayed.unforced.append(key)  # what it makes of other values is neither right nor wrong
            return None
        right, mine = slot.get(found.device), found
        layout = None
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
                self.begun.append((key, caller, form))
            form = None
        begun = None if form is None and layout is None else self._begin(right, found)
        if begun is None:
            self.replayed.unforced.append(key)
            return None
        self._lay_beside(key, found)
        self.begun.append((key, caller, begun))
        if key in self.keep:
            self.replayed.kept[key] = found.detach().clone()
        if layout is not None:
            right = layout.there(right, mine.shape)
        given = as_given(right, mine)
        if self.force and given is not None:
            self.trace.cache.remember(given, slot)
        return given

    def _lay_beside(self, key: Key, found: torch.Tensor) -> None:
        lowered = self.lowered
        if lowered is None or not self.judge or not found.is_floating_point():
            return
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
        seen = {key for key, _, _ in self.begun} | set(self.replayed.unforced)
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
            self.begun.append((key, key[:2], Contrast(error=1.0, absent=True, count=1)))

    @property
    def into(self) -> TensorCache | None:
        """Objects are written into only in a forced run: elsewhere a nudge would be added to a nudge."""
        return self.trace.cache if self.force else None

    def settled(self) -> list[Event]:
        waiting = [one for _, _, one in self.begun if isinstance(one, Pending)]
        later = [number for number, one in self.beside.items() if isinstance(one, Pending)]
        read = iter(settle([*waiting, *(one for one in self.beside.values() if isinstance(one, Pending))]))
        found = [next(read) if isinstance(one, Pending) else one for _, _, one in self.begun]
        beside = {number: one for number, one in self.beside.items() if isinstance(one, Contrast)}
        beside |= {number: next(read) for number in later}
        return [
            Event(key=key, caller=caller, found=found[number], beside=beside.get(number))
            for number, (key, caller, _) in enumerate(self.begun)
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
            args, kwargs = _swap((args, kwargs), swaps, self._task.into)
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
            _swap((args, kwargs), swaps, self._task.into)
            output = _swap(output, self._compare(begun, "exit", leaves(output)), self._task.into)
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
            if _flows(tensor) and end in _BACK:
                task.flowing.add((*key[:2], _BACK[end], key[3]))
                back = self._back(call, end, key[3], caller)
                swaps[id(tensor)] = tensor, _gate(tensor, None if given is tensor else given, back)
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
    if tensor is None or dense(tensor) is not tensor or tensor.ndim < 2:
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


def _flows(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def as_given(right: torch.Tensor, found: torch.Tensor) -> torch.Tensor | None:
    """The reference's value in the place of another; None where it cannot stand there."""
    if right.is_nested != found.is_nested or (not right.is_nested and right.shape != found.shape):
        return None
    if found.layout == torch.jagged:  # its rows are known by their offsets, which must stay the same tensor
        return torch.nested.nested_tensor_from_jagged(right.values().to(found.device, found.dtype), found.offsets())  # type: ignore[attr-defined]
    if right.is_nested and not torch.equal(right._nested_tensor_size(), found._nested_tensor_size()):
        return None
    return right.to(found.device, found.dtype, copy=True)


def _gate(found: torch.Tensor, right: torch.Tensor | None, back: Nudge) -> torch.Tensor:
    passed: torch.Tensor = _Gate.apply(found, _Passage(right, back))  # type: ignore[no-untyped-call]
    return passed


def _swap(value: Any, swaps: Swaps, cache: TensorCache | None = None) -> Any:
    """The same value with other tensors in it.

    A tensor that lies in an object, a cache, cannot be exchanged; with a `cache` it is written into instead.
    """
    if not swaps:
        return value
    met: set[int] = set()

    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        met.add(id(tensor))
        return swaps[id(tensor)][1] if id(tensor) in swaps else tensor

    changed = map_tensors(value, exchange)
    for old, new in (swaps[key] for key in swaps.keys() - met if cache is not None):
        if not _flows(old):
            with torch.no_grad():
                old.copy_(new)
            slot = cache.slot_of(new) if cache is not None else None
            if cache is not None and slot is not None:
                cache.remember(old, slot)
    return changed
