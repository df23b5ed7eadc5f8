"""A candidate that can be forced to the reference: which modules are faulty of what, forward and back."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from layertap.fault.cancelling import Free, Probe, Sorted, sort_out
from layertap.fault.cause import Absent, Clues, below, explain
from layertap.fault.contrast import Contrast
from layertap.fault.drill import Departure, OpLog, depart
from layertap.fault.judge import LIMIT, Judged, by_module, floors_of, judge_events, least_of
from layertap.fault.model_runner import ModelRunner
from layertap.fault.quantised_kinds import MANY, coarseness, systematic
from layertap.fault.reference_trace import Key, ModuleCall, ReferenceTrace, ReplayResult
from layertap.fault.replay_taps import CallStack
from layertap.fault.repro import ReproWriter, Witness
from layertap.fault.result import Finding, ModuleRow
from layertap.fault.search import APART, Search
from layertap.fault.unjudged import judged_pages, suspects
from layertap.result import Note

LAZY = {"xla", "lazy"}
"""Devices that drop writes in place under a TorchDispatchMode, which is how operators are seen (torch_xla 2.9)."""
NAMED = 6
"""So many modules are named in one note."""
CLOSELY = 4
"""So many faulty modules are looked into; the others are named."""


class TeacherForcedSearch(Search):
    """The candidate runs teacher-forced, and is judged by what each module does with right values."""

    def finding(self) -> Finding:
        trace, widened = self.preflight()
        self.progress(Note("fault.running_candidate"))
        free = self.free(trace)
        forced = self.play(self.theirs, self.pairing.candidate, trace, force=True)
        self.progress(Note("fault.measuring_rounding"))
        low, modules = self.lowered(self.follow_autocast(trace, free))
        clean = widened + [
            self.play(low, modules, trace, force=True, nudge=nudge)
            for nudge in ((self.nudge,) if low is self.ours else (None, self.nudge))
        ]
        drift = self.play(low, modules, trace, force=False, nudge=self.nudge)
        floors = floors_of(clean)
        total, rounding = self.total(trace, free), self.total(trace, drift)
        judged = judge_events(forced, floors, self.dtype)
        table, shared = systematic(by_module(judged, free, self.pairing), self._coarseness)
        self.doubt_watching(rounding)
        self._doubt_inputs(forced, floors)
        self._doubt_draws(floors)
        self.notes += [Note("fault.other_form", told=self.told(key)) for key in _once(forced.unforced)]
        faulty, masks = self._makers([row for row in table if row.ratio > LIMIT], forced)
        faulty = self._consequential(faulty, judged)
        if faulty and low is not self.ours:  # inputs nudged everywhere move more than the dtype alone does
            drift = self.play(low, modules, trace, force=False)
        told = self._sorted(faulty, trace, free, floors_of([drift]), total, self.total(trace, drift))
        faulty = told.faults
        if faulty and faulty[0].page not in {mask.page for mask in masks}:
            self._doubt_unjudged(faulty[0], trace, forced)
        absent = [*masks, *self._absent(trace, forced)]
        idle = [one for one in absent if not self._under(one.page, faulty)]
        self.notes += [Note("fault.without_effect", cause=one.cause, text=one.text) for one in idle]
        if not forced.events:
            self.doubts.append(Note("fault.nothing_paired"))
        if not faulty and not shared and total > LIMIT * max(rounding, least_of(self.dtype)):
            rounding = max(rounding, *self._drifts(trace, low, modules))
            if total > LIMIT * max(rounding, least_of(self.dtype)):
                faulty = [row for row in table if _counted_otherwise(row, floors)]
        if self.doubts or not faulty:
            exact = total == 0 and all(one.event.found.exact for one in judged)
            return self._without_fault(table, shared, total, rounding, exact)
        self.progress(Note("fault.looking_closer"))
        return self._faulty(faulty, table, trace, absent, total, rounding, low, modules, told.probe, forced)

    def _consequential(self, faulty: list[ModuleRow], judged: list[Judged]) -> list[ModuleRow]:
        """Without those that return another size, where what calls them comes out right all the same."""
        exits: dict[str, float] = {}
        for one in judged:
            if one.event.key[2] == "exit":
                exits[one.event.key[0]] = max(exits.get(one.event.key[0], 0.0), one.ratio)
        idle = []
        for row in faulty:
            above = row.page
            while above and row.found.shape and (above := above.rpartition(".")[0]) not in exits and above:
                pass
            if row.found.shape and above != row.page and exits.get(above, math.inf) <= LIMIT:
                idle.append(row)
        if idle:
            self.notes.append(Note("fault.other_size", listed=_listed(idle)))
        return [row for row in faulty if row not in idle]

    def _doubt_unjudged(self, row: ModuleRow, trace: ReferenceTrace, forced: ReplayResult) -> None:
        ours, theirs = self.pairing.reference.get(row.page), self.pairing.candidate.get(row.page)
        if ours is None or theirs is None or below(ours, theirs, row.page, judged_pages(forced)):
            return
        if left := suspects(row, self.pairing, trace, forced):
            names = ", ".join(left[:NAMED]) + (
                Note("fault.and_more", count=len(left) - NAMED) if len(left) > NAMED else ""
            )
            self.doubts.append(
                Note("fault.unjudged", path=row.path or Note("fault.model"), where=row.where, names=names)
            )

    def _sorted(
        self,
        faulty: list[ModuleRow],
        trace: ReferenceTrace,
        free: ReplayResult,
        drifts: dict[Key, Contrast],
        total: float,
        floor: float,
    ) -> Sorted:
        """Which of them are faults; the others cancel, which is said."""
        least = least_of(self.dtype)

        def probe(ends: frozenset[tuple[str, str]]) -> Probe:
            replayed = self.play(self.theirs, self.pairing.candidate, trace, force=False, put_back=ends)
            return Probe(ends, replayed, self.total(trace, replayed, skip=next(iter(ends))[0]))

        def hollow(row: ModuleRow) -> bool:
            module = self.pairing.candidate.get(row.page)
            return module is not None and next(module.parameters(), None) is None

        told = sort_out(faulty, Free(trace, free, drifts, least), total, max(floor, least), probe, hollow)
        if told.cancelled:
            self.notes.append(Note("fault.cancelled", listed=_listed(told.cancelled)))
        if told.unclear and not told.faults:
            self.doubts.append(Note("fault.rearranged", listed=_listed(told.unclear)))
        return told

    def _makers(self, faulty: list[ModuleRow], forced: ReplayResult) -> tuple[list[ModuleRow], list[Absent]]:
        """In the place of attention that was given another mask, those who made it; and what to say of them."""
        rows: dict[str, ModuleRow] = {}
        told: dict[str, Absent] = {}
        for row in faulty:
            maker, text = forced.masks.get((row.page, row.call), (None, ""))
            if maker is not None:
                where = Note("where.mask", path=row.path)
                told.setdefault(maker[0], Absent(maker[0], "mask", text))
                row = replace(row, path=self.pairing.name(maker[0]), page=maker[0], call=maker[1], where=where)
            rows.setdefault(row.page, row)
        return list(rows.values()), list(told.values())

    def _drifts(self, trace: ReferenceTrace, low: ModelRunner, modules: dict[str, nn.Module]) -> Iterator[float]:
        """What rounding does to the output in two more runs: where a router flips, one does not show it."""
        for nudge in (None if low is not self.ours else partial(self.nudge, seed=1), partial(self.nudge, seed=2)):
            yield self.total(trace, self.play(low, modules, trace, force=False, nudge=nudge))

    def _coarseness(self, row: ModuleRow) -> float:
        ours, theirs = self.pairing.reference.get(row.page), self.pairing.candidate.get(row.page)
        return coarseness(ours, theirs) if ours is not None and theirs is not None else 0.0

    def _doubt_inputs(self, forced: ReplayResult, floors: dict[Key, Contrast]) -> None:
        for event in forced.events:
            page, call, end, leaf = event.key
            if event.caller is None and end == "entry" and call == 0:
                floor = floors.get(event.key, Contrast())
                apart = event.found.mismatched > floor.mismatched or event.found.nonfinite
                if apart or event.found.error > max(floor.error, 4 * least_of(self.dtype)):
                    self.doubts.append(Note("fault.other_inputs", leaf=leaf or page or Note("where.the_input")))

    def _doubt_draws(self, floors: dict[Key, Contrast]) -> None:
        if not self.seeded:
            return
        apart = [key for key, floor in floors.items() if floor.error > 0.3 and key[2] == "exit"]
        if apart:
            self.doubts.append(Note("fault.draws_differ", told=self.told(apart[0])))

    def _without_fault(
        self, table: list[ModuleRow], shared: tuple[str, ...], total: float, rounding: float, exact: bool
    ) -> Finding:
        cause, alike = "quantization" if shared else "", []
        if shared:
            most = Note("fault.most_of_kind", shared=", ".join(shared))
            alike.append(Note("fault.shared", most=most, cause=cause))
        verdict = "inconclusive" if self.doubts else "identical" if exact else "noise"
        if exact and not self.doubts:
            one_object = self.ours.model is self.theirs.model
            self.notes.append(Note("fault.same_object") if one_object else Note("fault.same_bits"))
        elif math.isnan(total) and not cause:
            verdict = "inconclusive"
            self.doubts.append(APART)
        elif not cause and total > LIMIT * max(rounding, least_of(self.dtype)):
            verdict = "inconclusive"
            times = Note("fault.times_rounding", total=total / rounding) if rounding else Note("fault.not_rounding")
            self.doubts.append(Note("fault.output_unexplained", times=times))
        return Finding(
            verdict=verdict,  # type: ignore[arg-type]
            cause=cause,
            evidence=(*self.doubts, *alike),
            total=total,
            floor=rounding,
            table=tuple(table),
            notes=tuple(self.notes),
        )

    def _faulty(
        self,
        faulty: list[ModuleRow],
        table: list[ModuleRow],
        trace: ReferenceTrace,
        absent: list[Absent],
        total: float,
        rounding: float,
        low: ModelRunner,
        modules: dict[str, nn.Module],
        probe: Probe | None,
        forced: ReplayResult,
    ) -> Finding:
        closely = faulty[:CLOSELY]
        keep = frozenset(key for row in closely for key in (row.place, (row.page, row.call, "exit", "")))
        calls = frozenset((row.page, row.call) for row in closely if not row.place[2].endswith(("grad", "input")))
        lazy = {side.device.type for side in (self.ours, self.theirs)} & LAZY
        if lazy:
            calls = frozenset()
            self.notes.append(Note("fault.operators_skipped", lazy=", ".join(lazy)))
        kept, theirs = self._logged(self.theirs, self.pairing.candidate, trace, calls, keep)
        _, ours = self._logged(self.ours, self.pairing.reference, trace, calls)
        floor = ours if low is self.ours else self._logged(low, modules, trace, calls)[1]
        least = least_of(self.dtype)
        self.ours.rest()  # what a run writes, as running statistics are, is no difference of the models
        self.theirs.rest()
        found = []
        for row in closely:
            place = (row.page, row.call)
            departure = depart(ours[place], theirs[place], floor[place], least) if place in calls else None
            below = tuple(one for one in absent if one.page == row.page or self._under(one.page, [row]))
            clues = Clues(row=row, trace=trace, found=kept.kept.get(row.place), departure=departure, absent=below)
            found.append(self._examined(row, clues, departure, kept, trace, judged_pages(forced)))
        found += [
            Finding(verdict="fault", site=row.path, cause="unknown", local=row.local, floor=row.floor, ratio=row.ratio)
            for row in faulty[CLOSELY:]
        ]
        first = found[0]
        page = faulty[0].page
        ends = frozenset({(page, "exit"), (page, "grad_input")})
        if probe is None or probe.ends != ends:
            patched = self.play(self.theirs, self.pairing.candidate, trace, force=False, put_back=ends)
            after = self.total(trace, patched, skip=page)
        else:
            after = probe.total
        return replace(
            first,
            evidence=(*first.evidence, *_alike(faulty, table)),
            explained=math.nan
            if faulty[0].found.shape or faulty[0].found.absent
            else _explained(total, after, rounding),
            total=total,
            others=tuple(found[1:]),
            table=tuple(table),
            notes=tuple(self.notes),
        )

    def _examined(
        self,
        row: ModuleRow,
        clues: Clues,
        departure: Departure | None,
        kept: ReplayResult,
        trace: ReferenceTrace,
        judged: set[str],
    ) -> Finding:
        ours, theirs = self.pairing.reference.get(row.page), self.pairing.candidate.get(row.page)
        cause, evidence = explain(clues, ours, theirs)
        lost = any(one.lost for one in clues.absent)
        inner = below(ours, theirs, row.page, judged) if ours and theirs and not lost else None
        site = row.path
        if inner is not None:
            (page, (cause, evidence)) = inner
            caller = row.path or Note("fault.model")
            called = "fault.calls_it" if kept.calls[page] else "fault.reads_it"
            evidence = (*evidence, Note(called, caller=caller), Note("cause.seen_there", where=row.where))
            site = self.pairing.name(page)
        witness = Witness(
            row=row,
            reference=None if ours is None else weakref.ref(ours),
            candidate=None if theirs is None else weakref.ref(theirs),
            arguments=kept.arguments.get(row.page),
            right=trace.at(row.page, row.call, "exit"),
            cause=cause,
            evidence=evidence,
        )
        return Finding(
            verdict="fault",
            site=site,
            op=str(departure.op) if departure is not None else "",
            cause=cause,
            evidence=evidence,
            local=row.local,
            floor=row.floor,
            ratio=row.ratio,
            write_repro=ReproWriter(witness),
        )

    def _logged(
        self,
        side: ModelRunner,
        modules: dict[str, nn.Module],
        trace: ReferenceTrace,
        calls: frozenset[ModuleCall],
        keep: frozenset[Key] = frozenset(),
    ) -> tuple[ReplayResult, dict[ModuleCall, Any]]:
        """A forced run whose operators inside some calls are written down."""
        if not calls:
            return self.play(side, modules, trace, force=True, keep=keep, judge=False), {}
        logs: list[OpLog] = []

        def within(stack: CallStack) -> OpLog:
            logs.append(OpLog(stack, calls, self.cache))
            return logs[0]

        replayed = self.play(side, modules, trace, force=True, keep=keep, within=within, judge=False)
        return replayed, logs[0].ops

    def _absent(self, trace: ReferenceTrace, forced: ReplayResult) -> list[Absent]:
        """Modules that ran more often in the reference, although the module above them ran as often."""
        found = []
        for page, calls in trace.calls.items():
            seen = forced.calls[page]
            above = _above(page, trace)
            if seen == calls or (above is not None and forced.calls[above] != trace.calls[above]):
                continue
            if page not in self.pairing.names:
                found.append(Absent(page, "structure", Note("fault.candidate_lacks", page=page)))
            elif not seen:
                name = self.pairing.name(page)
                found.append(Absent(page, "skipped", Note("fault.never_called", name=name)))
            else:
                text = Note("fault.called_times", name=self.pairing.name(page), seen=seen, calls=calls)
                found.append(Absent(page, "structure", text, lost=False))
        return found

    @staticmethod
    def _under(page: str, rows: list[ModuleRow]) -> bool:
        return any(not row.page or page.startswith(f"{row.page}.") for row in rows)


def _counted_otherwise(row: ModuleRow, floors: dict[Key, Contrast]) -> bool:
    """Whether it hands on other whole numbers, positions or ids, that no rounding changes.

    Few of them might be a router's tie; but where the output is wrong and nothing else is, they are to blame.
    """
    floor = floors.get(row.place, Contrast())
    return row.sign == "mismatched" and row.place[2] == "entry" and row.ratio > 0 and not floor.mismatched


def _listed(rows: list[ModuleRow]) -> str:
    names = [row.path or Note("fault.model") for row in rows]
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (Note("fault.and_more", count=more) if more > 0 else "")


def _once(keys: list[Key]) -> list[Key]:
    return list(dict.fromkeys(keys))


def _above(page: str, trace: ReferenceTrace) -> str | None:
    """The nearest module above that was called at all."""
    while page:
        page = page.rpartition(".")[0]
        if page in trace.calls:
            return page
    return None


def _alike(faulty: list[ModuleRow], table: list[ModuleRow]) -> tuple[str, ...]:
    """Whether the first is one of many: then what they share is to blame, not one of them alone."""
    kind = faulty[0].kind
    alike, out = ([row for row in rows if row.kind == kind] for rows in (table, faulty))
    if len(out) < MANY or len(out) <= len(alike) / 2:
        return ()
    return (Note("fault.first_of_kind", count=len(out), count2=len(alike), kind=kind),)


def _explained(before: float, after: float, rounding: float) -> float:
    """The share of the error, beyond rounding, that is gone; independent errors add as squares."""
    if math.isnan(before) or math.isnan(after):
        return math.nan
    if not math.isfinite(before):
        return 1.0 if math.isfinite(after) else 0.0
    rounding = min(rounding, after)
    excess, left = before**2 - rounding**2, max(after**2 - rounding**2, 0.0)
    return 1 - math.sqrt(min(left / excess, 1.0)) if excess > 0 else 0.0
