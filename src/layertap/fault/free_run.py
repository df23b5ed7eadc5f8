"""Models that cannot be forced: compiled ones, and files of compilers. What is seen of them is the total error.

Inside a compiled graph nothing can be exchanged, so an error travels, and the first module that shows it need not be
the one that made it. What torch.compile was applied to is therefore tried uncompiled first, and forced.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from layertap.artefact import artefact_of
from layertap.capture import record
from layertap.capture.compiled import is_compiled
from layertap.capture.info import computes_of
from layertap.errors import NothingCaptured
from layertap.fault.module_differences import weights_apart
from layertap.fault.module_rows import floors_of
from layertap.fault.pairing import Pairing, clean_path
from layertap.fault.reference_trace import Event, ReferenceTrace, ReplayResult
from layertap.fault.result import Finding, ModuleRow
from layertap.fault.rounding import lowered, one_ulp
from layertap.fault.search import APART, FaultSearch
from layertap.judge.calibration import LIMIT_OF_MODULES, PER_LAYER
from layertap.judge.roundoff import ROUNDOFF
from layertap.judge.signs import least_of, ratio_of
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import UNMEASURED, Concentration, Difference
from layertap.result import Note, Verdict
from layertap.site import Site


def can_be_forced(model: nn.Module) -> bool:
    """Whether its modules are called by Python, one by one."""
    return not is_compiled(model) and artefact_of(model) is None


def eagerly() -> Any:
    """A context in which what torch.compile was applied to runs as it was written."""
    return torch.compiler.set_stance("force_eager")


class FreeRunSearch(FaultSearch):
    """The candidate runs as it is; each module's output is laid beside the reference's."""

    def finding(self) -> Finding:
        trace, widened = self.preflight()
        self.progress(Note("fault.running_candidate"))
        seen = self._watch(trace)
        self.progress(Note("fault.measuring_rounding"))
        low, modules = self.lowered()
        drifts = [self.play(low, modules, trace, force=False, nudge=nudge) for nudge in (None, one_ulp)]
        total, rounding = self.total(trace, seen), max(self.total(trace, drift) for drift in drifts)
        self.doubt_watching(rounding)
        table = judge_totals(seen, floors_of([*widened, *drifts]), self.pairing, self.dtype, rounding)
        faulty = [row for row in table if row.ratio > LIMIT_OF_MODULES]
        self.notes.append(Note("fault.compiled"))
        if not seen.events:
            self.notes.append(Note("fault.nothing_inside"))
        if self.doubts:
            return self._finding("inconclusive", table, total, rounding, evidence=tuple(self.doubts))
        if total <= LIMIT_OF_MODULES * max(rounding, least_of(self.dtype)) and not faulty:
            exact = total == 0 and all(event.found.equal for event in seen.events)
            return self._finding("identical" if exact else "noise", table, total, rounding)
        site = faulty[0].path if faulty else ""
        said = self._said()
        if said:
            stated = Note("fault.runtime_says", said=said)
            dtype = getattr(torch, said)
            if dtype.is_floating_point:
                beyond, reach, _ = self._in_dtype(dtype, seen, trace)
            else:
                reach = PER_LAYER * ROUNDOFF[said] * math.sqrt(1 + len(table))
                # What is cut off at the ends of a range has a direction, which rounding of floats has not.
                line = _within(reach)
                beyond = judge_totals(seen, {event.site: line for event in seen.events}, self.pairing, said, reach)
            faulty = [row for row in beyond if row.ratio > LIMIT_OF_MODULES]
            if not faulty and total <= LIMIT_OF_MODULES * max(reach, least_of(said)):
                why = (stated, Note("fault.no_larger", dtype=self.dtype))
                if not dtype.is_floating_point:  # a file of integers does not hide it
                    return self._finding("noise", beyond, total, reach, cause="quantization", evidence=why[:1])
                return self._finding("fault", table, total, rounding, site=site, cause="precision", evidence=why)
            self.notes.append(Note("fault.precision_taken", why=stated))
            table, rounding = beyond, max(rounding, reach)
        coarse = "" if said else self._coarser(seen, trace, total)
        if coarse:
            text = Note("fault.coarse", coarse=coarse, dtype=self.dtype)
            return self._finding("fault", table, total, rounding, site=site, cause="precision", evidence=(text,))
        if not faulty:
            further = Note("fault.output_off")
            self.doubts.append(APART if math.isnan(total) else further)
            return self._finding("inconclusive", table, total, rounding, evidence=tuple(self.doubts))
        row = faulty[0]
        cause = "nonfinite" if row.found.nonfinite_mismatch else "structure" if row.found.shape else "unknown"
        first = Note("fault.first_above", total=row.total)
        ours, theirs = self.pairing.reference[row.reference_path], self.pairing.candidate[row.reference_path]
        differs = weights_apart(ours, theirs, row.reference_path, set(trace.calls))
        cause, evidence = (cause, ()) if differs is None else differs
        return self._finding(
            "fault", table, total, rounding, site=row.path, cause=cause, evidence=(*evidence, first), ratio=row.ratio
        )

    def _finding(self, verdict: Verdict, table: list[ModuleRow], total: float, rounding: float, **more: Any) -> Finding:
        stated = {"table": tuple(table), "notes": tuple(self.notes), "floor": rounding, **more}
        return Finding(verdict=verdict, total=total, local=math.nan, explained=math.nan, **stated)

    def _watch(self, trace: ReferenceTrace) -> ReplayResult:
        """A free run, recorded: every module's output that can be seen, against the trace."""
        replayed = ReplayResult()
        paths = {".".join(clean_path(path)): reference_path for reference_path, path in self.pairing.names.items()}
        with TemporaryDirectory(prefix="layertap-") as folder:
            try:
                with record(self.theirs.model, Path(folder) / "run", sites="**", keep="tensor") as recording:
                    replayed.output = self.theirs.run()
            except NothingCaptured:
                return replayed
            run = recording.run
            for site in run.sites:
                reference_path = paths.get(site.path)
                slot = (
                    trace.slots.get(replace(site, path=reference_path, role="output"))
                    if reference_path is not None
                    else None
                )
                found = compare_tensors(slot.get(), run[site].tensor()) if slot is not None else None
                if reference_path is not None and found is not None:
                    key = replace(site, path=reference_path, role="output")
                    replayed.events.append(Event(site=key, caller=None, found=found))
        return replayed

    def _said(self) -> str:
        """The coarsest dtype in which the candidate's runtime says that it computes, if coarser than the parameters."""
        stated = set(computes_of(self.theirs.model)) & set(ROUNDOFF)
        said = max(stated, key=lambda name: ROUNDOFF[name], default="")
        return said if said and ROUNDOFF[said] > ROUNDOFF.get(self.dtype, 0.0) else ""

    def _coarser(self, seen: ReplayResult, trace: ReferenceTrace, total: float) -> str:
        """A dtype in which the reference is as far off everywhere as the candidate is."""
        for dtype in (torch.bfloat16, torch.float16):
            if dtype == self.theirs.dtype:
                continue
            rows, reach, measured = self._in_dtype(dtype, seen, trace)
            alike = [row.total / row.floor for row in rows if row.floor > 0 and row.total > 0]
            within = all(row.ratio <= LIMIT_OF_MODULES for row in rows) and total <= LIMIT_OF_MODULES * reach
            if measured and within and alike and statistics.median(alike) > 0.2:
                return str(dtype).removeprefix("torch.")
        return ""

    def _in_dtype(
        self, dtype: torch.dtype, seen: ReplayResult, trace: ReferenceTrace
    ) -> tuple[list[ModuleRow], float, bool]:
        """What was seen against the reference in another dtype: the rows, what that does to the output, and whether
        the reference could be copied to measure it; else one rounding of the dtype is the floor of all."""
        name = str(dtype).removeprefix("torch.")
        model = lowered(self.ours.model, self.pairing, self.theirs, dtype)
        if model is None:
            return judge_totals(seen, {}, self.pairing, name, least_of(name)), least_of(name), False
        side = self.ours.like(model)
        drift = self.play(side, dict(model.named_modules()), trace, force=False)
        self.more += side.forwards
        reach = self.total(trace, drift)
        return judge_totals(seen, floors_of([drift]), self.pairing, name, reach), reach, True


