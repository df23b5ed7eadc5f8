"""`assert_matches`: a run against its golden baseline, with the report as the failure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from layertap.compare import Report, diff
from layertap.compare.align.inputs import input_pairs
from layertap.engine import EngineChoice, open_engine
from layertap.errors import RunError
from layertap.messages import tr
from layertap.result import code_of
from layertap.store import Run
from layertap.testing.golden import as_run, golden_bytes, load_golden, write_golden
from layertap.testing.session import GoldenSession, current


def assert_matches(
    run: Any,
    golden: str | os.PathLike[str],
    *,
    floor: Any = None,
    update: bool | None = None,
    engine: EngineChoice = None,
    address: str | None = None,
) -> None:
    """Fails unless a run is what its golden baseline says, bit for bit or to within rounding.

        with layertap.record(model) as rec:
            model(**inputs)
        assert_matches(rec, "tests/golden/model.layertap")

    `run` is a `Run`, a recorder or a path; `floor` one of these, or several: runs of the right model in the arithmetic
    of `run`, which measure what rounding explains. `update` writes the golden in place of comparing; None leaves that
    to `pytest --layertap-update`. `engine` and `address` are as for `diff`; None leaves them to `--layertap-engine`.
    """
    __tracebackhide__ = True
    path = Path(golden)
    found = as_run(run)
    session = current()
    if update or (update is None and session is not None and session.due(path)):
        _update(found, path, session)
        return
    reference = load_golden(path)
    with open_engine(session.workers() if engine is None and session is not None else engine, address) as workers:
        report = _compare(reference, found, floor, workers)
    if report.verdict in ("fault", "inconclusive"):
        # Every layer differs where the inputs do: a table of that would drown the one line that matters.
        shown = replace(report, rows=()) if _other_inputs(report) else report
        raise AssertionError("\n".join([str(shown), *_hints(reference, found, report)]))


def _compare(golden: Run, run: Run, floor: Any = None, engine: EngineChoice = None) -> Report:
    if floor is not None:
        several = isinstance(floor, Iterable) and not isinstance(floor, (str, os.PathLike, Run))
        floor = [as_run(one) for one in (floor if several else [floor])]
    report = diff(golden, run, floor=floor, engine=engine)
    # That a run is its golden bit for bit is what one hopes for, not the sign of a change that did not run.
    notes = tuple(note for note in report.notes if code_of(note) != "comparable.placebo")
    candidate = tr("matching.this_run") if run.path is None else str(run.path)
    return replace(report, reference=golden.name, candidate=candidate, notes=notes, placebo=False)


def _hints(golden: Run, run: Run, report: Report) -> list[str]:
    """What a golden knows besides: how the inputs begin on both sides, and which torch made it."""
    lines = []
    if _other_inputs(report):
        for _, pairs in input_pairs(golden, run):
            for one, other in pairs:
                a, b = one and one.record, other and other.record
                if a and b and a.fingerprint != b.fingerprint:
                    lines.append(tr("matching.begins", site=a.site, begins=_begins(a), begins2=_begins(b)))
    made = golden.info.get("torch"), run.info.get("torch")
    if all(made) and made[0] != made[1]:
        lines.append(tr("matching.torch", made=made[0], made2=made[1]))
    return [*lines[:4], tr("matching.update", name=golden.name)]


_OTHER_INPUTS = ("comparable.different_inputs", "comparable.different_inputs_more")


def _other_inputs(report: Report) -> bool:
    return any(code_of(reason) in _OTHER_INPUTS for reason in report.reasons)


def _begins(record: Any) -> str:
    shown = ", ".join(f"{value:.6g}" for value in record.statistics.first[:6])
    return f"{shown}, …" if record.statistics.count > 6 else shown


def _update(run: Run, path: Path, session: GoldenSession | None) -> None:
    contents = golden_bytes(run)
    before = path.read_bytes() if path.is_file() else None
    if contents != before:
        fate = tr("matching.new") if before is None else _fate(run, path)
        write_golden(contents, path)
        if session is not None:
            session.written[str(path.resolve())] = fate
    elif session is not None:
        session.unchanged.append(str(path.resolve()))


def _fate(run: Run, path: Path) -> str:
    """What is about to be accepted: who updates a golden should not have to look for it."""
    try:
        report = _compare(load_golden(path), run)
    except RunError:
        return tr("matching.damaged")
    if report.first is not None and report.verdict == "fault":
        return tr("matching.was_fault", site=report.first.site)
    return tr("matching.was", verdict=report.verdict)
