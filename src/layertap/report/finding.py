"""A finding in words first, then the modules, worst first."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from layertap.messages import tr
from layertap.report.diff import STYLES
from layertap.report.screen import plain_text
from layertap.report.table import Column, Lines
from layertap.report.values import number
from layertap.result import jsonable, with_codes

if TYPE_CHECKING:
    from layertap.fault.result import Finding, ModuleRow

SHOWN = 8
NOTES = 5


def finding_text(finding: Finding, *, verbose: bool = False) -> str:
    """As plain text, for `print`."""
    return plain_text(finding_view(finding, verbose=verbose))


def finding_view(finding: Finding, *, verbose: bool = False) -> Group:
    """For a terminal; `verbose` shows all modules and all notes."""
    said = words(finding)
    lines = [Text(line, style=STYLES[finding.verdict] if not i else "") for i, line in enumerate(said)]
    notes = finding.notes if verbose else finding.notes[:NOTES]
    lines += [Text(tr("report.note", text=note), style="yellow") for note in notes]
    left = len(finding.notes) - len(notes)
    if left:
        lines.append(Text(tr("report.more_notes", count=left), style="yellow"))
    return Group(*lines, Text(""), _table(finding, verbose)) if finding.table else Group(*lines)


def finding_dict(finding: Finding) -> dict[str, Any]:
    """The same content for programs; NaN and infinities as strings."""
    found: dict[str, Any] = {"exit_code": finding.exit_code}
    for name in (field.name for field in fields(finding)):
        value = getattr(finding, name)
        if name == "others":
            found[name] = [finding_dict(other) for other in value]
        elif name == "table":
            found[name] = [_row_dict(row) for row in value]
        elif name != "write_repro":
            found[name] = jsonable(value)
    return with_codes(found, finding, "evidence", "notes")


def _row_dict(row: ModuleRow) -> dict[str, Any]:
    plain = {field.name: jsonable(getattr(row, field.name)) for field in fields(row) if field.name != "found"}
    plain["page"] = plain.pop("reference_path")
    plain["found"] = jsonable(row.found.live_dict())
    return with_codes(plain, row, "where")


def _table(finding: Finding, verbose: bool) -> Lines:
    names = (Column(title="module", left=True), Column(title="kind", left=True, spare=3))
    sizes = (
        Column(title=tr("finding.column_total"), spare=1),
        *(Column(title=title) for title in (tr("finding.column_own"), "floor", "ratio")),
    )
    table = Lines([*names, *sizes, Column(title="where", left=True, spare=2)])
    rows = sorted(finding.table, key=lambda row: -row.ratio)
    for row in rows if verbose else rows[:SHOWN]:
        numbers = (number(value, 3) for value in (row.total, row.local, row.floor, row.ratio))
        style = "bold" if row.path == finding.site and finding.verdict == "fault" else ""
        table.add([row.path or tr("report.the_model"), row.kind, *numbers, row.where], style)
    return table


def words(finding: Finding) -> list[str]:
    """The verdict in a sentence, then what belongs to it."""
    said = tr("result.separator").join(finding.evidence)
    if finding.verdict == "inconclusive":
        return [tr("finding.reasons", verdict=tr("result.inconclusive"), reasons=said)]
    if finding.verdict != "fault":
        line = {
            "identical": "finding.identical",
            "noise": "finding.noise",
        }[finding.verdict]
        sizes = {"error": number(finding.total, 3), "floor": number(finding.floor, 3)}
        lines = [tr(line, verdict=tr(f"result.{finding.verdict}"), **sizes)]
        return lines + ([tr("finding.evidence", cause=finding.cause, evidence=said)] if finding.cause else [])
    site = finding.site or tr("finding.model")
    lines = [tr("finding.fault", site=site, cause=finding.cause, evidence=said)]
    if finding.op:
        lines.append(tr("finding.op", op=finding.op))
    sizes = {name: number(getattr(finding, name), 3) for name in ("total", "local", "floor")}
    if math.isnan(finding.explained):
        lines.append(tr("finding.output_error", total=sizes["total"], floor=sizes["floor"]))
    else:
        share = f"{finding.explained:.1%}"
        lines.append(tr("finding.explained", share=share, floor=sizes["floor"], local=sizes["local"]))
    for other in finding.others:
        said = tr("result.separator").join(other.evidence)
        lines.append(tr("finding.also", site=other.site, cause=other.cause, evidence=said))
    return lines
