"""What the site table of a page shows: a comparison, or one run by itself; part by part where it is long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from layertap.compare.columns import column
from layertap.judge.calibration import LIMIT_OF_RUNS
from layertap.messages import tr
from layertap.report.site_entries import placed, row_entry
from layertap.report.site_table import SiteEntry
from layertap.report.values import number
from layertap.site import Record

if TYPE_CHECKING:
    from layertap.compare import Report, Row
    from layertap.store import Run
    from layertap.view.sides import Side


class ComparedSites:
    """The rows of a report at one step, with what one side alone has in its place."""

    columns: Sequence[str] | None = None

    def __init__(self, report: Report, sides: tuple[Side, Side], step: int | None = None) -> None:
        self.report = report
        self._sides = sides
        self._by_site: dict[str, int] | None = None
        self._token: Mapping[int, float] | None = None
        every = np.fromiter(column(report.rows, "step"), np.int64, len(report.rows))
        self.steps = [int(one) for one in np.unique(every)]
        verdicts = np.fromiter((text == "fault" for text in column(report.rows, "verdict")), np.bool_, len(every))
        self._mark = int(np.argmax(verdicts)) if verdicts.any() else -1
        if step not in self.steps:
            step = int(every[self._mark]) if self._mark >= 0 else (self.steps[-1] if self.steps else None)
        self.step = step
        self._rows = np.flatnonzero(every == step) if step is not None else np.empty(0, np.int64)

    @cached_property
    def _merged(self) -> list[tuple[int, SiteEntry | None]]:
        """Places of rows, and between them the entries of what one side alone has."""
        alone = self.report.unmatched
        if not alone or len(alone) + len(self._rows) > 20_000:
            return [(int(row), None) for row in self._rows]
        entries = [self._entry(int(row)) for row in self._rows]
        known = {id(entry): int(row) for entry, row in zip(entries, self._rows, strict=True)}
        ordered = [[str(site) for site in side.run.sites] for side in self._sides]
        merged = _in_order(entries, alone, ordered)
        return [(known.get(id(entry), -1), None if id(entry) in known else entry) for entry in merged]

    def __len__(self) -> int:
        return len(self._merged)

    @cached_property
    def first(self) -> int:
        """The place of the first departure, or -1."""
        return next((place for place, (row, _) in enumerate(self._merged) if row == self._mark >= 0), -1)

    def entries(self, start: int = 0, stop: int | None = None) -> list[SiteEntry]:
        return [entry or self._entry(row) for row, entry in self._merged[start:stop]]

    def sites(self) -> list[str]:
        """The names of all rows, for a filter."""
        names = list(column(self.report.rows, "site"))
        return [entry.site if entry else str(names[row]) for row, entry in self._merged]

    def row(self, site: str) -> Row | None:
        """The row of a site."""
        if self._by_site is None:
            names = list(column(self.report.rows, "site"))
            self._by_site = {str(names[row]): row for row, _ in reversed(self._merged) if row >= 0}
        found = self._by_site.get(site)
        return None if found is None else self.report.rows[found]

    def states(self) -> list[str]:
        if self._token is not None:
            return [entry.state if entry else self._entry(row).state for row, entry in self._merged]
        verdicts = list(column(self.report.rows, "verdict"))
        return [entry.state if entry else verdicts[row] for row, entry in self._merged]

    def row_numbers(self) -> list[int]:
        """The places in the report of the rows at this step."""
        return [int(row) for row in self._rows]

    def at_token(self, errors: Mapping[int, float]) -> ComparedSites:
        """The same sites by the error of one token: row of the report → error."""
        found = copy(self)
        found.__dict__.pop("_merged", None)
        found._token = errors
        return found

    def _entry(self, row: int) -> SiteEntry:
        one = self.report.rows[row]
        entry = row_entry(one, first=row == self._mark)
        if self._token is None:
            return entry
        error = self._token.get(row)
        if error is None:
            return replace(entry, state="none", error=math.nan, floor=math.nan, ratio=math.nan, first=False)
        ratio = error / one.floor if one.floor else (math.inf if error else 0.0)
        # One token scatters more than the whole: only where the site departs may a token of it be called one.
        departs = one.verdict in ("fault", "inconclusive") and not ratio <= LIMIT_OF_RUNS
        state = one.verdict if departs else "identical" if error == 0 else "noise"
        return replace(entry, state=state, error=error, ratio=ratio, estimated=False)


def _in_order(
    entries: list[SiteEntry], alone: Sequence[tuple[str, str]], ordered: Sequence[Sequence[str]]
) -> list[SiteEntry]:
    """Puts what one side alone has behind the site that it followed on that side."""
    found = list(entries)
    left: list[tuple[str, str]] = []
    for side, site in alone:
        order = ordered[0 if side == "reference" else 1]
        before = order[: order.index(site)] if site in order else []
        here = {entry.site: place for place, entry in enumerate(found)}
        # The candidate's own names stand in `kind` where they differ; by name alone is enough for a place.
        place = next((here[name] + 1 for name in reversed(before) if name in here), 0 if site in order else -1)
        if place < 0:
            left.append((side, site))
            continue
        path = site.partition(":")[0].partition("@")[0]
        found.insert(place, SiteEntry(site=site, path=path, state=side))
    return placed(found, left)


class RunSites:
    """One run by itself, at one step: statistics in place of errors, the first departure is the first NaN or Inf."""

    def __init__(self, run: Run, step: int | None = None) -> None:
        self.run = run
        self.columns = tuple(tr(f"view.column_{name}") for name in ("shape", "mean", "std", "absmax", "nonfinite"))
        self.steps = [int(one) for one in run.index.steps()]
        if step not in self.steps:
            step = _telling(run, self.steps)
        self.step = step
        rows = run.index.asked()
        self._rows = rows[run.index.values("step", rows) == step] if len(rows) else rows

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def first(self) -> int:
        if len(self) > 20_000:
            return -1
        entries = self.entries()
        return next((place for place, entry in enumerate(entries) if entry.state == "nonfinite"), -1)

    def entries(self, start: int = 0, stop: int | None = None) -> list[SiteEntry]:
        records = list(self.run.records_at(self._rows[start:stop], sketches=False))
        born = next((place for place, record in enumerate(records) if record.statistics.nonfinite), -1)
        return [_single(record, first=place == born and start == 0) for place, record in enumerate(records)]

    def sites(self) -> list[str]:
        return [str(self.run.index.sites[code]) for code in self.run.index.values("site", self._rows)]

    def states(self) -> list[str]:
        return ["finite"] * len(self)


def _telling(run: Run, steps: Sequence[int]) -> int | None:
    """The step that is shown unasked: the first with NaN or Inf where that is quickly known, else the last."""
    if not steps:
        return None
    if len(steps) == 1 or run.count > 2_000_000:
        return steps[-1]
    table = run.table(["step", "asked", "nan", "pos_inf", "neg_inf"])
    from layertap.store.index import integers_of

    found = {name: integers_of(table.column(name)) for name in table.column_names}
    bad = (found["asked"] != 0) & (found["nan"] + found["pos_inf"] + found["neg_inf"] > 0)
    return int(found["step"][bad].min()) if bad.any() else steps[-1]


def _single(record: Record, *, first: bool) -> SiteEntry:
    stats = record.statistics
    bad = ", ".join(
        f"{count} {name}"
        for count, name in ((stats.nan, "NaN"), (stats.pos_inf, "Inf"), (stats.neg_inf, "-Inf"))
        if count
    )
    return SiteEntry(
        site=str(record.site),
        path=record.site.path,
        kind=record.kind,
        state="nonfinite" if stats.nonfinite else "finite",
        error=math.nan,
        title=f"{record.site} {record.dtype}",
        first=first,
        cells=(
            "×".join(map(str, record.shape)) or "1",
            number(stats.mean, 3),
            number(stats.std, 3),
            number(stats.abs_max, 3),
            bad,
        ),
    )


SiteTable = ComparedSites | RunSites


def sites_dict(site_table: RunSites) -> dict[str, Any]:
    """The JSON form of a run that is compared with nothing."""
    from layertap.report.show import run_rows

    return {"step": site_table.step, "rows": run_rows(site_table.run, step=site_table.step)}
