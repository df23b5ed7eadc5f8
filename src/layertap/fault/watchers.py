"""The taps of a replay: one writes the book, one holds a module to it, one puts a single module's output back."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors
from layertap.fault.book import Book, Event, Key, Place, Played
from layertap.fault.contrast import Contrast, Pending, begin, form_of, settle
from layertap.fault.masks import Masks
from layertap.fault.shelf import Shelf
from layertap.fault.side import seed, version
from layertap.fault.writes import Writes

Nudge = Callable[[torch.Tensor], torch.Tensor]
Swaps = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By its identity, a tensor and what stands in for it."""


class Stage:
    """Who is inside whom, and how often each was called."""

    def __init__(self, seeded: bool) -> None:
        self.inside: list[Place] = []
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
    def caller(self) -> Place | None:
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


class Scribe:
    def __init__(self, stage: Stage, book: Book, page: str, names: tuple[str, ...]) -> None:
        self._stage, self._book, self._page = stage, book, page
        self._names = names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        call, again = self._stage.enter(self._page)
        if not again:
            self._book.calls[self._page] += 1
        swaps = self._write(call, again, "entry", _arriving(self._names, args, kwargs))
        args, kwargs = _swap((args, kwargs), swaps)
        return args, kwargs, (call, again, args, kwargs)

    def leave(self, token: tuple[int, bool, taps.Args, taps.Kwargs], output: Any) -> Any:
        call, again, args, kwargs = token
        self._stage.leave(self._page, call)
        self._write(call, again, "after", _in_objects(self._names, args, kwargs))
        return _swap(output, self._write(call, again, "exit", leaves(output)))

    def _write(self, call: int, again: bool, end: str, found: Iterator[Leaf]) -> Swaps:
        swaps: Swaps = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            if not again:
                self._book.slots[self._page, call, end, leaf.path] = self._book.shelf.put(leaf.tensor)
            if _flows(leaf.tensor) and end in _BACK:
                swaps[id(leaf.tensor)] = leaf.tensor, _gate(leaf.tensor, None, self._back(call, end, leaf.path))
        return swaps

    def _back(self, call: int, end: str, leaf: str) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            self._book.slots[self._page, call, _BACK[end], leaf] = self._book.shelf.put(grad)
            return grad

        return back


@dataclass(slots=True)
class Task:
    """What all taps of one run share."""

    stage: Stage
    played: Played
    book: Book
    hold: bool
    nudge: Nudge | None
    keep: frozenset[Key]
    judge: bool = True
    """Whether values are measured; if not, they are only exchanged."""
    begun: list[tuple[Key, Place | None, Pending | Contrast]] = field(default_factory=list)
    masks: Masks = field(default_factory=Masks)
    writes: Writes = field(default_factory=Writes)
    uneven: dict[Place, tuple[Key, Place | None]] = field(default_factory=dict)
    """Calls that were given a value of another shape, with where and by whom."""

    def measure(self, key: Key, caller: Place | None, found: torch.Tensor) -> torch.Tensor | None:
        """Measures one value; returns the right one, on the same device and in the same dtype, if the form allows."""
        slot = self.book.slots.get(key)
        if slot is None:
            self.played.unforced.append(key)
            return None
        if self.hold and self.book.shelf.slot_of(found) is slot:
            self.begun.append((key, caller, Contrast(exact=True, count=found.numel())))  # it was put there by us
            return found
        if type(found) not in (torch.Tensor, nn.Parameter):
            self.played.unforced.append(key)  # a shard or a packed tensor: its values are not at hand
            return None
        wanted = slot.get(found.device)
        begun = self._begin(wanted, found)
        if begun is None or (isinstance(begun, Contrast) and begun.shape and self._uneven(key, caller, begun)):
            self.played.unforced.append(key)
            return None
        self.begun.append((key, caller, begun))
        if key in self.keep:
            self.played.kept[key] = found.detach().clone()
        if isinstance(begun, Contrast) and begun.shape and not self.hold:
            return None
        right = wanted.to(found.device, found.dtype, copy=True)
        if self.hold:
            self.book.shelf.remember(right, slot)
        return right

    def _begin(self, wanted: torch.Tensor, found: torch.Tensor) -> Pending | Contrast | None:
        if not self.judge:
            return form_of(wanted, found)
        void = self.book.void_in(found)
        if void is not None and wanted.shape == found.shape and found.is_floating_point():
            found = torch.where(void & torch.isfinite(found), wanted.to(found.dtype), found)
        return begin(wanted, found)

    def _uneven(self, key: Key, caller: Place | None, begun: Contrast) -> bool:
        """Another shape is no fault at an entry; where it leads to another at the exit, it is the caller's."""
        if key[2] == "entry":
            self.uneven.setdefault(key[:2], (key, caller))
        elif key[2] == "exit" and key[:2] in self.uneven:
            self.begun.append((*self.uneven[key[:2]], begun))
        else:
            return False
        return True

    @property
    def into(self) -> Shelf | None:
        """Objects are written into only in a held run: elsewhere a nudge would be added to a nudge."""
        return self.book.shelf if self.hold else None

    def settled(self) -> list[Event]:
        waiting = [one for _, _, one in self.begun if isinstance(one, Pending)]
        read = iter(settle(waiting))
        return [
            Event(key=key, caller=caller, found=next(read) if isinstance(one, Pending) else one)
            for key, caller, one in self.begun
        ]


