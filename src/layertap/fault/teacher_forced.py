"""A candidate that can be forced to the reference: which modules are faulty of what, forward and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import nn

from layertap.fault.cancelling import Ends, Free, Probe, Sorted, role_of, sort_out
from layertap.fault.cause import Absent
from layertap.fault.culprit import Scene, accuse, is_under
from layertap.fault.exchange import exchanged, proven, suspected
from layertap.fault.model_runner import ModelRunner
from layertap.fault.module_differences import below
from layertap.fault.module_rows import Judged, by_module, floors_of, judge_beside, judge_events, seen_at, unlike_others
from layertap.fault.omitted import omitted
from layertap.fault.quantised_kinds import quantised_modules, stand_out, systematic
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.replay_measure import Lowered
from layertap.fault.result import Finding, ModuleRow
from layertap.fault.search import APART, MOST_FORWARDS, FaultSearch
from layertap.fault.unjudged import judged_paths, suspects
from layertap.judge.calibration import LIMIT_OF_MODULES
from layertap.judge.signs import least_of
from layertap.measure.pair.difference import UNMEASURED, Difference
from layertap.result import Note
from layertap.site import Site

CLOSER = 2
"""Runs of each side that a closer look takes: one with the operators written down, one with values put back or, of the
reference, in the candidate's dtype."""
NAMED = 6
"""So many modules are named in one note."""


