"""Runs of a model with every module watched: the reference is written down, the candidate is held to it.

Held means teacher-forced: what arrives at a module is measured against what arrived there in the reference, then
replaced by it; what the module returns is measured, then replaced too. So each module computes from right values: what
is measured at its exit is its own error, what is measured at a child's entry is its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors
from layertap.fault.contrast import Contrast, contrast

Place = tuple[str, int]
"""A module's path, and which call of it."""


@dataclass(slots=True)
class Call:
    """What went in and out of one call."""

    entered: dict[str, torch.Tensor] = field(default_factory=dict)
    returned: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One measurement of a held run."""

    order: int
    path: str
    """The module at whose entry or exit it was taken."""
    call: int
    end: str
    """`entry` or `exit`."""
    leaf: str
    found: Contrast


@dataclass(slots=True)
class Held:
    """A held run: what was measured, and what could not be."""

    events: list[Event] = field(default_factory=list)
    unforced: list[str] = field(default_factory=list)
    """Values that differ in form: not forced, not judged."""
    calls: dict[str, int] = field(default_factory=dict)
    kept: dict[tuple[str, int, str, str], torch.Tensor] = field(default_factory=dict)
    """The candidate's own tensors at the places that were asked for."""


def write_down(model: nn.Module, run: Callable[[nn.Module], Any]) -> tuple[dict[Place, Call], Any]:
    """Runs a model and keeps a copy of everything that went in and out of its modules."""
    book: dict[Place, Call] = {}
    watchers = {module: _Scribe(book, path) for path, module in model.named_modules()}
    with watching(watchers):
        output = run(model)
    return book, output


def hold(
    model: nn.Module,
    run: Callable[[nn.Module], Any],
    book: dict[Place, Call],
    nudge: Callable[[torch.Tensor], torch.Tensor] | None = None,
    keep: frozenset[tuple[str, int, str, str]] = frozenset(),
) -> Held:
    """Runs a model held to a book; `nudge` changes the forced inputs, to see how rounding of them would show."""
    held = Held()
    watchers = {module: _Teacher(held, book, path, nudge, keep) for path, module in model.named_modules()}
    with watching(watchers):
        run(model)
    return held


def graft(model: nn.Module, run: Callable[[nn.Module], Any], book: dict[Place, Call], paths: set[str]) -> Any:
    """A free run in which the modules at `paths` return what the reference's returned."""
    watchers = {module: _Graft(book, path) for path, module in model.named_modules() if path in paths}
    with watching(watchers):
        return run(model)


class watching:  # noqa: N801
    """Taps for the time of a `with` block."""

    def __init__(self, watchers: dict[nn.Module, Any]) -> None:
        self._watchers = watchers

    def __enter__(self) -> None:
        taps.attach(self._watchers)

    def __exit__(self, *error: object) -> None:
        taps.detach(self._watchers)


class _Counting:
    """A tap that numbers the calls of its module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._calls = 0

    def _next(self) -> Place:
        self._calls += 1
        return self._path, self._calls - 1


class _Scribe(_Counting):
    def __init__(self, book: dict[Place, Call], path: str) -> None:
        super().__init__(path)
        self._book = book

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Place]:
        place = self._next()
        self._book[place] = Call(entered=_copies(call_leaves(args, kwargs)))
        return args, kwargs, place

    def leave(self, token: Place, output: Any) -> Any:
        self._book[token].returned = _copies(leaves(output))
        return output


class _Teacher(_Counting):
    def __init__(
        self,
        held: Held,
        book: dict[Place, Call],
        path: str,
        nudge: Callable[[torch.Tensor], torch.Tensor] | None,
        keep: frozenset[tuple[str, int, str, str]],
    ) -> None:
        super().__init__(path)
        self._held, self._book, self._nudge, self._keep = held, book, nudge, keep

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Place]:
        place = self._next()
        self._held.calls[self._path] = place[1] + 1
        call = self._book.get(place)
        if call is None:
            return args, kwargs, place
        right = self._compare(place, "entry", call_leaves(args, kwargs), call.entered, self._nudge)
        return _swap(args, right), _swap(kwargs, right), place

    def leave(self, token: Place, output: Any) -> Any:
        call = self._book.get(token)
        if call is None:
            return output
        return _swap(output, self._compare(token, "exit", leaves(output), call.returned, None))

    def _compare(
        self,
        place: Place,
        end: str,
        found: Iterator[Leaf],
        right: dict[str, torch.Tensor],
        nudge: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> dict[int, torch.Tensor]:
        swaps: dict[int, torch.Tensor] = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            wanted = right.get(leaf.path)
            measured = None if wanted is None else contrast(wanted, leaf.tensor)
            if wanted is None or measured is None or (measured.shape and end == "entry"):
                self._held.unforced.append(f"{place[0]}:{end}.{leaf.path}")
                continue
            event = Event(
                order=len(self._held.events), path=place[0], call=place[1], end=end, leaf=leaf.path, found=measured
            )
            self._held.events.append(event)
            if (*place, end, leaf.path) in self._keep:
                self._held.kept[(*place, end, leaf.path)] = leaf.tensor.detach().clone()
            value = wanted.to(leaf.tensor.device, leaf.tensor.dtype, copy=True)
            swaps[id(leaf.tensor)] = nudge(value) if nudge is not None else value
        return swaps


class _Graft(_Counting):
    def __init__(self, book: dict[Place, Call], path: str) -> None:
        super().__init__(path)
        self._book = book

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Place]:
        return args, kwargs, self._next()

    def leave(self, token: Place, output: Any) -> Any:
        call = self._book.get(token)
        if call is None:
            return output
        swaps = {}
        for leaf in leaves(output):
            wanted = call.returned.get(leaf.path)
            if leaf.tensor is not None and wanted is not None and wanted.shape == leaf.tensor.shape:
                swaps[id(leaf.tensor)] = wanted.to(leaf.tensor.device, leaf.tensor.dtype, copy=True)
        return _swap(output, swaps)


def _copies(found: Iterator[Leaf]) -> dict[str, torch.Tensor]:
    return {leaf.path: leaf.tensor.detach().clone() for leaf in found if leaf.tensor is not None}


def _swap(value: Any, swaps: dict[int, torch.Tensor]) -> Any:
    return map_tensors(value, lambda tensor: swaps.get(id(tensor), tensor)) if swaps else value
