"""Every mode against every other, at every site: what is bit-identical, and how far the rest is apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from layertap.compare.measuring import measure_pair
from layertap.compare.result import Pair, Row
from layertap.compare.rows import rows_of
from layertap.judge.depth import depth
from layertap.judge.floor import Floor, key_of
from layertap.judge.measured import Measured
from layertap.judge.roundoff import ROUNDOFF
from layertap.result import Note, Verdict, joined
from layertap.site import Record
from layertap.store import Run
from layertap.sweeping.codes import FITS, are_codes, measure_codes
from layertap.sweeping.ideal import decibels, ideal_error
from layertap.sweeping.result import Matrix, SiteRow

Errors = dict[str, dict[str, dict[str, float]]]
LIMIT = 6.0
"""A mode on a grid is within what its bits explain up to so many times the ideal quantiser's error: real ones have
static scales, and several tensors are quantised on the way to a site."""
CODE_BITS = 8
"""Of codes whose mode shows no grid."""
MOST_BITS = 16
STANDS_OUT = 3.0
_SAME = Measured(identical=True, error=0.0, how="exact")


@dataclass(frozen=True, kw_only=True)
class RecordedMode:
    """A mode's run, its records by site."""

    name: str
    run: Run
    records: Mapping[str, Record]
    """By site, in order of execution; what the modes were given is not among them."""
    outputs: Mapping[str, Any]
    """Leaf of the model's output → dtype, shape, fingerprint."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for modes that are bit-identical, at all sites and in the output."""
        sites = tuple((site, *_identity(record)) for site, record in sorted(self.records.items()))
        outputs = tuple((leaf, *map(str, found.values())) for leaf, found in sorted(self.outputs.items()))
        return sites, outputs


def recorded(name: str, folder: Path, outcome: Mapping[str, Any]) -> RecordedMode:
    """Opens a finished mode."""
    run = Run(folder)
    found = sorted((record for record in run.records() if record.asked), key=lambda one: (one.step, one.order))
    records: dict[str, Record] = {}
    for record in found:
        site = str(record.site) if record.step == 0 else f"{record.site} (step {record.step})"
        records.setdefault(site, record)
    return RecordedMode(name=name, run=run, records=records, outputs=outcome.get("outputs") or {})


def matched(modes: Sequence[RecordedMode], reference: str) -> list[RecordedMode]:
    """The modes with the reference's names for leaves that a compiled file calls otherwise: same module and role, as
    many leaves, the same shapes in the same order."""
    ours = next((mode for mode in modes if mode.name == reference), None)
    if ours is None:
        return list(modes)
    leaves = _leaves(ours.records)
    found = []
    for mode in modes:
        names: dict[str, str] = {}
        for place, theirs in _leaves(mode.records).items():
            expected = leaves.get(place, [])
            if set(theirs).isdisjoint(expected) and _shapes(mode, theirs) == _shapes(ours, expected):
                names |= dict(zip(theirs, expected, strict=True))
        records = {names.get(site, site): record for site, record in mode.records.items()}
        found.append(replace(mode, records=records) if names else mode)
    return found


def _leaves(records: Mapping[str, Record]) -> dict[tuple[str, str, int, int], list[str]]:
    found: dict[tuple[str, str, int, int], list[str]] = {}
    for name, record in records.items():
        found.setdefault((record.site.path, record.site.role, record.site.call, record.step), []).append(name)
    return found


def _shapes(mode: RecordedMode, names: Sequence[str]) -> list[tuple[int, ...]]:
    return [mode.records[name].shape for name in names]


