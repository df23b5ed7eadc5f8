"""A sweep in words: which modes are one and the same first, then what each is, by depth and by what the model says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.text import Text

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.diff import STYLES
from layertap.report.screen import plain_text
from layertap.report.sweep_layers import answer_lines, layer_lines, token_view
from layertap.report.table import Column, Lines
from layertap.report.values import number, sparkline
from layertap.result import Note, jsonable
from layertap.sweeping.result import ModeResult, Sweep

STANDS_OUT = 3.0
"""An error that grows by more than so many times its usual step is named."""
SITES = 3
MANY = 24
"""More sites than these are thinned in the table by depth."""


def sweep_text(sweep: Sweep, *, verbose: bool = False) -> str:
    """As plain text, for `print`, pytest and logs."""
    return plain_text(sweep_view(sweep, verbose=verbose))


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    """As plain values; NaN and the infinities as strings."""
    modes = {name: {**asdict(mode), "notes": _notes(mode.notes)} for name, mode in sweep.modes.items()}
    answers = [{**asdict(one), "note": None if one.note is None else one.note.to_dict()} for one in sweep.answers]
    own = ("name", "target", "folder", "reference", "verdict", "seconds", "jobs", "disk", "disk_of_one")
    whole = {
        **{name: getattr(sweep, name) for name in own},
        "exit_code": sweep.exit_code,
        "groups": sweep.groups,
        "modes": modes,
        "matrix": {one: {other: dict(errors) for other, errors in row.items()} for one, row in sweep.matrix.items()},
        "answers": answers,
        "notes": _notes(sweep.notes),
    }
    for name, mode in sweep.modes.items():
        ranked = mode.sensitivity
        modes[name]["ignore"] = list(ranked.ignore()) if ranked is not None else []
    return dict(jsonable(whole))


def sweep_view(sweep: Sweep, *, verbose: bool = False) -> Group:
    """For a terminal."""
    style = STYLES[sweep.verdict]
    lines: list[Any] = [Text(groups_line(sweep), style=style), Text(verdict_line(sweep), style=style)]
    for line, logs in failures(sweep):
        lines.append(Text(line, style="bold red"))
        lines += [Text(tr("sweep.log", path=logs[0]), style="dim")] if logs else []
    lines += [Text(tr("report.note_line", note=note), style="yellow") for note in sweep.notes]
    lines += [Text(tr("report.note_line", note=line), style="yellow") for line in mode_notes(sweep)]
    lines += [Text(""), modes_table(sweep), Text(tr("sweep.legend"), style="dim")]
    lines += depth_lines(sweep, verbose=verbose)
    lines += token_view(sweep)
    lines += [Text(line) for line in layer_lines(sweep, verbose=verbose)]
    lines += [Text(line) for line in answer_lines(sweep)]
    lines += [Text(line, style="dim") for line in closing(sweep)]
    return Group(*lines)


def groups_line(sweep: Sweep) -> str:
    """Which modes are one and the same."""
    if not sweep.groups:
        return tr("sweep.none")
    wrong = sweep.reference in sweep.misnamed
    if len(sweep.groups) == 1 and len(sweep.groups[0]) == 1 and not wrong:
        return tr("sweep.only", mode=sweep.groups[0][0])
    if all(len(group) == 1 for group in sweep.groups) and not wrong:
        return tr("sweep.alone", count=len(sweep.groups), modes=", ".join(group[0] for group in sweep.groups))
    parts = []
    for group in sweep.groups:
        text = " = ".join(group)
        if sweep.reference in group and wrong:
            parts.append(tr("sweep.group_not_its_name", group=text))
        elif len(group) == 1:
            parts.append(text)
        elif sweep.reference in group and not set(sweep.without_effect).isdisjoint(group):
            parts.append(tr("sweep.group_reference", group=text))
        else:
            parts.append(tr("sweep.group", group=text))
    return " | ".join(parts)


def verdict_line(sweep: Sweep) -> str:
    counts = []
    modes = [mode for mode in sweep.modes.values() if mode.name != sweep.reference]
    for verdict in ("identical", "noise", "fault", "inconclusive"):
        count = sum(mode.verdict == verdict and not mode.error for mode in modes)
        if count:
            counts.append(tr(f"sweep.count_{verdict}", count=count))
    if sweep.without_effect:
        counts.append(tr("sweep.count_no_effect", count=len(sweep.without_effect)))
    if sweep.failed:
        counts.append(tr("sweep.count_failed", count=len(sweep.failed)))
    word = tr(f"result.{sweep.verdict}")
    return tr(
        "sweep.verdict", verdict=word, count=len(modes), reference=sweep.reference, counts=", ".join(counts) or "-"
    )


def failures(sweep: Sweep) -> list[tuple[str, list[str]]]:
    """Why modes have no run, each reason once; with the files that hold what was printed."""
    found: dict[str, list[ModeResult]] = {}
    for mode in sweep.failed:
        found.setdefault(mode.error, []).append(mode)
    return [
        (
            tr(
                "sweep.failed" if len(modes) == 1 else "sweep.all_failed",
                mode=", ".join(one.name for one in modes),
                error=error,
            ),
            [one.log for one in modes if one.log],
        )
        for error, modes in found.items()
    ]


def mode_notes(sweep: Sweep) -> list[str]:
    """What is to be known of modes, each sentence once, with the modes that it is about."""
    found: dict[str, list[str]] = {}
    for mode in sweep.modes.values():
        for note in mode.notes:
            found.setdefault(note, []).append(mode.name)
    return [f"{', '.join(names)}: {note}" for note, names in found.items()]


_TITLES = ("mode", "verdict", "computes", "first", "last", "ratio", "sqnr", "ideal", "seconds")
_SPARE = {"first": 2, "ideal": 1, "seconds": 4}


def modes_table(sweep: Sweep) -> Lines:
    """One line a mode."""
    titles, rows = modes_cells(sweep)
    left = ("mode", "verdict", "computes")
    columns = [
        Column(title=title, left=one in left, spare=_SPARE.get(one, 0))
        for one, title in zip(_TITLES, titles, strict=True)
    ]
    table = Lines(columns)
    for mode, cells in zip(sweep.modes.values(), rows, strict=True):
        table.add(cells, STYLES[mode.verdict] if mode.verdict != "identical" else "")
    return table


def modes_cells(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """The titles, and the cells of each mode."""
    return [tr(f"sweep.col_{one}") for one in _TITLES], [_cells(mode, sweep) for mode in sweep.modes.values()]


def _cells(mode: ModeResult, sweep: Sweep) -> list[str]:
    verdict = tr(f"table.{mode.verdict}")
    if mode.error:
        verdict = tr("sweep.error")
    elif mode.name == sweep.reference:
        verdict = tr("sweep.reference")
    rows = mode.rows
    first = next((row for row in rows if row.error > 0 or math.isnan(row.error)), None)
    last = rows[-1] if rows else None
    worst = max((row.ratio for row in rows if not math.isnan(row.ratio)), default=math.nan)
    cells = [mode.name, verdict, computes(mode)]
    cells += [number(first.error, 3) if first else "", number(last.error, 3) if last else ""]
    cells += ["" if math.isnan(worst) else number(worst, 3)]
    cells += [
        number(last.sqnr, 4) if last else "",
        "" if last is None or math.isnan(last.ideal_sqnr) else number(last.ideal_sqnr, 4),
    ]
    return [*cells, f"{mode.seconds:.1f}"]


def computes(mode: ModeResult) -> str:
    """The dtypes of a mode's parameters and kernels, and the bits of the grid that its values lie on."""
    floats = [
        dtype for dtype in mode.dtypes if dtype.startswith(("float", "bfloat")) and not dtype.startswith("float8")
    ]
    narrow = [dtype for dtype in mode.dtypes if dtype.startswith("float8")]
    parts = [*floats, *narrow]
    if mode.bits and not narrow:
        parts.append(f"int{mode.bits}")
    return " + ".join(parts)


