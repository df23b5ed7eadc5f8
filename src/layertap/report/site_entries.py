"""What a comparison, or a finding, shows in a site table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from layertap.report.diff import pair_name
from layertap.report.site_table import SiteEntry
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.compare.result import Report, Row
    from layertap.fault.result import Finding, ModuleRow


def report_entries(report: Report, rows: Iterable[Row] | None = None) -> list[SiteEntry]:
    """A row for each pair, and in their places the sites that only one side has."""
    first = report.first
    mark = None if first is None else (first.step, first.order, str(first.site))
    entries = [
        row_entry(row, first=(row.step, row.order, str(row.site)) == mark)
        for row in (report.rows if rows is None else rows)
    ]
    return placed(entries, report.unmatched)


def row_entry(row: Row, *, first: bool) -> SiteEntry:
    """A row of a comparison; where the candidate's site has another name, that is beside the class."""
    return SiteEntry(
        site=str(row.site),
        path=row.site.path,
        kind=row.kind if row.site == row.candidate_site else f"{row.kind} ~ {row.candidate_site}".strip(),
        state=row.verdict,
        error=row.error,
        floor=row.floor,
        ratio=row.ratio,
        estimated=row.estimated,
        title=f"{pair_name(row)}: {row.why}",
        first=first,
    )


def finding_entries(finding: Finding) -> list[SiteEntry]:
    """A row for each module: the error of its value, and its own."""
    blamed = {one.site for one in (finding, *finding.others)} if finding.verdict == "fault" else set()
    rows = sorted(finding.table, key=lambda row: row.order)
    return [
        SiteEntry(
            site=row.path or ":output",
            path=row.path,
            kind=row.kind,
            state=finding_state(row, blamed),
            error=row.total,
            own=row.local,
            floor=row.floor,
            ratio=row.ratio,
            title=row.where,
            first=finding.verdict == "fault" and row.path == finding.site,
        )
        for row in rows
    ]


def finding_state(row: ModuleRow, blamed: Collection[str]) -> str:
    """What a module's row is called among the verdicts; `blamed` are the paths of the modules at fault."""
    if row.path in blamed:
        return "fault"
    # Of a compiled model the total is all there is: what is above the floor may come from further up.
    if math.isnan(row.local) and row.total > row.floor:
        return "inconclusive"
    return "noise" if row.total or row.local else "identical"


def placed(entries: Sequence[SiteEntry], unmatched: Iterable[tuple[str, str]]) -> list[SiteEntry]:
    """The entries with one more for each (side, site) that was recorded on that side alone.

    Such a site comes after the last entry of the nearest module: that with the longest path in common.
    """
    found = list(entries)
    for side, site in unmatched:
        path = _path(site)
        one = SiteEntry(site=site, path=path, state=side)
        found.insert(_place(found, path), one)
    return found


def _place(entries: Sequence[SiteEntry], path: str) -> int:
    parts = path.split(".")
    best, place = 0, len(entries)
    for number, entry in enumerate(entries):
        shared = _shared(parts, entry.path.split("."))
        if shared and shared >= best:
            best, place = shared, number + 1
    return place


def _shared(one: Sequence[str], two: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _path(site: str) -> str:
    try:
        return Site.parse(site).path
    except ValueError:
        return site
