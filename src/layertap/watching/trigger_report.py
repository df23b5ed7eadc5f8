"""Where NaN or Inf was born: the first site that has it, and what was still finite right before."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layertap.durable import replacing
from layertap.errors import BadArgument, CorruptRun
from layertap.files import parse_json, read_bytes
from layertap.messages import printable, tr
from layertap.result import Note, jsonable, rebuild
from layertap.site import Record
from layertap.watching.trigger import LOSS, STATE, UPDATE, nonfinite_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The first non-finite values of a training."""

    step: int
    site: str
    """The first site, in order of execution, that has them."""
    kind: str
    where: str
    """`forward`, `backward`, `input`, `weights`, `update` or `loss`."""
    module: str
    """The module in which they were made, as far as the recorded sites tell; the root is the empty string."""
    before: str
    """The last site before it that was finite; empty when there was none."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerReport:
    """Why the ring went to disk."""

    rule: str
    """`nonfinite`, `loss_spike`, `grad_norm`, `asked` or `crash`."""
    reason: str
    step: int
    epoch: int | None
    batch: int | None
    rank: int
    birth: Origin | None
    loss: float | None
    inputs: tuple[dict[str, Any], ...]
    """The batch: name, shape, dtype and fingerprint of each of the model's own inputs in this step."""
    steps: tuple[int, ...]
    """The steps that the ring brought to disk."""
    site: str = ""
    """The site that stands out most; empty where none does, or nothing was recorded."""
    world: int = 1
    """How many ranks train together."""

    def __str__(self) -> str:
        at = tr("trigger.step", step=self.step) + "".join(
            f", {name} {value}" for name, value in (("epoch", self.epoch), ("batch", self.batch)) if value is not None
        )
        if self.rank or self.world > 1:
            at += tr("trigger.and_rank", rank=self.rank)
        lines: list[str] = [Note("trigger.at", rule=self.rule, at=at, reason=self.reason)]
        if self.birth is not None:
            lines.append(self.birth.text)
        lines += [
            Note("trigger.input", x=x["name"] or 0, x2=x["dtype"], x3=x["shape"], x4=x["fingerprint"])
            for x in self.inputs
        ]
        if self.steps:
            span = f"{self.steps[0]}-{self.steps[-1]}" if len(self.steps) > 1 else str(self.steps[0])
            lines.append(Note("trigger.ring_steps", span=span))
        return printable("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        return dict(jsonable(asdict(self)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TriggerReport:
        found = rebuild(cls, data)
        if any(not {"name", "dtype", "shape", "fingerprint"} <= set(given) for given in found.inputs):
            raise ValueError(tr("trigger.input_parts"))
        return found


def find_origin(records: Sequence[Record], first: Record, bad: Callable[[Record], bool]) -> Origin:
    """Reports the first bad record of a step; `records` in order of execution."""
    earlier = [record for record in records if record.order < first.order and not bad(record)]
    before = next((r for r in reversed(earlier) if _same_way(r, first)), None)
    where, module = _origin(first, before)
    name = module or Note("trigger.the_model")
    texts = {
        "input": Note("trigger.batch", what=nonfinite_text(first)),
        "weights": Note("trigger.weights", name=name),
        "update": Note("trigger.update", name=name),
        "loss": Note("trigger.loss_born"),
        "forward": Note("trigger.forward", name=name),
        "backward": Note("trigger.backward", name=name),
    }
    text = tr("trigger.step_text", step=first.step, texts=texts[where])
    if where in ("forward", "backward"):
        text += f"; {nonfinite_text(first)}"
        if before is not None:
            text += Note("trigger.before", before=before.site)
        elif where == "forward" and not any(r.site.role == "input" and not r.site.path for r in records):
            text += Note("trigger.no_batch")
    return Origin(
        step=first.step,
        site=str(first.site),
        kind=first.kind,
        where=where,
        module=module,
        before="" if before is None else str(before.site),
        text=text,
    )


def _origin(first: Record, before: Record | None) -> tuple[str, str]:
    path, role = first.site.path, first.site.role
    if path == LOSS and first.kind == LOSS:
        return "loss", path
    if role == "input":
        # A module's input was made by what ran before it.
        return ("input", path) if not path or before is None else ("forward", before.site.path)
    if role == "output":
        return "forward", path
    if role == "param":
        return ("update" if first.kind.endswith((UPDATE, STATE)) else "weights"), path
    if role == "grad_output" and before is not None:
        # What arrives at a module's output was made by the backward pass of the one after it, the last that was fine.
        return "backward", before.site.path
    return "backward", path


def _same_way(record: Record, first: Record) -> bool:
    """Whether both belong to the forward pass, or both to the backward pass; parameters are in neither."""
    roles = (
        ("grad_output",)
        if first.site.role == "grad_output"
        else (("grad_output", "grad_input", "param_grad") if "grad" in first.site.role else ("output",))
    )
    return record.site.role in roles and (record.kind != LOSS or "grad" not in first.site.role)


def input_marks(records: Sequence[Record]) -> tuple[dict[str, Any], ...]:
    """What identifies a batch: the fingerprints of the model's own inputs."""
    return tuple(
        {
            "name": record.site.leaf,
            "call": record.site.call,
            "batch": record.batch,
            "shape": list(record.shape),
            "dtype": record.dtype,
            "fingerprint": f"{record.fingerprint:016x}",
        }
        for record in records
        if not record.site.path and record.site.role == "input"
    )


def loss_of(records: Sequence[Record]) -> float | None:
    found = [record.statistics.first[0] for record in records if record.kind == LOSS and record.statistics.first]
    return sum(found) / len(found) if found else None


def write_report(folder: Path, report: TriggerReport) -> Path:
    """Puts a report beside the run's records: `triggers/000120-nonfinite.json`, and the rank where it is not 0."""
    place = folder / "triggers"
    place.mkdir(parents=True, exist_ok=True)
    rank = f"-rank{report.rank}" if report.rank else ""
    stem = f"{report.step:06d}-{report.rule}{rank}"
    path = place / f"{stem}.json"
    number = 1
    while path.exists():
        number += 1
        path = place / f"{stem}-{number}.json"
    with replacing(path) as file:
        file.write(f"{json.dumps(report.to_dict(), indent=1, allow_nan=False)}\n".encode())
    return path


def read_reports(folder: Path) -> tuple[TriggerReport, ...]:
    """The trigger reports of a run, by step."""
    found = []
    for path in sorted((folder / "triggers").glob("[0-9]*.json")):
        try:
            data = parse_json(read_bytes(path))
            found.append(TriggerReport.from_dict(data))
        except (OSError, ValueError, BadArgument):
            raise CorruptRun(tr("trigger.damaged", path=path)) from None
    return tuple(found)