def depth_lines(sweep: Sweep, *, verbose: bool) -> Iterator[Any]:
    """The errors of all modes, site by site; and where they grow most."""
    modes = [mode for mode in sweep.modes.values() if mode.rows and any(row.error for row in mode.rows)]
    if not modes:
        return
    yield Text("")
    yield Text(tr("sweep.depth_title", reference=sweep.reference), style="bold")
    errors = {mode.name: {row.site: row.error for row in mode.rows} for mode in modes}
    sites = [row.site for row in max((mode.rows for mode in modes), key=len)]
    shown = sites if verbose or len(sites) <= MANY else _thinned(sites)
    table = Lines(
        [Column(title=tr("sweep.col_site"), left=True), *(Column(title=mode.name, spare=1) for mode in modes)]
    )
    for site in shown:
        table.add(
            [
                site,
                *(
                    number(errors[mode.name].get(site, math.nan), 3) if site in errors[mode.name] else ""
                    for mode in modes
                ),
            ]
        )
    bars = [sparkline([row.error for row in mode.rows if not math.isnan(row.error)], 24) for mode in modes]
    if len(sites) > len(shown):
        table.add(["", *bars])
    yield table
    for mode in modes:
        grown = sorted((row for row in mode.rows if row.stands_out > STANDS_OUT), key=lambda row: -row.stands_out)[
            :SITES
        ]
        if grown:
            named = ", ".join(tr("sweep.site_growth", site=row.site, times=number(row.stands_out, 3)) for row in grown)
            yield Text(tr("sweep.stands_out", mode=mode.name, sites=named))


def _thinned(sites: Sequence[str]) -> list[str]:
    places = sorted({round(place * (len(sites) - 1) / (MANY - 1)) for place in range(MANY)})
    return [sites[place] for place in places]


def closing(sweep: Sweep) -> Iterator[str]:
    kept = sum(mode.resumed for mode in sweep.modes.values())
    if kept:
        yield tr("sweep.kept", count=kept, total=len(sweep.modes))
    yield tr(
        "sweep.cost",
        seconds=f"{sweep.seconds:.1f}",
        jobs=sweep.jobs,
        disk=format_bytes(sweep.disk),
        one=format_bytes(sweep.disk_of_one),
    )
    yield tr("sweep.json", folder=sweep.folder)


def _notes(notes: Sequence[Note]) -> list[dict[str, Any]]:
    return [{**note.to_dict(), "text": str(note)} for note in notes]