_Token = tuple[int, bool, Place | None]


class Player:
    def __init__(self, task: Task, page: str, names: tuple[str, ...], module: nn.Module) -> None:
        self._task, self._page, self._names, self._module = task, page, names, module

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        stage = self._task.stage
        call, again = stage.enter(self._page)
        token = call, again, stage.caller
        stage.measuring = True
        if self._page in self._task.book.calls:
            self._look_at_masks(token, args, kwargs)
            swaps = self._compare(token, "entry", _arriving(self._names, args, kwargs))
            args, kwargs = _swap((args, kwargs), swaps, self._task.into)
        if any(key[:2] == (self._page, call) for key in self._task.keep):
            self._task.played.arguments[self._page] = _copied((args, kwargs))
        stage.measuring = False
        given = [(tensor, version(tensor)) for tensor in _tensors((args, kwargs))]
        return args, kwargs, (token, args, kwargs, given)

    def leave(self, token: tuple[_Token, taps.Args, taps.Kwargs, list[tuple[torch.Tensor, int]]], output: Any) -> Any:
        begun, args, kwargs, given = token
        stage = self._task.stage
        stage.measuring = True
        self._task.writes.note(given, (self._page, begun[0]))
        if self._page in self._task.book.calls:
            swaps = self._compare(begun, "after", _in_objects(self._names, args, kwargs))
            _swap((args, kwargs), swaps, self._task.into)
            output = _swap(output, self._compare(begun, "exit", leaves(output)), self._task.into)
        stage.leave(self._page, begun[0])
        stage.measuring = False
        return output

    def _look_at_masks(self, token: _Token, args: taps.Args, kwargs: taps.Kwargs) -> None:
        call, again, caller = token
        if again or not self._task.hold or not self._task.judge:
            return
        found = {leaf.path: leaf.tensor for leaf in _arriving(self._names, args, kwargs) if "mask" in leaf.path}
        for name in dict.fromkeys((*found, "attention_mask")):
            slot = self._task.book.slots.get((self._page, call, "entry", name))
            right = slot.get() if slot is not None else None
            self._task.masks.meet((self._page, call), caller, name, right, found.get(name), self._module)

    def _compare(self, token: _Token, end: str, found: Iterator[Leaf]) -> Swaps:
        call, again, caller = token
        task = self._task
        swaps: Swaps = {}
        for leaf in found:
            if leaf.tensor is None or id(leaf.tensor) in swaps:
                continue
            key = (self._page, call, end, leaf.path)
            # A value that a neighbour has spoilt is the neighbour's doing, not the caller's.
            maker = (task.writes.writer(leaf.tensor) if end == "entry" else None) or caller
            value = self._again(key, leaf.tensor) if again else task.measure(key, maker, leaf.tensor)
            given = value if task.hold and value is not None else leaf.tensor
            if task.nudge is not None and end == "entry":
                given = task.nudge(given)
            if _flows(leaf.tensor) and end in _BACK:
                back = self._back(call, end, leaf.path, caller)
                passed = _gate(leaf.tensor, None if given is leaf.tensor else given, back)
                swaps[id(leaf.tensor)] = leaf.tensor, passed
            elif given is not leaf.tensor:
                swaps[id(leaf.tensor)] = leaf.tensor, given
        return swaps

    def _again(self, key: Key, found: torch.Tensor) -> torch.Tensor | None:
        slot = self._task.book.slots.get(key)
        return None if slot is None else slot.get().to(found.device, found.dtype, copy=True)

    def _back(self, call: int, end: str, leaf: str, caller: Place | None) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            right = self._task.measure((self._page, call, _BACK[end], leaf), caller, grad)
            if not self._task.hold or right is None or right.shape != grad.shape:
                return grad
            return self._task.nudge(right) if self._task.nudge is not None and end == "exit" else right

        return back