class TeacherForcedSearch(FaultSearch):
    """The candidate runs teacher-forced, and is judged by what each module does with right values."""

    def finding(self) -> Finding:
        trace, widened = self.preflight()
        self.progress(Note("fault.running_candidate"))
        free = self.free(trace)
        self.progress(Note("fault.measuring_rounding"))
        coarse = quantised_modules(self.pairing) if self.parts is None else {}
        odd = stand_out(coarse)  # their weights are no standard to judge by
        coarse = {path: one for path, one in coarse.items() if path not in odd}
        low, modules = self.lowered(
            self.follow_autocast(trace, free), {path: one.values for path, one in coarse.items()}
        )
        lowered = Lowered() if low is not self.ours else None
        clean = widened
        if lowered is not None:
            clean = [*clean, self.play(low, modules, trace, force=True, lowered=lowered)]
            lowered.filling = False
        nudged = self.play(low, modules, trace, force=True, nudge=self.nudge, lowered=lowered)
        clean = [*clean, nudged]
        self.progress(Note("fault.judging_candidate"))
        if self.parts is not None:
            self.stir(trace)
        like = self.as_free if lowered is None else ()
        forced = self.play(self.theirs, self.pairing.candidate, trace, force=True, lowered=lowered, like=like)
        floors = floors_of(clean)
        judged = judge_events(forced, floors, self.dtype)
        table = by_module(judged, free, self.pairing)
        beside = None
        if lowered is not None:
            moved = {event.site: event.beside for event in nudged.events if event.beside is not None}
            apart = judge_beside(forced, moved, self.dtype)
            beside = {
                row.reference_path: seen_at(row, apart[row.reference_path], self.pairing)
                for row in table
                if row.reference_path in apart
            }
        table, shared = systematic(table, coarse, beside)
        faint = unlike_others(table, beside or {}) | self._proven(table, forced, floors, trace, lowered)
        above = [row for row in table if row.ratio > LIMIT_OF_MODULES or row.reference_path in faint]
        # Inputs nudged everywhere move more than the dtype alone does, which is looked at where something is wrong.
        alone = low is not self.ours and self.spent + 1 + CLOSER < MOST_FORWARDS
        inside = self.parts is not None or any(key.role == "param_grad" for key in trace.slots)
        judge = inside or (bool(above) and not alone)
        skip = frozenset() if inside else self.right_before
        drift = self.play(low, modules, trace, force=False, nudge=self.nudge, judge=judge, skip=skip)
        total, rounding = self.total(trace, free), self.total(trace, drift)
        self.doubt_watching(rounding)
        self._doubt_inputs(forced, floors)
        self._doubt_draws(floors)
        self.notes += [Note("fault.other_form", told=self.told(key)) for key in _once(forced.unforced)]
        faulty, masks = self._makers(above, forced)
        faulty = self._consequential(faulty, judged)
        if faulty and alone:
            drift = self.play(low, modules, trace, force=False, skip=skip)
        seen = Free(trace, free, floors_of([drift]), least_of(self.dtype))
        told = self._sorted(faulty, table, trace, seen, floors, (total, self.total(trace, drift)))
        faulty = told.faults
        if faulty and faulty[0].reference_path not in {mask.reference_path for mask in masks}:
            self._doubt_unjudged(faulty[0], trace, forced)
        absent = [*masks, *self._without_idle(self._absent(trace, forced), faulty)]
        if not forced.events:
            self.doubts.append(Note("fault.nothing_paired"))
        if not faulty and not shared and total > LIMIT_OF_MODULES * max(rounding, least_of(self.dtype)):
            rounding = max(rounding, *self._drifts(trace, low, modules))
            if total > LIMIT_OF_MODULES * max(rounding, least_of(self.dtype)):
                faulty = [row for row in table if _counted_otherwise(row, floors)]
        if self.parts is not None:
            self.doubts = list(dict.fromkeys(doubt for one in self.parts.world.of_all(self.doubts) for doubt in one))
        if self.doubts or not faulty:
            exact = total == 0 and all(one.event.found.equal for one in judged)
            return self._without_fault(table, shared, total, rounding, exact)
        self.progress(Note("fault.looking_closer"))
        standard = lowered.slots if lowered is not None and coarse else {}
        scene = Scene(
            search=self,
            trace=trace,
            forced=forced,
            low=low,
            modules=modules,
            table=table,
            absent=tuple(absent),
            total=total,
            rounding=rounding,
            standard={key: slot for key, slot in standard.items() if key.path in coarse},
            weights=odd,
            reasons=faint,
            probe=told.probe,
            left_out=told.left_out,
        )
        return accuse(faulty, scene)

    def _proven(
        self,
        table: list[ModuleRow],
        forced: ReplayResult,
        floors: dict[Site, Difference],
        trace: ReferenceTrace,
        lowered: Lowered | None,
    ) -> dict[str, Note]:
        """The modules within their floor that hold other numbers than the reference's, and are off because of them."""
        suspects = suspected(self.pairing, forced, floors, least_of(self.dtype), trace.calls, table)
        if not self.any(bool(suspects)):
            return {}
        trial = self.play(
            self.theirs,
            self.pairing.candidate,
            trace,
            force=True,
            lowered=lowered,
            within=lambda stack: exchanged(suspects),
        )
        found = proven(suspects, trial)
        if self.parts is None:
            return found
        return {path: note for one in self.parts.world.of_all(found) for path, note in one.items()}

    def _consequential(self, faulty: list[ModuleRow], judged: list[Judged]) -> list[ModuleRow]:
        """Without those that return another size, where what calls them comes out right all the same, and without
        those around a module in which a gradient gets lost: there is none to be put in its place."""
        lost = [row for row in faulty if row.found.absent]
        faulty = [row for row in faulty if row.found.absent or not _sees_loss(row, lost)]
        exits: dict[str, float] = {}
        for one in judged:
            if one.event.site.role == "output":
                exits[one.event.site.path] = max(exits.get(one.event.site.path, 0.0), one.ratio)
        idle = []
        for row in faulty:
            above = row.reference_path
            while above and row.found.shape and (above := above.rpartition(".")[0]) not in exits and above:
                pass
            if row.found.shape and above != row.reference_path and exits.get(above, math.inf) <= LIMIT_OF_MODULES:
                idle.append(row)
        if idle:
            self.notes.append(Note("fault.other_size", listed=_listed(idle)))
        return [row for row in faulty if row not in idle]

    def _doubt_unjudged(self, row: ModuleRow, trace: ReferenceTrace, forced: ReplayResult) -> None:
        ours, theirs = self.pairing.reference.get(row.reference_path), self.pairing.candidate.get(row.reference_path)
        if ours is None or theirs is None:
            return
        spread = self.parts is not None
        if not spread and below(ours, theirs, row.reference_path, judged_paths(forced)):
            return
        if left := suspects(row, self.pairing, trace, forced, spread=spread):
            names = ", ".join(left[:NAMED]) + (
                Note("fault.and_more", count=len(left) - NAMED) if len(left) > NAMED else ""
            )
            self.doubts.append(
                Note("fault.unjudged", path=row.path or Note("fault.model"), where=row.where, names=names)
            )

    def _sorted(
        self,
        faulty: list[ModuleRow],
        table: list[ModuleRow],
        trace: ReferenceTrace,
        free: Free,
        floors: dict[Site, Difference],
        output: tuple[float, float],
    ) -> Sorted:
        """Which of them are faults; the others cancel, which is noted. `output` is its error and its floor."""
        total, floor = output[0], max(output[1], least_of(self.dtype))

        def probe(ends: frozenset[tuple[str, str]]) -> Probe:
            replayed = self.with_put_back(trace, ends)
            return Probe(ends, replayed, self.total(trace, replayed, skip=next(iter(ends))[0]))

        def hollow(row: ModuleRow) -> bool:
            module = self.pairing.candidate.get(row.reference_path)
            return module is not None and next(module.parameters(), None) is None

        # Ranks are run on other values in between, so that what is stale shows.
        probes = max(MOST_FORWARDS - CLOSER - self.theirs.forwards, 1 if self.parts is not None else 0)
        told = sort_out(faulty, free, total, floor, probe, hollow, probes)
        if told.faults and self.theirs.forwards + CLOSER < MOST_FORWARDS:
            self._take_omitted(told, faulty, table, floors, probe)
        if told.cancelled:
            self.notes.append(Note("fault.cancelled", listed=_listed(told.cancelled)))
        if told.unclear and not told.faults:
            self.doubts.append(Note("fault.rearranged", listed=_listed(told.unclear)))
        return told

    def _take_omitted(
        self,
        told: Sorted,
        faulty: list[ModuleRow],
        table: list[ModuleRow],
        floors: dict[Site, Difference],
        probe: Callable[[Ends], Probe],
    ) -> None:
        """Accuses the module that was left out of a rearrangement in the place of those that were not."""
        found = omitted(told.faults[0], faulty, table, floors, least_of(self.dtype), probe)
        if found is None:
            return
        told.cancelled += [row for row in told.faults if row.reference_path in found.cleared]
        told.faults = [found.row, *(row for row in told.faults if row.reference_path not in found.cleared)]
        like = self.pairing.name(found.like)
        told.left_out[found.row.reference_path] = Note("cause.not_rearranged", like=like)
        told.probe = None

    def _makers(self, faulty: list[ModuleRow], forced: ReplayResult) -> tuple[list[ModuleRow], list[Absent]]:
        """In the place of attention that was given another mask, those who made it; and what to say of them."""
        rows: dict[str, ModuleRow] = {}
        told: dict[str, Absent] = {}
        for row in faulty:
            maker, text = forced.masks.get((row.reference_path, row.call), (None, ""))
            if maker is not None:
                where = Note("where.mask", path=row.path)
                told.setdefault(maker[0], Absent(maker[0], "mask", text))
                row = replace(
                    row, path=self.pairing.name(maker[0]), reference_path=maker[0], call=maker[1], where=where
                )
            rows.setdefault(row.reference_path, row)
        return list(rows.values()), list(told.values())

    def _without_idle(self, absent: list[Absent], faulty: list[ModuleRow]) -> list[Absent]:
        """Those inside modules at fault; the others have no effect, and say little elsewhere."""
        idle = [one for one in absent if not is_under(one.reference_path, faulty)]
        roles: dict[str, list[Absent]] = {}
        for one in idle:
            roles.setdefault(role_of(one.reference_path), []).append(one)
        for alike in roles.values():
            more = Note("fault.and_more", count=len(alike) - 1) if len(alike) > 1 else ""
            self.notes.append(Note("fault.without_effect", cause=alike[0].cause, text=alike[0].text) + more)
        return [
            replace(one, lost=one.lost and role_of(one.reference_path) not in roles)
            for one in absent
            if one not in idle
        ]

    def _drifts(self, trace: ReferenceTrace, low: ModelRunner, modules: dict[str, nn.Module]) -> Iterator[float]:
        """What rounding does to the output in two more runs: where a router flips, one does not show it."""
        for nudge in (None if low is not self.ours else partial(self.nudge, seed=1), partial(self.nudge, seed=2)):
            if self.spent + CLOSER >= MOST_FORWARDS:
                return
            yield self.total(trace, self.play(low, modules, trace, force=False, nudge=nudge))

    def _doubt_inputs(self, forced: ReplayResult, floors: dict[Site, Difference]) -> None:
        for event in forced.events:
            path, call, end, leaf = event.site.path, event.site.call, event.site.role, event.site.leaf
            if event.caller is None and end == "input" and call == 0:
                floor = floors.get(event.site, UNMEASURED)
                apart = event.found.mismatched > floor.mismatched or event.found.nonfinite_mismatch
                if apart or event.found.error > max(floor.error, 4 * least_of(self.dtype)):
                    self.doubts.append(Note("fault.other_inputs", leaf=leaf or path or Note("where.the_input")))

    def _doubt_draws(self, floors: dict[Site, Difference]) -> None:
        if not self.seeded:
            return
        apart = [key for key, floor in floors.items() if floor.error > 0.3 and key.role == "output"]
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
        elif not cause and total > LIMIT_OF_MODULES * max(rounding, least_of(self.dtype)):
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

    def _absent(self, trace: ReferenceTrace, forced: ReplayResult) -> list[Absent]:
        """Modules that ran more often in the reference, although the module above them ran as often."""
        found = []
        for path, calls in trace.calls.items():
            seen = forced.calls[path]
            above = _above(path, trace)
            if seen == calls or (above is not None and forced.calls[above] != trace.calls[above]):
                continue
            if path not in self.paired:
                found.append(Absent(path, "structure", Note("fault.candidate_lacks", page=path)))
            elif not seen:
                name = self.pairing.name(path)
                found.append(Absent(path, "skipped", Note("fault.never_called", name=name)))
            else:
                text = Note("fault.called_times", name=self.pairing.name(path), seen=seen, calls=calls)
                found.append(Absent(path, "structure", text, lost=False))
        return found


