"""Inside a faulty module: its operators on both sides, in order, up to the first whose result is out of line.

Only the module's own operators are seen, not those of the modules that it calls, which return right values. Up to the
first departure both sides compute from the same numbers, so the operator there is where the two part.
"""

from __future__ import annotations

import difflib
import linecache
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from layertap.fault.call_stack import CallStack
from layertap.fault.reference_trace import ModuleCall
from layertap.fault.tensor_cache import CachedTensor, TensorCache
from layertap.judge.calibration import LIMIT_OF_MODULES
from layertap.judge.signs import ratio_of
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import Difference
from layertap.messages import tr

_PACKAGE, _TORCH = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)

REWRITTEN = 8
"""Where more operators than this differ in a row, the code is another, and no single one of them is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator as it was called."""

    name: str
    result: CachedTensor | None
    """Its first result; None where that is no tensor of plain numbers."""
    settings: tuple[str, ...]
    """Its arguments that are no tensors."""
    place: str
    """Where in the source."""

    def __str__(self) -> str:
        return tr("cause.op_at", name=self.name, place=self.place) if self.place else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Where two lists of operators part."""

    op: Op
    kind: str
    """`differs` (the same operator, another result), `extra`, `missing` or `other` (another operator in its place)."""
    instead: Op | None = None
    """The reference's operator."""
    settings: tuple[tuple[str, str], ...] = ()
    """Arguments that differ: the candidate's, the reference's."""


class OpLog:
    """Writes down the operators of some module calls while it is on.

    It is a dispatch mode inside those calls alone: anywhere else a mode makes each operator ten times as slow to start.
    """

    def __init__(self, stack: CallStack, wanted: Iterable[ModuleCall], cache: TensorCache) -> None:
        self._stack, self._wanted, self._cache = stack, frozenset(wanted), cache
        self._mode = _Listening(self)
        self.ops: dict[ModuleCall, list[Op]] = {place: [] for place in self._wanted}

    def __enter__(self) -> OpLog:
        self._stack.log = self
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.log = None
        self.listen(False)

    def wants(self, place: ModuleCall) -> bool:
        """Whether the operators of a call are written down."""
        return place in self._wanted

    def listen(self, on: bool) -> None:
        """Turns the mode on or off. Where the model has a mode of its own inside it, it stays on and hears nothing."""
        inmost = _get_current_dispatch_mode() is self._mode
        if on and not self._mode.entered:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._mode.entered = True
        elif not on and inmost:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode.entered = False

    def note(self, func: Any, given: tuple[Any, ...], result: Any) -> None:
        """Writes an operator down, if it is one of a call that is asked for."""
        place = self._stack.inside[-1] if self._stack.inside and not self._stack.measuring else None
        if place not in self._wanted or place is None:
            return
        first = next((leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)), None)
        plain = first is not None and type(first) in (torch.Tensor, torch.nn.Parameter)
        op = Op(
            name=str(func),
            result=self._cache.put(first) if first is not None and plain else None,
            settings=tuple(str(value) for value in tree_leaves(given) if not isinstance(value, torch.Tensor)),
            place=_source(),
        )
        self.ops[place].append(op)


class _Listening(TorchDispatchMode):
    """Hands on what is computed."""

    def __init__(self, log: OpLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log, self.entered = log, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._log.note(func, (args, kwargs or {}), result)
        return result


def depart(reference: Sequence[Op], candidate: Sequence[Op], floor: Sequence[Op], least: float) -> Departure | None:
    """The first operator that is out of line; `floor` are the reference's own in the candidate's dtype."""
    right = [op for op in reference if _counts(op)]
    ours = [op for op in candidate if _counts(op)]
    floors = {i: op for i, _, op in _matched(right, [op for op in floor if _counts(op)])}
    last = -1, -1
    for i, j, op in _matched(right, ours):
        wanted = right[i]
        found, under = _compare(wanted, op), _compare(wanted, floors[i]) if i in floors else None
        if found is not None and ratio_of(found, under or Difference(), least)[0] > LIMIT_OF_MODULES:
            departure = _between(right, ours, last, (i, j))
            if departure is None or departure.kind != "differs" or departure.settings or not op.name.startswith(_MOVES):
                return departure
            # A weight that differs is seen here first, but this is not where it is used.
        last = i, j
    return _between(right, ours, last, (len(right), len(ours)))


def _between(right: Sequence[Op], ours: Sequence[Op], last: tuple[int, int], now: tuple[int, int]) -> Departure | None:
    """What happened since the two last agreed: another operator, one too many, one too few, or this one itself."""
    mine, theirs = ours[last[1] + 1 : now[1]], right[last[0] + 1 : now[0]]
    if max(len(mine), len(theirs)) > REWRITTEN:
        return None
    if mine:
        return Departure(op=mine[0], kind="other" if theirs else "extra", instead=theirs[0] if theirs else None)
    if theirs:
        return Departure(op=theirs[0], kind="missing", instead=theirs[0])
    if now[1] >= len(ours):
        return None
    op, wanted = ours[now[1]], right[now[0]]
    pairs = zip_longest(op.settings, wanted.settings, fillvalue="(default)")
    return Departure(op=op, kind="differs", instead=wanted, settings=tuple((a, b) for a, b in pairs if a != b))


def _matched(ours: Sequence[Op], theirs: Sequence[Op]) -> Iterator[tuple[int, int, Op]]:
    matcher = difflib.SequenceMatcher(None, [op.name for op in ours], [op.name for op in theirs], autojunk=False)
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            yield block.a + k, block.b + k, theirs[block.b + k]


def _compare(right: Op, found: Op) -> Difference | None:
    if right.result is None or found.result is None:
        return None
    return compare_tensors(right.result.get(), found.result.get())


_FORM = ("aten.view", "aten.detach", "aten.alias", "aten.lift_fresh", "aten._unsafe_view", "aten.clone", "aten.empty")
"""Operators that move no numbers, and come and go with the layout."""

_MOVES = ("aten.t.", "aten.transpose", "aten.permute", "aten.expand", "aten.unsqueeze", "aten.slice", "aten.select")
"""Operators that only move numbers."""


def _counts(op: Op) -> bool:
    return not op.name.startswith(_FORM)


def _source() -> str:
    """The line of the model's code that called the operator: the nearest frame that is neither torch's nor ours.

    A module of torch's own has no such line before its caller's; then it is the line in torch.
    """
    frame, inner = sys._getframe(3), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            if frame.f_code.co_name != "__torch_dispatch__":
                break  # the module's call begins here
        elif name.startswith(_TORCH):
            inner = inner if inner is not None or "/nn/" not in name else frame
        else:
            return _source_line(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return _source_line(inner) if inner is not None else ""


def _source_line(frame: Any) -> str:
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    return f"{Path(name).name}:{line}" + (f" `{text}`" if text else "")
