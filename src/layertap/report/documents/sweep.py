"""A sweep as a document: which modes are one and the same, what each is, and every site of every mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from layertap.messages import tr
from layertap.report.document import Block, Document, Heading, Paragraph, SiteTable, Table, TableRow, Verbatim
from layertap.report.site_table import SiteEntry
from layertap.report.sweep import closing, failures, groups_line, mode_notes, modes_cells, verdict_line
from layertap.report.sweep_charts import depth_chart, matrix_chart
from layertap.report.sweep_layers import answer_lines, layer_lines, token_cells
from layertap.report.values import number
from layertap.sweeping.result import ModeResult, Sweep


def sweep_document(sweep: Sweep, extra: Sequence[Block] = ()) -> Document:
    """The groups are the headline."""
    lines = [verdict_line(sweep), *(line for line, _ in failures(sweep))]
    notes = [*sweep.notes, *mode_notes(sweep)]
    return Document(
        title=f"layertap sweep: {sweep.name or sweep.target}",
        verdict=sweep.verdict,
        headline=groups_line(sweep),
        lines=lines,
        notes=notes,
        blocks=[*_blocks(sweep), *extra],
    )


def _blocks(sweep: Sweep) -> Iterator[Block]:
    titles, cells = modes_cells(sweep)
    rows = [TableRow(cells=row, state=mode.verdict) for row, mode in zip(cells, sweep.modes.values(), strict=True)]
    yield Table(titles=titles, rows=rows, left=(0, 1, 2), caption=tr("sweep.legend"))
    modes = [mode for mode in sweep.modes.values() if any(row.error for row in mode.rows)]
    if modes:
        if len(sweep.matrix) > 1:
            yield matrix_chart(sweep)
        yield depth_chart(sweep)
        yield Heading(text=tr("sweep.depth_title", reference=sweep.reference))
        yield _depth(modes)
    titles, cells = token_cells(sweep)
    if cells:
        positions = next(mode.tokens.positions for mode in sweep.modes.values() if mode.tokens)
        yield Heading(text=tr("sweep.tokens_title", reference=sweep.reference, positions=positions))
        yield Table(titles=titles, rows=[TableRow(cells=row) for row in cells])
    text = "\n".join([*layer_lines(sweep, verbose=True), *answer_lines(sweep)]).strip()
    if text:
        yield Verbatim(text=text)
    for mode in modes:
        yield Heading(text=mode.name)
        yield SiteTable(entries=_entries(mode))
    for line in closing(sweep):
        yield Paragraph(text=line)


def _depth(modes: Sequence[ModeResult]) -> Table:
    errors = {mode.name: {row.site: row.error for row in mode.rows} for mode in modes}
    sites = dict.fromkeys(site for found in errors.values() for site in found)
    rows = [TableRow(cells=[site, *(_error(found, site) for found in errors.values())]) for site in sites]
    return Table(titles=[tr("sweep.col_site"), *errors], rows=rows)


def _error(found: dict[str, float], site: str) -> str:
    error = found.get(site, math.nan)
    return "" if math.isnan(error) else number(error, 3)


def _entries(mode: ModeResult) -> list[SiteEntry]:
    first = mode.first
    return [
        SiteEntry(
            site=row.site,
            path=row.site.partition(":")[0],
            kind=row.kind,
            state=row.verdict,
            error=row.error,
            floor=row.floor,
            ratio=row.ratio,
            title=row.why,
            first=row is first,
        )
        for row in mode.rows
    ]
