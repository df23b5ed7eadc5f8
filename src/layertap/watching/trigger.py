"""When the ring goes to disk: NaN or Inf is born, the loss jumps, the gradients explode, or someone asks.

The rules look at records, so at numbers that have come from the device by themselves: in the writer's thread, after the
step has ended. The training loop waits for nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record
from layertap.watching.trigger_history import ENOUGH, HISTORY, Histories, Span

LOSS = "loss"
"""The site of the loss, and its kind."""
UPDATE, STATE, GRADIENT = "update", "state", "gradient"
"""How the kinds of records of an optimizer's updates and states end, and of the gradients that it uses."""
AMP = "amp"
"""The site of what an AMP scaler found, where it is only on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggers:
    """Which rules hold. 0 turns one off.

    >>> parse_triggers({"loss_spike": True, "grad_norm": 5}).text
    'NaN or Inf; loss above its median by 10 × its spread; gradient norm above 5 × its median'
    """

    nonfinite: float = 1.0
    """NaN or Inf appears where there was none."""
    loss_spike: float = 0.0
    """The loss is above the median of the last steps by this many times their spread."""
    grad_norm: float = 0.0
    """The norm of the recorded gradients is above the median of the last steps by this factor."""
    most: int = 5
    """After so many, triggers are only counted."""

    @property
    def text(self) -> str:
        conditions = []
        if self.nonfinite:
            conditions.append(Note("trigger.nonfinite"))
        if self.loss_spike:
            conditions.append(Note("trigger.loss_spike", loss_spike=self.loss_spike))
        if self.grad_norm:
            conditions.append(Note("trigger.grad_norm", grad_norm=self.grad_norm))
        return "; ".join(conditions) or "none"


_DEFAULTS = {"nonfinite": 1.0, "loss_spike": 10.0, "grad_norm": 10.0}


def parse_triggers(given: Any) -> Triggers:
    """Reads triggers: None (NaN and Inf alone), False, True (all), names, or `{name: threshold}`."""
    if isinstance(given, Triggers):
        return given
    if given is None:
        return Triggers()
    if isinstance(given, bool):
        return Triggers(**_DEFAULTS) if given else Triggers(nonfinite=0.0)  # type: ignore[arg-type]
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping):
        given = dict.fromkeys(given, True) if isinstance(given, Iterable) else {repr(given): None}
    known = {field.name for field in fields(Triggers)}
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known or not isinstance(value, (bool, int, float)) or value < 0:
            raise BadArgument(tr("trigger.unknown", name=name, value=value))
        chosen[name] = _DEFAULTS.get(name, 1) if value is True else value
    return replace(Triggers(), **{"nonfinite": 1.0, **chosen})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that has ended, as far as the loop's own thread knows it."""

    number: int
    epoch: int | None = None
    batch: int | None = None
    skipped: bool = False
    """Whether an AMP scaler left the update out: Inf in its gradients is then no news."""
    rate: float | None = None
    """The learning rate of the optimizer's first group."""
    seconds: float | None = None
    """Since the step before it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A rule that held, and its numbers in words."""

    rule: str
    text: str
    first: Record | None = None
    """The first record, in order of execution, that is not finite."""
    site: str = ""
    """The site that stands out most."""
    actions: tuple[str, ...] = ()
    """What is done besides bringing the ring to disk."""


class Rules:
    """Checks one step after the other against the rules."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._losses: deque[float] = deque(maxlen=HISTORY)
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._clean: set[str] = set()
        self._ill = False
        self._histories = Histories() if triggers.loss_spike or triggers.grad_norm else None

    def judge(self, step: Step, records: Sequence[Record]) -> list[Reason]:
        """The rules that this step breaks; `records` in order of execution."""
        found = [self._nonfinite(step, records), self._loss(records), self._norm(step, records)]
        reasons = [reason for reason in found if reason is not None]
        if self._histories is not None:
            if any(reason.first is None for reason in reasons):
                site, text = self._histories.standing_out(records)
                text = text or Note("trigger.none_stands_out")
                reasons = [r if r.first else replace(r, site=site, text=f"{r.text}; {text}") for r in reasons]
            self._histories.add(records)
        return reasons

    def bad(self, record: Record) -> bool:
        """Whether values are not finite that should be. A mask of -Inf is one from the beginning."""
        values = record.statistics
        if values.nan or values.pos_inf:
            return True
        return bool(values.neg_inf) and str(record.site) in self._clean

    def _nonfinite(self, step: Step, records: Sequence[Record]) -> Reason | None:
        if not self._triggers.nonfinite:
            return None
        excused = step.skipped or any(r.site.path == AMP and r.statistics.max > 0 for r in records)
        bad = [record for record in records if self.bad(record) and not (excused and "grad" in record.site.role)]
        self._clean.update(str(record.site) for record in records if not record.statistics.nonfinite)
        was_ill, self._ill = self._ill, bool(bad)
        if not bad or was_ill:  # bad values keep spreading: they are reported once
            return None
        return Reason(rule="nonfinite", text=nonfinite_text(bad[0]), first=bad[0])

    def _loss(self, records: Sequence[Record]) -> Reason | None:
        seen = [record.statistics.mean for record in records if record.site.path == LOSS and record.kind == LOSS]
        values = [value for value in seen if math.isfinite(value)]
        if not values:
            return None
        loss, before = statistics.fmean(values), list(self._losses)
        self._losses.append(loss)
        if not self._triggers.loss_spike or len(before) < ENOUGH:
            return None
        span = Span.of(before)
        times = span.times(loss)
        if times <= self._triggers.loss_spike:
            return None
        text = Note(
            "trigger.loss",
            loss=f"{loss:.6g}",
            times=f"{times:.3g}",
            median=f"{span.median:.6g}",
            count=len(before),
        )
        return Reason(rule="loss_spike", text=text)

    def _norm(self, step: Step, records: Sequence[Record]) -> Reason | None:
        norm = gradient_norm(records)
        if norm is None or step.skipped:
            return None
        before = list(self._norms)
        self._norms.append(norm)
        if not self._triggers.grad_norm or len(before) < ENOUGH:
            return None
        median = statistics.median(before)
        if norm <= self._triggers.grad_norm * median:
            return None
        text = Note(
            "trigger.norm",
            norm=f"{norm:.6g}",
            times=f"{norm / median:.3g}" if median else "Inf",
            median=f"{median:.6g}",
            count=len(before),
        )
        return Reason(rule="grad_norm", text=text)


def gradient_norm(records: Sequence[Record]) -> float | None:
    """The norm of the parameters' gradients, or where those were not recorded, of the others; None without any.

    Under accumulation the gradients of parameters add up, so the last of a step is the sum; those of activations are
    each micro-batch's own, so all of them count.
    """
    gradients = [record for record in records if "grad" in record.site.role and record.phase == "train"]
    used = [record for record in gradients if record.kind.endswith(GRADIENT)]
    summed = [record for record in gradients if record.site.role == "param_grad" and not record.kind.endswith(GRADIENT)]
    for found in (summed, used):
        last = {(record.site.path, record.site.leaf): record for record in found}
        if last:
            return math.sqrt(sum(record.statistics.l2**2 for record in last.values()))
    return math.sqrt(sum(record.statistics.l2**2 for record in gradients)) if gradients else None


def nonfinite_text(record: Record) -> str:
    values = record.statistics
    counts = [
        f"{n} {name}" for n, name in ((values.nan, "NaN"), (values.pos_inf, "Inf"), (values.neg_inf, "-Inf")) if n
    ]
    return Note("trigger.values", site=record.site, counts=", ".join(counts), total=values.count)
