"""The recorder behind a watch: separates validation from training, writes where the training turns out to belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from layertap.capture import Recorder, Schedule
from layertap.capture.leaves import leaves, parts
from layertap.capture.module_tap import CallMoment, ModuleTap
from layertap.capture.options import RecordOptions
from layertap.capture.pending_record import PendingRecord
from layertap.capture.site_counts import Source
from layertap.measure import supported
from layertap.site import Receipt, Record
from layertap.store import RunWriter
from layertap.store.plans import RecordPlan
from layertap.watching.config import WatchConfig
from layertap.watching.disk import DiskBudget

BATCH = "batch"
"""The kind, and the beginning of the leaf, of what a DataLoader gave."""


class WatchRecorder(Recorder):
    """Records a training that is watched."""

    def __init__(self, model: nn.Module, config: WatchConfig, schedule: Schedule, meta: dict[str, Any]) -> None:
        options = RecordOptions(
            sites=config.sites,
            exclude=config.exclude,
            keep=config.keep,
            budget=config.budget,
            what=config.roles or ("param",),
            schedule=schedule,
            policy=config.policy,
            strict=config.strict,
            exists="append",
            meta=meta,
        )
        super().__init__(model, config.path, options)
        self.phases = frozenset(config.phases)
        self.keep_inputs = config.keep_batch
        self.small_inputs = 0
        self.without_gradients_too = False
        """Whether a forward pass under no_grad counts as training, in a loop that never goes backward."""
        self.left_out = 0
        """Calls of modules in phases that are not recorded."""
        self._differentiable = False
        self._place: int | None = None

    # What the taps ask.

    @property
    def phase(self) -> str:
        """`eval` also where a validation pass runs under no_grad and leaves the model in training mode.

        A part of a training's forward pass may run under no_grad too (a frozen encoder, the first forward of
        checkpointing): where something before it, since the last step or batch, was called with gradients, it is
        training.
        """
        if not self.model.training:
            return "eval"
        if torch.is_grad_enabled():
            self._differentiable = True
        return "train" if self._differentiable or self.without_gradients_too else "eval"

    @property
    def live(self) -> bool:
        live = super().live
        self.left_out += not live and self.attached
        return live

    def new_pass(self) -> None:
        """A forward pass is over: what comes next is judged anew."""
        self._differentiable = False

    # What no module's call brings.

    def place(self) -> int:
        """A place in the order of execution, for something that is noted later."""
        return self.next_order()

    def note_at(
        self, place: int, path: str, kind: str, role: str, leaf: str, tensor: torch.Tensor, *, call: int
    ) -> None:
        """`note`, at a place that was held."""
        self._place = place
        try:
            self.note(path, kind, role, leaf, tensor, call=call)
        finally:
            self._place = None

    def note_batch(self, batch: Any, call: int) -> None:
        """The fingerprint of a batch, as the loop takes it: the model as a whole may never be called with it."""
        if not self.live:
            return
        with self.inside(BATCH):
            source = self._sources.setdefault(("", "input", BATCH), Source("", BATCH))
            moment = CallMoment(call, self.step_number, self.epoch, self.batch, self.phase, False)
            source.counts.fired += 1
            for leaf in leaves(batch):
                for below, part, sharding in parts(leaf.tensor.detach()) if leaf.tensor is not None else ():
                    name = ".".join(filter(None, (BATCH, leaf.path, below)))
                    reason = supported(part)
                    if reason:
                        source.counts.skip(reason)
                        continue
                    plan = self.record_plan(source, "input", name, part, sharding, asked=False)
                    self.put(source, plan, part, moment)

    def pending_record(self, tap: ModuleTap | Source, plan: RecordPlan, moment: CallMoment) -> PendingRecord:
        record = super().pending_record(tap, plan, moment)
        return record if self._place is None else record._replace(order=self._place)

    # Where it is written.

    def open_writer(self) -> Any:
        return LateWriter(lambda folder, exists: RunWriter(folder, info=self._info, rank=self.rank, exists=exists))  # type: ignore[arg-type]

    @property
    def writer(self) -> LateWriter:
        writer: LateWriter = self._writer
        return writer


class LateWriter:
    """The writer of a run whose folder is settled when the first step is: until then nothing is written."""

    def __init__(self, make: Callable[[Any, str], RunWriter]) -> None:
        self.disk: DiskBudget | None = None
        """Looks at the run after each commit."""
        self._make = make
        self._committed = 0
        self._folder: Any = None
        self._exists = "append"
        self._writer: RunWriter | None = None

    def write_to(self, folder: Any, exists: str) -> None:
        """Says where the run is, and what becomes of one that is there."""
        self._folder, self._exists = folder, exists

    @property
    def path(self) -> Any:
        return self._folder

    @property
    def records(self) -> int:
        return 0 if self._writer is None else self._writer.records

    @property
    def thinned(self) -> int:
        """Records of this session that were taken out for the disk's budget."""
        return 0 if self.disk is None else self.disk.thinned - self.disk.of_earlier

    @property
    def bytes(self) -> int:
        return 0 if self._writer is None else self._writer.bytes

    @property
    def session(self) -> str:
        return "" if self._writer is None else self._writer.session

    def add(self, record: Record, data: Any = None) -> None:
        self._opened().add(record, data)
        self._look()

    def commit(self) -> None:
        if self._writer is not None:
            self._writer.commit()
            self._look()

    def settle(self) -> None:
        self._opened().settle()
        self._look()

    def close(self, receipt: Receipt | None, **info: Any) -> None:
        thinned = 0 if self.disk is None else self.disk.of_earlier
        self._opened().close(receipt, **info, **({"thinned": thinned} if thinned else {}))

    def _look(self) -> None:
        if self.disk is not None and self._writer is not None and self._writer.records != self._committed:
            self._committed = self._writer.records
            self.disk.look(self._writer)
            self._committed = self._writer.records

    def _opened(self) -> RunWriter:
        if self._writer is None:
            self._writer = self._make(self._folder, self._exists)
        return self._writer
