"""From two models to one culprit: preflight, the held run, floors, judgement, and then why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from layertap.capture.schedule import parse_bytes
from layertap.errors import BadArgument
from layertap.fault.book import Book, Key, Place, Played
from layertap.fault.contrast import Contrast, contrast
from layertap.fault.drill import Departure, OpLog, depart
from layertap.fault.judge import LIMIT, by_module, floors_of, judge_events, least_of, systematic
from layertap.fault.outputs import output_error, same, size_of
from layertap.fault.pairing import Mapped, Pairing
from layertap.fault.replay import graft, parameter_names, play, write_down
from layertap.fault.repro import Witness, writer
from layertap.fault.result import Finding, ModuleRow
from layertap.fault.rounding import lowered, one_ulp
from layertap.fault.shelf import Shelf, describe
from layertap.fault.side import Inputs, Side
from layertap.fault.watchers import Stage
from layertap.fault.why import Clues, explain

CLOSELY = 4
"""So many guilty modules are looked into; the others are named."""

Progress = Callable[[str], None]


def find_fault(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Inputs,
    *,
    mapping: Mapped | None = None,
    budget: int | str = "8GiB",
    progress: Progress | None = None,
) -> Finding:
    """Finds the first module of the candidate that computes something else than the reference's, beyond rounding.

    `inputs` are keywords, positional arguments, or a function that runs a model: then gradients that it makes are
    judged too. `mapping` renames the candidate's modules to the reference's ({regex: replacement}, or a file). `budget`
    bounds the memory for the reference's tensors; beyond it they go to disk.
    """
    reference, candidate = _model(reference, "reference"), _model(candidate, "candidate")
    shelf = Shelf(parse_bytes(budget))
    with _left_alone(Side(reference, inputs), Side(candidate, inputs)) as (ours, theirs):
        try:
            search = _Search(ours, theirs, Pairing(reference, candidate, mapping), shelf, progress or _silent)
            return replace(
                search.finding(),
                forwards={"reference": search.spent, "candidate": theirs.forwards},
                memory=describe(shelf),
            )
        finally:
            shelf.close()


class _Search:
    """The steps of one search, and what they share."""

    def __init__(self, ours: Side, theirs: Side, pairing: Pairing, shelf: Shelf, progress: Progress) -> None:
        self._ours, self._theirs, self._pairing, self._shelf = ours, theirs, pairing, shelf
        self._progress = progress
        self._names = {page: parameter_names(module) for page, module in pairing.reference.items()}
        self._low: Side | None = None
        self._doubts: list[str] = []
        self._notes: list[str] = list(pairing.notes)
        self._seeded = False

    @property
    def spent(self) -> int:
        """Forward passes of the reference, in either dtype."""
        low = self._low
        return self._ours.forwards + (low.forwards if low is not None and low is not self._ours else 0)

    def finding(self) -> Finding:
        book, widened = self._preflight()
        self._progress("running the candidate")
        free = self._free(book)
        held = self._play(self._theirs, self._pairing.candidate, book, hold=True)
        self._progress("measuring what rounding does")
        low, modules = self._lowered()
        clean = widened + [
            self._play(low, modules, book, hold=True, nudge=nudge)
            for nudge in ((one_ulp,) if low is self._ours else (None, one_ulp))
        ]
        drift = self._play(low, modules, book, hold=False, nudge=one_ulp)
        floors = floors_of(clean)
        total, rounding = self._total(book, free), self._total(book, drift)
        judged = judge_events(held, floors, self._dtype)
        table, shared = systematic(by_module(judged, free, self._pairing))
        self._doubt_inputs(held, floors)
        self._doubt_draws(floors)
        self._notes += [f"differs in form, not forced, not judged: {self._told(key)}" for key in _once(held.unforced)]
        guilty = [row for row in table if row.ratio > LIMIT]
        absent = self._absent(book, held)
        self._notes += [f"without effect: {text}" for page, text in absent if not self._under(page, guilty)]
        if not held.events:
            self._doubts.append(
                "no module of the candidate could be paired with one that ran in the reference; give mapping="
            )
        if self._doubts or not guilty:
            exact = total == 0 and all(one.event.found.exact for one in judged)
            return self._innocent(table, shared, total, rounding, exact)
        self._progress("looking into what stands out")
        return self._guilty(guilty, table, book, absent, total, rounding, low, modules)

    # ---- before anything is judged

    def _preflight(self) -> tuple[Book, list[Played]]:
        """The book, and clean runs that widen the floor where the reference does not repeat itself."""
        self._progress("running the reference")
        bare = self._ours.run()
        self._seeded = self._ours.draws
        book = write_down(self._ours, self._pairing.reference, self._shelf, self._seeded)
        if self._seeded:
            self._notes.append("the model draws random numbers: both sides were seeded alike, module by module")
        elif not same(bare, book.output):
            if same(bare, self._ours.run()):
                self._doubts.append("the reference computes something else while it is watched")
            else:
                self._notes.append("the reference does not repeat itself: the floor is widened by what it does then")
        else:
            return book, []
        again = [self._play(self._ours, self._pairing.reference, book, hold=True) for _ in range(2)]
        if self._seeded and any(not event.found.exact for event in again[0].events):
            self._notes.append("the reference does not repeat itself, even when seeded: the floor is widened by that")
        return book, again

    def _free(self, book: Book) -> Played:
        bare = None if self._seeded else self._theirs.run()
        free = self._play(self._theirs, self._pairing.candidate, book, hold=False)
        if bare is not None and not same(bare, free.output):
            again = self._theirs.run()
            if same(bare, again):
                self._doubts.append("the candidate computes something else while it is watched")
            else:
                self._notes.append("the candidate does not repeat itself")
        return free

    def _doubt_inputs(self, held: Played, floors: dict[Key, Contrast]) -> None:
        for event in held.events:
            page, call, end, leaf = event.key
            if event.caller is None and end == "entry" and call == 0:
                floor = floors.get(event.key, Contrast())
                apart = event.found.mismatched > floor.mismatched or event.found.nonfinite
                if apart or event.found.error > max(floor.error, 4 * least_of(self._dtype)):
                    self._doubts.append(f"the two sides were given different inputs: {leaf or page or 'the input'}")

    def _doubt_draws(self, floors: dict[Key, Contrast]) -> None:
        if not self._seeded:
            return
        apart = [key for key, floor in floors.items() if floor.error > 0.3 and key[2] == "exit"]
        if apart:
            self._doubts.append(
                f"random numbers differ between the two sides ({self._told(apart[0])}): use eval() or one dtype"
            )

    # ---- verdicts

    def _innocent(
        self, table: list[ModuleRow], shared: tuple[str, ...], total: float, rounding: float, exact: bool
    ) -> Finding:
        cause, evidence = _of_all(shared, self._theirs.model)
        verdict = "inconclusive" if self._doubts else "identical" if exact else "noise"
        if exact and not self._doubts:
            same = (
                "are the same object" if self._ours.model is self._theirs.model else "compute the same bits everywhere"
            )
            self._notes.append(f"reference and candidate {same}: if you changed something, it did not run")
        elif not cause and total > LIMIT * max(rounding, least_of(self._dtype)):
            verdict = "inconclusive"
            times = f"{total / max(rounding, 1e-300):.3g} × what rounding explains"
            self._doubts.append(f"the output's error is {times}, and no module is out of line")
        return Finding(
            verdict=verdict,  # type: ignore[arg-type]
            cause=cause,
            evidence=(*self._doubts, *evidence),
            total=total,
            floor=rounding,
            table=tuple(table),
            notes=tuple(self._notes),
        )

    def _guilty(
        self,
        guilty: list[ModuleRow],
        table: list[ModuleRow],
        book: Book,
        absent: list[tuple[str, str]],
        total: float,
        rounding: float,
        low: Side,
        modules: dict[str, nn.Module],
    ) -> Finding:
        closely = guilty[:CLOSELY]
        keep = frozenset(key for row in closely for key in (row.place, (row.page, row.call, "exit", "")))
        calls = frozenset((row.page, row.call) for row in closely if not row.place[2].endswith(("grad", "input")))
        kept, theirs = self._logged(self._theirs, self._pairing.candidate, book, calls, keep)
        _, ours = self._logged(self._ours, self._pairing.reference, book, calls)
        floor = ours if low is self._ours else self._logged(low, modules, book, calls)[1]
        least = least_of(self._dtype)
        found = []
        for row in closely:
            place = (row.page, row.call)
            departure = depart(ours[place], theirs[place], floor[place], least) if place in calls else None
            below = tuple(text for page, text in absent if self._under(page, [row]))
            clues = Clues(row=row, book=book, found=kept.kept.get(row.place), departure=departure, absent=below)
            found.append(self._accused(row, clues, departure, kept, book))
        found += [
            Finding(verdict="fault", site=row.path, cause="unknown", local=row.local, floor=row.floor, ratio=row.ratio)
            for row in guilty[CLOSELY:]
        ]
        first = found[0]
        patched = graft(self._theirs, self._pairing.candidate, book, self._names, {guilty[0].page}, self._seeded)
        after = max(output_error(book.output, patched), self._grad_error(book, skip=guilty[0].page))
        return replace(
            first,
            explained=_explained(total, after, rounding),
            total=total,
            others=tuple(found[1:]),
            table=tuple(table),
            notes=tuple(self._notes),
        )

    def _accused(self, row: ModuleRow, clues: Clues, departure: Departure | None, kept: Played, book: Book) -> Finding:
        ours, theirs = self._pairing.reference.get(row.page), self._pairing.candidate.get(row.page)
        cause, evidence = explain(clues, ours, theirs)
        witness = Witness(
            row=row,
            reference=ours,
            candidate=theirs,
            arguments=kept.arguments.get(row.page),
            right=book.at(row.page, row.call, "exit"),
            cause=cause,
            evidence=evidence,
        )
        return Finding(
            verdict="fault",
            site=row.path,
            op=str(departure.op) if departure is not None else "",
            cause=cause,
            evidence=evidence,
            local=row.local,
            floor=row.floor,
            ratio=row.ratio,
            write_repro=writer(witness),
        )

    # ---- runs

    def _play(self, side: Side, modules: dict[str, nn.Module], book: Book, **how: Any) -> Played:
        return play(side, modules, book, self._names, seeded=self._seeded, **how)

    def _logged(
        self,
        side: Side,
        modules: dict[str, nn.Module],
        book: Book,
        calls: frozenset[Place],
        keep: frozenset[Key] = frozenset(),
    ) -> tuple[Played, dict[Place, Any]]:
        """A held run whose operators inside some calls are written down."""
        logs: list[OpLog] = []

        def within(stage: Stage) -> OpLog:
            logs.append(OpLog(stage, calls, self._shelf))
            return logs[0]

        played = self._play(side, modules, book, hold=True, keep=keep, within=within)
        return played, logs[0].ops

    def _lowered(self) -> tuple[Side, dict[str, nn.Module]]:
        """The reference in the candidate's dtype and on its device: what honest arithmetic there gives."""
        ours, theirs = self._ours, self._theirs
        if theirs.dtype in (ours.dtype, None) and theirs.device == ours.device:
            self._low = ours
            return ours, self._pairing.reference
        model = lowered(ours.model, self._pairing, theirs)
        if model is None:
            self._notes.append("the reference cannot be copied: floors from nudged inputs alone")
            self._low = ours
            return ours, self._pairing.reference
        self._low = ours.like(model)
        return self._low, dict(model.named_modules())

    @property
    def _dtype(self) -> str:
        return str(self._theirs.dtype or torch.float32).removeprefix("torch.")

    def _total(self, book: Book, played: Played) -> float:
        grads = [event.found for event in played.events if event.key[2] == "param_grad"]
        return max([output_error(book.output, played.output), *map(size_of, grads)])

    def _grad_error(self, book: Book, skip: str) -> float:
        worst = 0.0
        for (page, _, end, name), slot in book.slots.items():
            module = self._pairing.candidate.get(page)
            if end != "param_grad" or module is None or page == skip:
                continue
            grad = getattr(module.get_parameter(name), "grad", None)
            found = contrast(slot.get(), grad) if grad is not None else None
            worst = max(worst, size_of(found)) if found is not None else worst
        return worst

    # ---- names

    def _told(self, key: Key) -> str:
        page, call, end, leaf = key
        return (
            f"{self._pairing.name(page) or 'the model'}:{end}"
            + (f".{leaf}" if leaf else "")
            + (f"@{call}" if call else "")
        )

    def _absent(self, book: Book, held: Played) -> list[tuple[str, str]]:
        """Modules that ran more often in the reference, although the module above them ran as often."""
        found = []
        for page, calls in book.calls.items():
            seen = held.calls[page]
            above = _above(page, book)
            if seen == calls or (above is not None and held.calls[above] != book.calls[above]):
                continue
            if page not in self._pairing.names:
                found.append((page, f"structure: the candidate has no {page}"))
            elif not seen:
                found.append((page, f"skipped: {self._pairing.name(page)} is never called, in the reference it is"))
            else:
                found.append(
                    (page, f"structure: {self._pairing.name(page)} is called {seen} ×, in the reference {calls} ×")
                )
        return found

    @staticmethod
    def _under(page: str, rows: list[ModuleRow]) -> bool:
        return any(not row.page or page.startswith(f"{row.page}.") for row in rows)


