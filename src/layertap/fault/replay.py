"""Runs of a model with every module watched: the reference is written down, the candidate is held to it.

Held means teacher-forced: what arrives at a module is measured against what arrived there in the reference, then
replaced by it; what the module returns is measured, then replaced too. So each module computes from right values: what
is measured at its exit is its own error, what is measured at a child's entry is its caller's. Where gradients flow, the
same happens to them on the way back.
"""

from __future__ import annotations

import copy
import inspect
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors
from layertap.fault.contrast import Contrast, Pending, begin, settle
from layertap.fault.shelf import Shelf, Slot
from layertap.fault.side import Side, seed

Key = tuple[str, int, str, str]
"""Where a tensor was: the module's page, which call of it, which end, and the leaf there.

The ends are `entry`, `exit`, `grad_output`, `grad_input` and `param_grad`.
"""
Place = tuple[str, int]
"""A module's page, and which call of it."""
Nudge = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Book:
    """All that went in and out of the reference's modules, forward and back."""

    shelf: Shelf
    slots: dict[Key, Slot] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    output: Any = None

    def at(self, page: str, call: int, end: str) -> dict[str, torch.Tensor]:
        """The tensors of one end of one call, by leaf."""
        return {key[3]: slot.get() for key, slot in self.slots.items() if key[:3] == (page, call, end)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One measurement of a run against the book."""

    key: Key
    caller: Place | None
    """The call of a module that this one was made from; None for the user's own."""
    found: Contrast

    @property
    def owner(self) -> Place | None:
        """Whose doing it is: a value that arrives is the caller's, one that leaves is the module's own."""
        return self.caller if self.key[2] in ("entry", "grad_output") else self.key[:2]


@dataclass(slots=True)
class Played:
    """A run against the book: what was measured, and what could not be."""

    output: Any = None
    events: list[Event] = field(default_factory=list)
    unforced: list[Key] = field(default_factory=list)
    """Values that differ in form: not forced, not judged."""
    calls: Counter[str] = field(default_factory=Counter)
    kept: dict[Key, torch.Tensor] = field(default_factory=dict)
    """The run's own tensors at the places that were asked for."""
    arguments: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What the modules that were asked for were called with, after forcing."""


def write_down(side: Side, modules: Mapping[str, nn.Module], shelf: Shelf, seeded: bool = False) -> Book:
    """Runs the reference and keeps a copy of everything that goes in and out of its modules."""
    book = Book(shelf)
    stage = Stage(seeded)
    book.output = side.run({module: _Scribe(stage, book, page, module) for page, module in modules.items()})
    for page, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.grad is not None:
                book.slots[page, 0, "param_grad", name] = shelf.put(parameter.grad)
    return book


def play(
    side: Side,
    modules: Mapping[str, nn.Module],
    book: Book,
    names: Mapping[str, tuple[str, ...]],
    *,
    hold: bool,
    nudge: Nudge | None = None,
    keep: frozenset[Key] = frozenset(),
    seeded: bool = False,
    within: Callable[[Stage], Any] | None = None,
) -> Played:
    """Runs a model against the book; `hold` replaces what flows by the book's, `nudge` changes what is entered.

    `names` are the parameters of the reference's `forward`, by page, so that a value given by position is known when
    the other side gives it by name.
    """
    played, stage = Played(), Stage(seeded)
    task = _Task(stage, played, book, hold, nudge, keep)
    watchers = {module: _Player(task, page, names.get(page, ())) for page, module in modules.items()}
    played.output = side.run(watchers, within(stage) if within is not None else None)
    for page, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.grad is not None:
                task.measure((page, 0, "param_grad", name), (page, 0), parameter.grad)
    played.events = task.settled()
    played.calls = stage.calls
    return played


def graft(
    side: Side,
    modules: Mapping[str, nn.Module],
    book: Book,
    names: Mapping[str, tuple[str, ...]],
    pages: Iterable[str],
    seeded: bool = False,
) -> Any:
    """A free run in which the modules at `pages` return what the reference's returned, forward and back."""
    stage, pages = Stage(seeded), frozenset(pages)
    watchers: dict[nn.Module, taps.Tap] = {
        module: _Graft(stage, book, page, names.get(page, ())) if page in pages else _Passer(stage, page)
        for page, module in modules.items()
        if page in pages or seeded
    }
    return side.run(watchers)


def parameter_names(module: nn.Module) -> tuple[str, ...]:
    """The names that a module's `forward` gives to positional arguments.

    >>> parameter_names(nn.Linear(1, 1))
    ('input',)
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


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


class _Scribe:
    def __init__(self, stage: Stage, book: Book, page: str, module: nn.Module) -> None:
        self._stage, self._book, self._page = stage, book, page
        self._names = parameter_names(module)

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        call, again = self._stage.enter(self._page)
        if not again:
            self._book.calls[self._page] += 1
        swaps = self._write(call, again, "entry", _arriving(self._names, args, kwargs))
        return _swap(args, swaps), _swap(kwargs, swaps), (call, again)

    def leave(self, token: tuple[int, bool], output: Any) -> Any:
        call, again = token
        self._stage.leave(self._page, call)
        return _swap(output, self._write(call, again, "exit", leaves(output)))

    def _write(self, call: int, again: bool, end: str, found: Iterator[Leaf]) -> dict[int, torch.Tensor]:
        swaps = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            if not again:
                self._book.slots[self._page, call, end, leaf.path] = self._book.shelf.put(leaf.tensor)
            if _flows(leaf.tensor):
                swaps[id(leaf.tensor)] = _gate(leaf.tensor, None, self._back(call, end, leaf.path))
        return swaps

    def _back(self, call: int, end: str, leaf: str) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            self._book.slots[self._page, call, _BACK[end], leaf] = self._book.shelf.put(grad)
            return grad

        return back


@dataclass(slots=True)
class _Task:
    """What all taps of one run share."""

    stage: Stage
    played: Played
    book: Book
    hold: bool
    nudge: Nudge | None
    keep: frozenset[Key]
    begun: list[tuple[Key, Place | None, Pending | Contrast]] = field(default_factory=list)

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
        begun = begin(wanted, found)
        if begun is None or (isinstance(begun, Contrast) and begun.shape and key[2] == "entry"):
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

    def settled(self) -> list[Event]:
        waiting = [one for _, _, one in self.begun if isinstance(one, Pending)]
        read = iter(settle(waiting))
        return [
            Event(key=key, caller=caller, found=next(read) if isinstance(one, Pending) else one)
            for key, caller, one in self.begun
        ]


class _Player:
    def __init__(self, task: _Task, page: str, names: tuple[str, ...]) -> None:
        self._task, self._page, self._names = task, page, names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        stage = self._task.stage
        call, again = stage.enter(self._page)
        token = call, again, stage.caller
        stage.measuring = True
        if self._page in self._task.book.calls:
            swaps = self._compare(token, "entry", _arriving(self._names, args, kwargs))
            args, kwargs = _swap(args, swaps), _swap(kwargs, swaps)
        if any(key[:2] == (self._page, call) for key in self._task.keep):
            self._task.played.arguments[self._page] = _copied((args, kwargs))
        stage.measuring = False
        return args, kwargs, token

    def leave(self, token: tuple[int, bool, Place | None], output: Any) -> Any:
        stage = self._task.stage
        stage.measuring = True
        if self._page in self._task.book.calls:
            output = _swap(output, self._compare(token, "exit", leaves(output)))
        stage.leave(self._page, token[0])
        stage.measuring = False
        return output

    def _compare(
        self, token: tuple[int, bool, Place | None], end: str, found: Iterator[Leaf]
    ) -> dict[int, torch.Tensor]:
        call, again, caller = token
        task, swaps = self._task, {}
        for leaf in found:
            if leaf.tensor is None or id(leaf.tensor) in swaps:
                continue
            key = (self._page, call, end, leaf.path)
            value = self._again(key, leaf.tensor) if again else task.measure(key, caller, leaf.tensor)
            given = value if task.hold and value is not None else leaf.tensor
            if task.nudge is not None and end == "entry":
                given = task.nudge(given)
            if _flows(leaf.tensor):
                back = self._back(call, end, leaf.path, caller)
                swaps[id(leaf.tensor)] = _gate(leaf.tensor, None if given is leaf.tensor else given, back)
            elif given is not leaf.tensor:
                swaps[id(leaf.tensor)] = given
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


class _Passer:
    """Changes nothing, but that its module draws the same random numbers as in other runs."""

    def __init__(self, stage: Stage, page: str) -> None:
        self._stage, self._page = stage, page

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, int]:
        return args, kwargs, self._stage.enter(self._page)[0]

    def leave(self, token: int, output: Any) -> Any:
        self._stage.leave(self._page, token)
        return output


class _Graft:
    def __init__(self, stage: Stage, book: Book, page: str, names: tuple[str, ...]) -> None:
        self._stage, self._book, self._page, self._names = stage, book, page, names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, int]:
        call, _ = self._stage.enter(self._page)
        swaps = {
            id(leaf.tensor): _gate(leaf.tensor, None, self._back(call, leaf.path))
            for leaf in _arriving(self._names, args, kwargs)
            if leaf.tensor is not None and _flows(leaf.tensor)
        }
        return _swap(args, swaps), _swap(kwargs, swaps), call

    def leave(self, token: int, output: Any) -> Any:
        self._stage.leave(self._page, token)
        swaps = {}
        for leaf in leaves(output):
            right = self._right(token, "exit", leaf.path, leaf.tensor)
            if leaf.tensor is not None and right is not None:
                swaps[id(leaf.tensor)] = _gate(leaf.tensor, right, lambda grad: grad) if _flows(leaf.tensor) else right
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


def _swap(value: Any, swaps: dict[int, torch.Tensor]) -> Any:
    return map_tensors(value, lambda tensor: swaps.get(id(tensor), tensor)) if swaps else value