def judge_totals(
    replayed: ReplayResult, floors: Mapping[Site, Difference], pairing: Pairing, dtype: str, reach: float
) -> list[ModuleRow]:
    """Each module's total error against what rounding, carried through the same model, does there.

    `reach` is what rounding does to the model's output: a module's own floor may be small by luck.
    """
    rows: dict[str, ModuleRow] = {}
    for order, event in enumerate(replayed.events):
        path, leaf = event.site.path, event.site.leaf
        floor = floors.get(event.site, UNMEASURED)
        ratio, sign = ratio_of(event.found, floor, max(least_of(dtype), reach / 4))
        row = ModuleRow(
            path=pairing.name(path),
            reference_path=path,
            kind=type(pairing.candidate[path]).__name__,
            order=order,
            where=Note("where.leaf", where=Note("where.output"), leaf=leaf) if leaf else Note("where.output"),
            total=event.found.error,
            entry=math.nan,
            exit=math.nan,
            local=math.nan,
            floor=max(floor.error, least_of(dtype)),
            ratio=ratio,
            sign=sign,
            site=event.site,
            call=event.site.call,
            found=event.found,
        )
        if path not in rows or (ratio > LIMIT_OF_MODULES >= rows[path].ratio):
            rows[path] = row
    return list(rows.values())


def _within(reach: float) -> Difference:
    """The floor under values of a type whose roundings add up to `reach`."""
    line = Concentration(index=(), share=math.nan, relative=2 * reach)
    return Difference(relative_l2=reach / 4, slope=reach / 4, offset=reach / 4, row=line, column=line)