@contextmanager
def _left_alone(ours: Side, theirs: Side) -> Iterator[tuple[Side, Side]]:
    try:
        yield ours, theirs
    finally:
        ours.leave()
        theirs.leave()


def _model(given: Any, side: str) -> nn.Module:
    model = getattr(given, "model", given) if not isinstance(given, nn.Module) else given
    if not isinstance(model, nn.Module):
        raise BadArgument(f"the {side} is a {type(given).__name__}; expected an nn.Module or a target that holds one")
    return model


def _silent(text: str) -> None:
    """Says nothing."""


def _once(keys: list[Key]) -> list[Key]:
    return list(dict.fromkeys(keys))


def _above(page: str, book: Book) -> str | None:
    """The nearest module above that was called at all."""
    while page:
        page = page.rpartition(".")[0]
        if page in book.calls:
            return page
    return None


def _of_all(shared: tuple[str, ...], candidate: nn.Module) -> tuple[str, tuple[str, ...]]:
    """What most modules of some kinds do alike: quantised, or computed in lower precision than they say."""
    if not shared:
        return "", ()
    quantised = any(type(p) not in (torch.Tensor, nn.Parameter) for p in candidate.parameters())
    what = "quantization" if quantised else "precision"
    return what, (f"most modules of kind {', '.join(shared)} are above the floor alike: {what}, not one fault",)


def _explained(before: float, after: float, rounding: float) -> float:
    """The share of the error, beyond rounding, that is gone; independent errors add as squares."""
    if not math.isfinite(before):
        return 1.0 if math.isfinite(after) else 0.0
    rounding = min(rounding, after)
    excess, left = before**2 - rounding**2, max(after**2 - rounding**2, 0.0)
    return 1 - math.sqrt(min(left / excess, 1.0)) if excess > 0 else 0.0
