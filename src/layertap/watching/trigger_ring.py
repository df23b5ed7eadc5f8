"""The last steps in memory: what is between the sink and the run's writer while a training is watched.

Everything here happens in the writer's thread. Records of steps that are due go straight to the run; the others wait in
a ring of the last steps, and go to the run when a trigger fires, or nowhere. Statistics always stay; tensors give way,
the oldest first, when the ring's bytes exceed its budget.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layertap.capture.writer_thread import Writer
from layertap.files import parse_bytes
from layertap.result import Note
from layertap.site import Receipt, Record
from layertap.store.schema import kept_nothing
from layertap.watching.actions import act
from layertap.watching.config import WatchConfig
from layertap.watching.rules import SiteRules
from layertap.watching.scalars import Scalars
from layertap.watching.trigger import Reason, Rules, Step, Triggers
from layertap.watching.trigger_report import TriggerReport, find_origin, input_marks, loss_of, write_report

SEEN = 100_000
"""Records of a step that has not ended: a script that never steps must not fill the memory."""

log = logging.getLogger("layertap")


@dataclass(slots=True)
class _RingStep:
    """The records of one step in the ring."""

    items: list[tuple[Record, Any]] = field(default_factory=list)
    nbytes: int = 0


class RingWriter:
    """A writer in front of another, with a memory of the last steps and a look at each of them."""

    def __init__(
        self,
        inner: Writer,
        config: WatchConfig,
        *,
        due: Callable[[Record], bool],
        site_rules: SiteRules,
        scalars: Scalars | None,
        rank: int,
        world: int,
    ) -> None:
        self._let_go = 0
        self._kept: list[range] = []
        self.steps = 0
        """Steps of which something was written."""
        self._last: int | None = None
        self.stripped = 0
        """Tensors that gave way to the ring's budget; their statistics stayed."""
        self.reports: list[TriggerReport] = []
        self.silenced = 0
        """Triggers past the most that are listed."""
        self._inner = inner
        self._steps, self._budget, self._after = config.ring, parse_bytes(config.ring_budget), config.after
        self._triggers = config.parsed_triggers
        self._rules = Rules(self._triggers)
        self.due = due
        self.site_rules = site_rules
        self.scalars = scalars
        self._actions = tuple(config.actions)
        self.folder: Path | None = None
        """Where reports go."""
        self._rank, self._world = rank, world
        self._ring: OrderedDict[int, _RingStep] = OrderedDict()
        self._bytes = self._waited = 0
        self._seen: deque[Record] = deque(maxlen=SEEN)
        self._through = -1
        """Up to this step everything is written: what follows a trigger belongs to it."""
        self._waiting: list[tuple[Record, Any]] | None = []
        """The first step's records, until the optimizer shows which step it is."""

    @property
    def let_go(self) -> int:
        """Records that left the ring unwritten, or the run for its budget, as they should."""
        return self._let_go + getattr(self._inner, "thinned", 0)

    def is_kept(self, step: int) -> bool:
        """Whether a trigger brought this step to disk."""
        return any(step in span for span in self._kept)

    @property
    def notes(self) -> list[str]:
        """What the receipt reports of it."""
        notes: list[str] = []
        if self.reports:
            fired = [Note("trigger.rule_at", rule=report.rule, step=report.step) for report in self.reports]
            notes.append(Note("trigger.fired", fired=", ".join(fired)))
        if self.silenced:
            notes.append(Note("trigger.silenced", silenced=self.silenced, most=self._triggers.most))
        if self.stripped:
            notes.append(Note("trigger.stripped", stripped=self.stripped))
        return notes

    @property
    def records(self) -> int:
        return self._inner.records

    @property
    def bytes(self) -> int:
        return self._inner.bytes

    def add(self, record: Record, data: Any = None) -> None:
        if self._waiting is not None:
            self._waited += 0 if data is None else len(data)
            if self._waited > self._budget:
                record, data = kept_nothing(record), None
                self.stripped += 1
            self._waiting.append((record, _copy(data)))
            return
        self._seen.append(record)
        if self.due(record) or record.step <= self._through:
            self.steps += record.step != self._last
            self._last = record.step
            self._inner.add(record, data)
        elif self._steps:
            self._hold(record, _copy(data))
        else:
            self._let_go += 1

    def commit(self) -> None:
        self._inner.commit()

    def close(self, receipt: Receipt | None, **info: Any) -> None:
        self._inner.close(receipt, **info)

    # What the loop's thread asks for, by way of the sink.

    def begin_at(self, step: int) -> None:
        """Says which step the records that came so far belong to."""
        waiting, self._waiting = self._waiting, None
        for record, data in waiting or ():
            self.add(replace(record, step=record.step + step), data)

    def reconfigure(
        self,
        *,
        due: Callable[[Record], bool],
        steps: int,
        triggers: Triggers,
        site_rules: SiteRules,
        after: int,
        actions: Sequence[str],
    ) -> None:
        """From the next step on."""
        self.due, self._steps, self._after, self.site_rules = due, steps, after, site_rules
        self._actions = tuple(actions)
        if triggers != self._triggers:
            self._triggers, self._rules = triggers, Rules(triggers)

    def end_step(self, step: Step) -> None:
        """Looks at a step that has ended."""
        records = sorted((r for r in self._seen if r.step == step.number), key=lambda record: record.order)
        self._seen = deque((record for record in self._seen if record.step > step.number), maxlen=SEEN)
        while self._ring and next(iter(self._ring)) <= step.number - self._steps:
            _, held = self._ring.popitem(last=False)
            self._let_go += len(held.items)
            self._bytes -= held.nbytes
        reasons = [*self._rules.judge(step, records), *self.site_rules.judge(step, records)]
        if self.scalars is not None:
            self.scalars.add(step, records)
        for reason in reasons[:1]:
            actions = tuple(dict.fromkeys(action for other in reasons for action in other.actions))
            text = "; ".join(other.text for other in reasons)
            self._fire(reason.rule, text, step, records, replace(reason, actions=actions))

    def fire(self, rule: str, text: str, step: Step) -> None:
        """Brings the ring to disk because someone asks for it."""
        records = sorted((r for r in self._seen if r.step == step.number), key=lambda record: record.order)
        self._fire(rule, text, step, records, None)

    def finish(self) -> None:
        """The end: what still waits is let go."""
        self.begin_at(0)
        for held in self._ring.values():
            self._let_go += len(held.items)
        self._ring.clear()

    def _fire(self, rule: str, text: str, step: Step, records: list[Record], reason: Reason | None) -> None:
        if len(self.reports) >= self._triggers.most:
            self.silenced += 1
            return
        first = None if reason is None else reason.first
        birth = None if first is None else find_origin(records, first, self._rules.bad)
        steps = self._empty()
        self._through = step.number + self._after
        self._kept.append(range(min(steps, default=step.number), self._through + 1))
        report = TriggerReport(
            rule=rule,
            reason=text,
            step=step.number,
            epoch=step.epoch,
            batch=step.batch,
            rank=self._rank,
            birth=birth,
            loss=loss_of(records),
            inputs=input_marks(records),
            steps=steps,
            site="" if reason is None else reason.site,
            world=self._world,
        )
        self.reports.append(report)
        log.warning("layertap: %s", report)
        if self.folder is not None:
            write_report(self.folder, report)
        act(dict.fromkeys((*self._actions, *(reason.actions if reason is not None else ()))), report, self.folder)

    def _empty(self) -> tuple[int, ...]:
        """The whole ring into the run, oldest step first."""
        steps = tuple(self._ring)
        self.steps += len(steps)
        self._last = steps[-1] if steps else self._last
        while self._ring:
            _, held = self._ring.popitem(last=False)
            self._bytes -= held.nbytes
            for record, data in held.items:
                self._inner.add(record, data)
        self._inner.commit()
        return steps

    def _hold(self, record: Record, data: Any) -> None:
        held = self._ring.setdefault(record.step, _RingStep())
        size = 0 if data is None else len(data)
        if size > self._budget:
            record, data, size = kept_nothing(record), None, 0
            self.stripped += 1
        held.items.append((record, data))
        held.nbytes += size
        self._bytes += size
        for number, older in itertools.islice(self._ring.items(), len(self._ring)):
            if self._bytes <= self._budget:
                return
            self._strip(number, older)

    def _strip(self, number: int, held: _RingStep) -> None:
        for place, (record, data) in enumerate(held.items):
            if self._bytes <= self._budget:
                return
            if data is not None:
                held.items[place] = (kept_nothing(record), None)
                held.nbytes -= len(data)
                self._bytes -= len(data)
                self.stripped += 1

    def held(self) -> Iterator[int]:
        """The steps in the ring now."""
        return iter(self._ring)


def _copy(data: Any) -> Any:
    # The sink's buffer is used again as soon as `add` returns.
    return None if data is None else np.array(data)