class Passer:
    """Changes nothing, but that its module draws the same random numbers as in other runs."""

    def __init__(self, stage: Stage, page: str) -> None:
        self._stage, self._page = stage, page

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, int]:
        return args, kwargs, self._stage.enter(self._page)[0]

    def leave(self, token: int, output: Any) -> Any:
        self._stage.leave(self._page, token)
        return output


class Graft:
    def __init__(self, stage: Stage, book: Book, page: str, names: tuple[str, ...]) -> None:
        self._stage, self._book, self._page, self._names = stage, book, page, names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, int]:
        call, _ = self._stage.enter(self._page)
        swaps = {
            id(leaf.tensor): (leaf.tensor, _gate(leaf.tensor, None, self._back(call, leaf.path)))
            for leaf in _arriving(self._names, args, kwargs)
            if leaf.tensor is not None and _flows(leaf.tensor)
        }
        return *_swap((args, kwargs), swaps), call

    def leave(self, token: int, output: Any) -> Any:
        self._stage.leave(self._page, token)
        swaps: Swaps = {}
        for leaf in leaves(output):
            right = self._right(token, "exit", leaf.path, leaf.tensor)
            if leaf.tensor is not None and right is not None:
                passed = _gate(leaf.tensor, right, lambda grad: grad) if _flows(leaf.tensor) else right
                swaps[id(leaf.tensor)] = leaf.tensor, passed
        return _swap(output, swaps)

    def _back(self, call: int, leaf: str) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            right = self._right(call, "grad_input", leaf, grad)
            return grad if right is None else right

        return back

    def _right(self, call: int, end: str, leaf: str, found: torch.Tensor | None) -> torch.Tensor | None:
        slot = self._book.slots.get((self._page, call, end, leaf))
        if found is None or slot is None:
            return None
        right = slot.get()
        return right.to(found.device, found.dtype, copy=True) if right.shape == found.shape else None


def _arriving(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> Iterator[Leaf]:
    """The tensors of a call under the names of the parameters."""
    given = {names[i] if i < len(names) else str(i): value for i, value in enumerate(args)}
    return call_leaves((), given | kwargs)


def _in_objects(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> Iterator[Leaf]:
    """Of the tensors of a call, those that lie in objects: a module may have written there."""
    plain = {id(tensor) for tensor in _tensors((args, kwargs))}
    return (leaf for leaf in _arriving(names, args, kwargs) if leaf.tensor is not None and id(leaf.tensor) not in plain)


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


def _gate(found: torch.Tensor, right: torch.Tensor | None, back: Nudge) -> torch.Tensor:
    passed: torch.Tensor = _Gate.apply(found, _Passage(right, back))  # type: ignore[no-untyped-call]
    return passed


def _swap(value: Any, swaps: Swaps, shelf: Shelf | None = None) -> Any:
    """The same value with other tensors in it.

    A tensor that lies in an object, a cache, cannot be exchanged; with a `shelf` it is written into instead.
    """
    if not swaps:
        return value
    met: set[int] = set()

    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        met.add(id(tensor))
        return swaps[id(tensor)][1] if id(tensor) in swaps else tensor

    changed = map_tensors(value, exchange)
    for old, new in (swaps[key] for key in swaps.keys() - met if shelf is not None):
        if not _flows(old):
            with torch.no_grad():
                old.copy_(new)
            slot = shelf.slot_of(new) if shelf is not None else None
            if shelf is not None and slot is not None:
                shelf.remember(old, slot)
    return changed
