"""Modules that are wrong one by one and right together: their errors cancel, so they are no fault.

A normalisation folded into what reads it, heads or experts or hidden units in another order, a batch that is sorted:
forced to the reference, each such module is far off, and the free run is right all the same. That is shown in two ways.
A module far off by itself whose output in the free run is right undoes an error of its input. And where the
reference's value is put back at a module, a fault gets better, while what was right after a rearranged module gets
wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from layertap.fault.outputs import size_of
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult, call_of, end_of
from layertap.fault.result import ModuleRow
from layertap.judge.calibration import LIMIT_OF_MODULES
from layertap.measure.pair.difference import UNMEASURED, Difference
from layertap.result import Note
from layertap.site import Site

PROBES = 5
"""So many runs of the candidate are spent on it at most."""
VAST = 1e3
"""An error that is this many times what rounding does, at its place and where it is gone, is not hidden by rounding."""
WORSE, BETTER = 1.5, 0.7

Ends = frozenset[tuple[str, str]]
"""Pages and ends at which the reference's values are put back."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A free run of the candidate with the reference's values put back at one place."""

    ends: Ends
    replayed: ReplayResult
    total: float


@dataclass(slots=True)
class Sorted:
    """Which of the modules that stand out are faults."""

    faults: list[ModuleRow] = field(default_factory=list)
    cancelled: list[ModuleRow] = field(default_factory=list)
    unclear: list[ModuleRow] = field(default_factory=list)
    """Rearranged, as it seems, in a model whose output is wrong."""
    probe: Probe | None = None
    """Of the first fault."""
    left_out: dict[str, Note] = field(default_factory=dict)
    """By path, modules that were not rearranged with their neighbours."""


class Free:
    """The free run of the candidate: what is right in it, as far as rounding lets one see."""

    def __init__(
        self, trace: ReferenceTrace, free: ReplayResult, drifts: Mapping[Site, Difference], least: float
    ) -> None:
        self._drifts, self._least = drifts, least
        self.found = {event.site: event.found for event in free.events}
        self.order = {event.site: number for number, event in enumerate(free.events)}
        self._ends: dict[tuple[str, int, str], list[Site]] = {}
        for key in self.found:
            self._ends.setdefault(end_of(key), []).append(key)
        self._callers = {call_of(one.site): one.caller for one in free.events if one.site.role == "output"}
        self._readers: dict[int, list[Site]] = {}
        for key, slot in trace.slots.items():
            if key.role == "input":
                self._readers.setdefault(id(slot), []).append(key)
        self._slots = trace.slots

    def floor(self, key: Site) -> float:
        return max(self._drifts.get(key, UNMEASURED).error, self._least)

    def is_right(self, key: Site, found: Difference) -> bool:
        """Whether rounding explains what is seen there."""
        if found.shape or found.nonfinite_mismatch or found.mismatched:
            return False
        return found.error <= LIMIT_OF_MODULES * self.floor(key)

    def right_at(self, path: str, call: int, end: str) -> bool:
        keys = self._ends.get((path, call, end), [])
        return bool(keys) and all(self.is_right(key, self.found[key]) for key in keys)

    def wrong_at(self, path: str, call: int, end: str) -> bool:
        """Whether something is seen there that rounding does not explain."""
        return (path, call, end) in self._ends and not self.right_at(path, call, end)

    def undoes(self, row: ModuleRow) -> bool:
        """Whether a module that is far off by itself is right here: then it undoes an error of its input."""
        path, call, end = end_of(row.site)
        if end not in ("output", "input") or row.found.shape or not self.right_at(path, call, end):
            return False
        return row.found.error > LIMIT_OF_MODULES * self.floor(row.site) or bool(row.found.mismatched)

    def far_off(self, row: ModuleRow) -> bool:
        """Whether what it returns in the free run is beyond doubt wrong."""
        found = self.found.get(row.site)
        return found is not None and size_of(found) > 5 * LIMIT_OF_MODULES * self.floor(row.site)

    def closes(self, row: ModuleRow) -> bool:
        """Whether what a module spoils is right again, in a module around it or in all those that read its output."""
        return self.floor_where_closed(row) is not None

    def floor_where_closed(self, row: ModuleRow) -> float | None:
        """What rounding does there; None where it is right again nowhere."""
        path, call, end = end_of(row.site)
        above = self._callers.get((path, call))
        while above is not None:
            if self.right_at(*above, "output"):
                return self._floor_at(*above)
            above = self._callers.get(above)
        if end != "output":
            return None
        slots = [self._slots[key] for key in self._ends.get((path, call, "output"), []) if key in self._slots]
        readers = [reader for slot in slots for reader in self._readers.get(id(slot), []) if reader.path != path]
        inner = [reader for reader in readers if not path.startswith(f"{reader.path}.")]
        if not inner or not all(self.right_at(reader.path, reader.call, "output") for reader in inner):
            return None
        return max(self._floor_at(reader.path, reader.call) for reader in inner)

    def _floor_at(self, path: str, call: int) -> float:
        return max((self.floor(key) for key in self._ends.get((path, call, "output"), [])), default=self._least)

    def feeds(self, first: ModuleRow, second: ModuleRow) -> bool:
        """Whether the second is given what the first returns."""
        path, call = call_of(first.site)
        slots = {id(self._slots[key]) for key in self._ends.get((path, call, "output"), []) if key in self._slots}
        return any(call_of(reader) == call_of(second.site) for slot in slots for reader in self._readers.get(slot, []))

    def around(self, row: ModuleRow, replayed: ReplayResult) -> tuple[float, float] | None:
        """The error of the nearest module around it, before and after."""
        after = {event.site: event.found for event in replayed.events}
        path = row.site.path
        while path:
            path = path.rpartition(".")[0]
            keys = [key for key in self._ends.get((path, 0, "output"), []) if key in after]
            if keys:
                return max(size_of(self.found[key]) for key in keys), max(size_of(after[key]) for key in keys)
        return None

    def spoilt(self, replayed: ReplayResult) -> list[Site]:
        """Places that are right here and wrong in another run, up to the first whole number that differs there."""
        keys = []
        for event in replayed.events:
            before = self.found.get(event.site)
            if before is None or event.site.role not in ("input", "output") or not self.is_right(event.site, before):
                continue
            if event.found.mismatched:
                break  # a router or an argmax flips: what comes after says nothing
            if not self.is_right(event.site, event.found) and size_of(event.found) > 3 * before.error:
                keys.append(event.site)
        return keys


def sort_out(
    faulty: list[ModuleRow],
    free: Free,
    total: float,
    rounding: float,
    probe: Callable[[Ends], Probe],
    hollow: Callable[[ModuleRow], bool],
    probes: int = PROBES,
) -> Sorted:
    """Separates faults from what cancels, in order of execution; what comes after the first fault is not probed.

    A module that is `hollow` contains nothing: what was folded elsewhere and is wrong together with it is wrong there.
    """
    sorted_rows = Sorted()
    right = not math.isnan(total) and total <= LIMIT_OF_MODULES * rounding
    kinds: set[tuple[str, str]] = set()
    undoing = {_kind(row) for row in faulty if free.undoes(row)}
    probes = min(probes, PROBES)
    for row in faulty:
        kind = _kind(row)
        if row.site.role not in ("output", "input"):
            sorted_rows.faults.append(row)
        elif row.found.shape:
            (sorted_rows.cancelled if right else sorted_rows.faults).append(row)
        elif kind in undoing and not free.undoes(row) and free.far_off(row) and hollow(row) and not sorted_rows.faults:
            _accuse(row, sorted_rows, free, hollow)  # the others of its kind undo what they are given, and it does not
        elif free.undoes(row) or (kind in kinds and (right or free.closes(row))):
            kinds.add(kind)
            sorted_rows.cancelled.append(row)
        elif sorted_rows.faults:
            sorted_rows.faults.append(row)
        elif probes <= 0:
            (sorted_rows.cancelled if right and kinds else sorted_rows.unclear).append(row)
        else:
            probes -= 1
            tried = probe(ends_of(row))
            verdict = _verdict(row, free, tried, total, rounding, right)
            alone = row.reference_path and not any(
                other.reference_path.startswith(f"{row.reference_path}.") for other in faulty
            )
            open_question = verdict == "unclear" or (
                verdict == "cancelled"
                and free.wrong_at(row.reference_path, row.call, "output")
                and not _vast(row, free)
            )
            if open_question and row.site.role == "input" and alone and probes:
                # Right values among wrong ones may be worse than all wrong: put back what the module makes of them.
                probes -= 1
                tried = probe(frozenset({(row.reference_path, "output"), (row.reference_path, "grad_input")}))
                if verdict == "cancelled":
                    verdict = _verdict(row, free, tried, total, rounding, right)
                elif tried.total < BETTER * total:
                    verdict = "fault"
            if verdict == "cancelled":
                kinds.add(kind)
                sorted_rows.cancelled.append(row)
            elif verdict == "unclear":
                sorted_rows.unclear.append(row)
            else:
                sorted_rows.probe = tried if _accuse(row, sorted_rows, free, hollow) is row else None
    return sorted_rows


def _accuse(row: ModuleRow, sorted_rows: Sorted, free: Free, hollow: Callable[[ModuleRow], bool]) -> ModuleRow:
    """Takes a module for a fault, or what feeds it where it contains nothing itself."""
    for others in (sorted_rows.unclear, sorted_rows.cancelled) if hollow(row) else ():
        for other in others:
            if free.feeds(other, row):
                others.remove(other)
                row = other
                break
    sorted_rows.faults.append(row)
    return row


def ends_of(row: ModuleRow) -> Ends:
    """Where the reference's values are put back to undo what a module did."""
    path, end = row.site.path, row.site.role
    return frozenset({(path, "output"), (path, "grad_input")} if end == "output" else {(path, end)})


def _verdict(row: ModuleRow, free: Free, tried: Probe, total: float, rounding: float, right: bool) -> str:
    if free.spoilt(tried.replayed):
        return "cancelled"
    if right:
        worse = tried.total > LIMIT_OF_MODULES * rounding and tried.total > 3 * total
        hidden = _vast(row, free) and tried.total >= BETTER * total
        return "cancelled" if worse or hidden else "fault"
    near = free.around(row, tried.replayed)
    if near is not None and near[1] < BETTER * near[0]:
        return "fault"
    worse = tried.total > WORSE * total or (near is not None and near[1] > WORSE * near[0])
    return "unclear" if worse else "fault"


def _vast(row: ModuleRow, free: Free) -> bool:
    """Whether an error that is gone further on is too large for rounding to have hidden it there."""
    further = free.floor_where_closed(row)
    return further is not None and row.found.error > VAST * max(free.floor(row.site), further)


def _kind(row: ModuleRow) -> tuple[str, str]:
    """Modules of one role have one name but for their numbers."""
    return role_of(row.site.path), row.site.role


def role_of(path: str) -> str:
    """
    >>> role_of("layers.10.mlp")
    'layers.*.mlp'
    """
    return re.sub(r"\d+", "*", path)