def groups_of(modes: Sequence[RecordedMode], reference: str) -> tuple[tuple[str, ...], ...]:
    """Bit-identical modes together: the reference's group first, and the reference first in it; else in order."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for mode in sorted(modes, key=lambda one: one.name != reference):
        found.setdefault(mode.identity, []).append(mode.name)
    return tuple(tuple(names) for names in found.values())


def measure_all(modes: Sequence[RecordedMode], progress: Any = None) -> dict[tuple[str, str], dict[str, Measured]]:
    """Each pair of modes, the earlier one as the reference: site → what one pass over both tensors gives."""
    pairs = list(combinations(modes, 2))
    found = {}
    for done, (one, other) in enumerate(pairs, start=1):
        found[one.name, other.name] = {site: measured for site, _, measured in _measured(one, other)}
        if progress is not None:
            progress(done, len(pairs))
    return found


def _measured(one: RecordedMode, other: RecordedMode) -> Iterator[tuple[str, Pair, Measured]]:
    for site, record in one.records.items():
        if site in other.records:
            pair = Pair(reference=record, candidate=other.records[site], rung="exact")
            same = _identity(record) == _identity(other.records[site])
            # Equal fingerprints of tensors that lie in one file on the disk: nothing is read.
            yield site, pair, _SAME if same else _pair(one.run, other.run, pair)


def _pair(one: Run, other: Run, pair: Pair) -> Measured:
    return (measure_codes if are_codes(pair.reference, pair.candidate) else measure_pair)(one, other, pair)


def matrix_of(modes: Sequence[RecordedMode], measured: Mapping[tuple[str, str], Mapping[str, Measured]]) -> Matrix:
    """The errors both ways: the other way round it is the same difference over the other's norm."""
    errors: Errors = {mode.name: {} for mode in modes}
    by_name = {mode.name: mode for mode in modes}
    for (one, other), sites in measured.items():
        errors[one][other] = {site: found.error for site, found in sites.items()}
        errors[other][one] = {
            site: _turned(found, by_name[one].records[site], by_name[other].records[site])
            for site, found in sites.items()
        }
    return Matrix({one: {other: row[other] for other in errors if other in row} for one, row in errors.items()})


def _turned(found: Measured, one: Record, other: Record) -> float:
    if found.identical or math.isnan(found.error) or _coded(found):
        return found.error
    here, there = one.statistics.l2, other.statistics.l2
    if there == 0:
        return 0.0 if here == 0 else math.inf
    return found.error * here / there if math.isfinite(found.error) else 1.0


def rows_against(
    reference: RecordedMode,
    mode: RecordedMode,
    measured: Mapping[str, Measured],
    *,
    bits: int,
    dtypes: Sequence[str],
    floors: Mapping[Any, Floor],
) -> tuple[Verdict, tuple[SiteRow, ...]]:
    """The mode's rows and verdict. A mode on a grid is judged by what its bits explain, others by rounding."""
    pairs = [
        (Pair(reference=record, candidate=mode.records[site], rung="exact"), measured[site])
        for site, record in reference.records.items()
        if site in measured
    ]
    roundoff = max((ROUNDOFF[dtype] for dtype in dtypes if dtype in ROUNDOFF), default=ROUNDOFF["float32"])
    judged = rows_of(pairs, floors, roundoff)
    rows = [_row((reference, mode), pair, found, row, bits) for (pair, found), row in zip(pairs, judged, strict=True)]
    rows = _standing_out(rows)
    missing = len(reference.records) != len(pairs)  # what the mode has besides is said, and proves nothing
    return _whole(rows, missing, mode, reference), tuple(rows)


