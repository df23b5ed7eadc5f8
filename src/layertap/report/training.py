"""Two trainings in words: whether they part, at which step and site, and by how much."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from layertap.compare.training import Parting, TrainingReport
from layertap.messages import printable, tr
from layertap.report.values import number
from layertap.result import Note, equal, jsonable, with_codes


def training_text(report: TrainingReport) -> str:
    """As plain text."""
    sides = {
        "candidate": report.candidate,
        "reference": report.reference,
        "reasons": tr("result.separator").join(report.reasons),
    }
    lines = [tr("report.verdict", verdict=tr(f"result.{report.verdict}"), **sides)]
    if report.first is not None:
        lines.append(tr("training_diff.first_bit", place=place_text(report.first)))
    if report.above is not None and not equal(report.above, report.first):
        lines.append(tr("training_diff.above", place=place_text(report.above)))
    lines.append(tr("training_diff.compared", records=report.records, steps=report.steps))
    return printable("\n".join([*lines, *(tr("report.note", text=note) for note in report.notes)]))


def place_text(parting: Parting) -> str:
    """`step 37, model.layers.2.mlp:grad_output (MLP), relative error ≈ 3e-08, 0.2 × the modelled floor`."""
    parts = [tr("training_diff.step", step=parting.step), f"{parting.site} ({parting.kind})"]
    if parting.epoch is not None:
        parts.insert(1, tr("training_diff.epoch_batch", epoch=parting.epoch, batch=parting.batch))
    if parting.rank:
        parts.append(Note("training_diff.rank", rank=parting.rank))
    if parting.phase != "train":
        parts.append(parting.phase)
    if not math.isnan(parting.error):
        parts.append(tr("training_diff.error", error=number(parting.error, 3)))
    return ", ".join([*parts, parting.why])


def training_dict(report: TrainingReport) -> dict[str, Any]:
    """The same for programs."""

    def place(parting: Parting | None) -> dict[str, Any] | None:
        return None if parting is None else with_codes({**asdict(parting), "site": str(parting.site)}, parting, "why")

    whole = {
        "reference": report.reference,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "reasons": report.reasons,
        "first": place(report.first),
        "above": place(report.above),
        "steps": report.steps,
        "records": report.records,
        "notes": report.notes,
    }
    return with_codes(dict(jsonable(whole)), report, "reasons", "notes")