def _sees_loss(row: ModuleRow, lost: list[ModuleRow]) -> bool:
    """Whether the gradient of a module is off, and one got lost inside it; or whether it ran again after the loss, when
    an optimizer may have taken a step without that gradient."""
    inside = f"{row.reference_path}." if row.reference_path else ""
    within = any(one.reference_path != row.reference_path and one.reference_path.startswith(inside) for one in lost)
    again = any(one.order < row.order and one.site.call < row.site.call for one in lost)
    return again or (within and row.site.role.startswith("grad"))


def _counted_otherwise(row: ModuleRow, floors: dict[Site, Difference]) -> bool:
    """Whether it hands on other whole numbers, positions or ids, that no rounding changes.

    Few of them might be a router's tie; but where the output is wrong and nothing else is, they are to blame.
    """
    floor = floors.get(row.site, UNMEASURED)
    return row.sign == "mismatched" and row.site.role == "input" and row.ratio > 0 and not floor.mismatched


def _listed(rows: list[ModuleRow]) -> str:
    names = [row.path or Note("fault.model") for row in rows]
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (Note("fault.and_more", count=more) if more > 0 else "")


def _once(keys: list[Site]) -> list[Site]:
    return list(dict.fromkeys(keys))


def _above(path: str, trace: ReferenceTrace) -> str | None:
    """The nearest module above that was called at all."""
    while path:
        path = path.rpartition(".")[0]
        if path in trace.calls:
            return path
    return None