def _row(sides: tuple[RecordedMode, RecordedMode], pair: Pair, found: Measured, row: Row, bits: int) -> SiteRow:
    record, other = pair.reference, pair.candidate
    verdict, floor, kind, ratio, why = row.verdict, row.floor, row.floor_kind, row.ratio, row.why
    ideal = math.nan
    coded = _coded(found)
    run = sides[0].run
    if coded and "float" not in record.dtype:
        run, record = sides[1].run, other
    bits = bits or (CODE_BITS if coded else 0)
    if coded and not found.error <= FITS:
        verdict, floor, kind, ratio = "inconclusive", math.nan, "", math.nan
        why = Note("sweep.not_codes", one=pair.reference.dtype, other=other.dtype, error=f"{found.error:.3g}")
    elif 0 < bits <= MOST_BITS and record.kept == "tensor" and "float" in record.dtype and not found.identical:
        error = ideal_error(run[record.site].at(step=record.step).numpy(), bits)
        ideal = decibels(error)
        if verdict != "identical" and found.difference is not None and (coded or error > floor):
            floor, kind = error * (1 + math.sqrt(depth(record))), "ideal"
            ratio = found.error / floor if floor else math.inf
            mismatch = found.difference.nan_mismatch or found.difference.inf_mismatch
            verdict = "fault" if ratio > LIMIT or mismatch or math.isnan(ratio) else "noise"
            why = Note("sweep.by_ideal", ratio=f"{ratio:.3g}", bits=bits)
        if coded:
            why = joined(found.why, why)
    return SiteRow(
        site=str(row.site) if record.step == 0 else f"{row.site} (step {record.step})",
        kind=record.kind,
        order=record.order,
        verdict=verdict,
        error=found.error,
        floor=floor,
        floor_kind=kind,
        ratio=ratio,
        sqnr=decibels(found.error),
        ideal_sqnr=ideal,
        stands_out=math.nan,
        metrics=_metrics(found),
        why=why,
    )


def _coded(found: Measured) -> bool:
    return getattr(found.why, "code", "") == "sweep.codes"


def _metrics(found: Measured) -> dict[str, float]:
    one = found.difference
    if one is None:
        if not found.identical:
            return {}
        zero = ("mse", "mae", "rmse", "relative_mse", "relative_mae", "p50", "p90", "p95", "p99", "max")
        return {**dict.fromkeys(zero, 0.0), "pearson": 1.0, "cosine": 1.0}
    p50, p90, p95, p99 = one.percentiles
    return {
        "mse": one.mse,
        "mae": one.mean_abs,
        "rmse": one.rmse,
        "relative_mse": one.relative_mse,
        "relative_mae": one.relative_mae,
        "pearson": one.pearson,
        "cosine": one.cosine,
        "p50": p50,
        "p90": p90,
        "p95": p95,
        "p99": p99,
        "max": one.max_abs,
    }


def _standing_out(rows: Sequence[SiteRow]) -> list[SiteRow]:
    """Each row's growth of the error against the median growth from site to site."""
    steps = []
    before = 0.0
    for row in rows:
        steps.append(row.error / before if before and math.isfinite(row.error) else math.nan)
        before = row.error if math.isfinite(row.error) and row.error > 0 else before
    known = sorted(step for step in steps if math.isfinite(step) and step > 0)
    usual = known[len(known) // 2] if known else math.nan
    return [replace(row, stands_out=step / usual if usual else math.nan) for row, step in zip(rows, steps, strict=True)]


def _whole(rows: Sequence[SiteRow], missing: bool, mode: RecordedMode, reference: RecordedMode) -> Verdict:
    verdicts = {row.verdict for row in rows}
    if not rows or "inconclusive" in verdicts or missing:
        return "fault" if "fault" in verdicts else "inconclusive"
    for one in ("fault", "noise"):
        if one in verdicts:
            return one
    if mode.outputs != reference.outputs and mode.outputs and reference.outputs:
        return "inconclusive"  # identical as far as it was recorded, and another output all the same
    return "identical"


def floors_from(
    reference: RecordedMode, modes: Sequence[tuple[RecordedMode, Mapping[str, Measured]]]
) -> dict[Any, Floor]:
    """What the reference differs from itself by in another batch or with other threads, at each site."""
    found: dict[Any, Floor] = {}
    for _, measured in modes:
        for site, one in measured.items():
            record = reference.records[site]
            if one.difference is None or not one.error > 0:
                continue
            row = one.difference.row.relative if one.difference.row else one.error
            column = one.difference.column.relative if one.difference.column else one.error
            old = found.get(key_of(record))
            values = (one.error, row, column)
            if old is not None:
                values = (max(one.error, old.error), max(row, old.row), max(column, old.column))
            found[key_of(record)] = Floor(error=values[0], row=values[1], column=values[2], kind="measured")
    return found


def _identity(record: Record) -> tuple[Any, ...]:
    return record.fingerprint, record.dtype, record.shape
