"""`watch`: a training loop recorded from outside, on the steps that matter, without ever being in its way."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from layertap.capture import Recorder, Schedule
from layertap.capture.ending import keep_interrupts
from layertap.capture.info import rank as this_rank
from layertap.capture.ledger import why_nothing
from layertap.capture.sink import Writer
from layertap.errors import BadArgument, NothingCaptured
from layertap.files import parse_bytes
from layertap.site import Receipt, Record
from layertap.store import Run
from layertap.training import watch_clock
from layertap.training.trigger import AMP, LOSS, Step
from layertap.training.trigger_birth import TriggerReport
from layertap.training.trigger_ring import RingWriter
from layertap.training.watch_config import Config, WatchConfig, read_config
from layertap.training.watch_epochs import Epochs
from layertap.training.watch_find import compiled_wrapper, unwrap
from layertap.training.watch_folder import claim_folder, last_step
from layertap.training.watch_optimizer import OptimizerTap, steps_done
from layertap.training.watch_steps import Steps

HELD = 6
"""References to the model that a watch has itself: its own, the recorder's, three of taps, and the question."""

log = logging.getLogger("layertap")


def watch(model: nn.Module, config: Config | WatchConfig = None, **options: Any) -> Watch:
    """Watches a training from now on: the line before the loop, or a `with` block around it.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> with watch(model, path=tempfile.mkdtemp(), sites="*", schedule=2) as w:
    ...     for _ in range(4):
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    >>> w.run["1:grad_output"].steps
    (0, 2)

    `config` is a mapping or a TOML or JSON file; keywords weigh more. See `WatchConfig` for the options.
    """
    return Watch(model, read_config(config, **options))


class Watch:
    """A watched training. Steps are counted by its optimizers, epochs and batches by its DataLoaders."""

    def __init__(self, model: nn.Module, config: WatchConfig) -> None:
        if not isinstance(model, nn.Module):
            raise BadArgument(f"watch takes an nn.Module, got {type(model).__name__}")
        self.config = config
        self.model, wrapper = unwrap(model)
        self.rank = this_rank()
        self.active = not config.ranks or self.rank in config.ranks
        """Whether this rank records at all."""
        self.skipped = 0
        """Steps whose update an AMP scaler left out."""
        self._written = config.written
        self._epochs = Epochs()
        self._owned: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._begun = config.start is not None
        self._resuming = False
        self._steps = Steps()
        self._losses = 0
        self._out_of_phase = 0
        self._skip = False
        self._ring: RingWriter
        self._receipt: Receipt | None = None
        self._open = False
        self._pid = os.getpid()
        for other in watch_clock.listeners():
            if isinstance(other, Watch) and other.abandoned:
                other.close()
        if self.active:
            self._start(compiled_wrapper(self.model) if wrapper is None else wrapper)

    def _start(self, wrapper: nn.Module | None) -> None:
        config = self.config
        # The plan is checked before anything is touched: a pattern that matches nothing is told here, not in the loop.
        options = {"sites": config.sites, "exclude": config.exclude, "keep": config.keep, "budget": config.budget}
        self.recorder = Recorder(
            self.model,
            config.path,
            **options,
            what=config.roles or ("param",),
            schedule=Schedule(str(self._written), self._tapped),
            policy=config.policy,
            strict=config.strict,
            exists=cast(Literal["append"], config.exists),
            meta={"training": True},
        )
        self._claim = claim_folder(Path(config.path), self.rank, type(self.model).__name__)
        self.path = self.recorder.path = self._claim.folder
        self._last_step = last_step(self.path) if config.exists == "append" else None
        self._resuming = self._last_step is not None and not self._begun
        if self.path != Path(config.path):
            self.recorder.notes.append(f"{config.path} is in use by another watch; this one writes to {self.path}")
        self.recorder.phases = frozenset(config.phases)
        self.recorder.keep_inputs = config.keep_batch
        self.recorder.between = self._between
        self.recorder.step_number = config.start or 0
        self._optimizer_tap = OptimizerTap(self.recorder, config.what)
        if wrapper is not None:
            self._enclose(wrapper)
        try:
            self.recorder.start()
        except BaseException:
            self._claim.release()
            raise
        self._open = True
        watch_clock.listen(self)
        keep_interrupts()
        atexit.register(self.close)

    def _between(self, writer: Writer) -> Writer:
        config = self.config
        self._ring = RingWriter(
            writer,
            due=self._record_due if config.ring or self._resuming else lambda record: True,
            steps=config.ring,
            budget=parse_bytes(config.ring_budget),
            triggers=config.rules,
            after=config.after,
            rank=self.rank,
            folder=self.path,
            hold=not self._begun,
        )
        return self._ring

    # What a user asks and says.

    @property
    def step(self) -> int:
        """The number of the step that is under way."""
        return self.recorder.step_number

    @step.setter
    def step(self, number: int) -> None:
        self._begin(number)
        self.recorder.at(step=number)

    @property
    def epoch(self) -> int | None:
        """The epoch, from 1, as DataLoaders count it; set it where there is none."""
        return self.recorder.epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epochs.told = True
        self.recorder.at(epoch=number)

    @property
    def reports(self) -> tuple[TriggerReport, ...]:
        """The triggers that fired so far."""
        self.recorder.flush()
        return tuple(self._ring.reports)

    @property
    def receipt(self) -> Receipt:
        if not self.active:
            nothing = f"rank {self.rank} records nothing: ranks={list(self.config.ranks)}"
            return Receipt(sites=(), steps=0, records=0, bytes=0, seconds=0.0, overhead=0.0, notes=(nothing,))
        return self._receipt or self.recorder.receipt

    @property
    def run(self) -> Run:
        return self.recorder.run

    @property
    def closed(self) -> bool:
        return not self._open

    @property
    def abandoned(self) -> bool:
        """Whether nobody but the watch itself holds the model any more: it must not keep a dead model in memory."""
        return sys.getrefcount(self.model) <= HELD

    def dump(self, reason: str = "asked for") -> None:
        """Brings the ring to disk now."""
        self._spared(functools.partial(self._fire, "asked", reason), "dump")

    def advance(self) -> None:
        """Ends a step, for loops that use no torch optimizer."""
        if self._open:
            self._begin(0)
            self._spared(self._end_step, "advance")

    def close(self) -> None:
        """Ends watching and makes the receipt. Calling it again does nothing."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        watch_clock.forget(self)
        atexit.unregister(self.close)
        # Each on its own: a card that failed refuses to hand out what it holds, and run.json may meet a full disk; the
        # rest is written all the same, and the training does not end in this.
        failures = [self._spared(action, "close") for action in (self._finish, self._tell, self.recorder.close)]
        self._claim.release()
        receipt = self.recorder.receipt
        self._receipt = replace(receipt, error=receipt.error or next(filter(None, failures), ""))
        if not self._receipt.fired and not self._receipt.error:
            log.error("layertap: %s", "\n".join([why_nothing(self._receipt), *self._receipt.notes]))

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.crashed(error)
        self.close()
        if error is None and self.config.strict and self._receipt and not self._receipt.fired:
            raise NothingCaptured(why_nothing(self._receipt))

    def crashed(self, error: BaseException) -> None:
        """The loop ended by an error: what the ring holds is what led to it."""
        fire = functools.partial(self._fire, "crash", ": ".join(filter(None, (type(error).__name__, str(error)))))
        with contextlib.suppress(Exception):  # the loop's own error is the one that counts
            if self._spared(fire, "crash"):
                fire()  # without what a failed card has refused

    # What the clock tells.

    def on_batch(self, loader: int, index: int, ahead: bool) -> None:
        if self._steps.on_batch():
            self._end_step()
        epoch, batch = self._epochs.on_batch(loader, index, self.model.training, ahead)
        self.recorder.at(epoch=epoch, batch=batch)

    def on_exhausted(self, loader: int) -> None:
        self._epochs.on_exhausted(loader)

    def on_backward(self, loss: torch.Tensor | None) -> None:
        self._steps.on_backward()
        if loss is not None:
            self.recorder.note(LOSS, LOSS, "output", "", loss, call=self._losses)
            self._losses += 1

    def after_backward(self) -> None:
        batch = self._epochs.on_used()
        if batch is not None:
            self.recorder.at(batch=batch)

    def on_built(self, optimizer: Optimizer) -> None:
        pass  # an optimizer that never steps is none

    def before_update(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            return
        if not self._begun:
            self._begin(self._first_step(optimizer))
            if not self.recorder.calls and self.recorder.live:
                # Compiled after watching began, perhaps: then only the wrapper is ever called.
                self._enclose(compiled_wrapper(self.model))
        if self._steps.before(id(optimizer)):
            self._end_step()
        self._out_of_phase += self.recorder.phase not in self.config.phases
        self.recorder.at(batch=self._epochs.spent(self.recorder.batch))
        self._optimizer_tap.before(optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            return
        self._epochs.on_update()
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, torch.Tensor):  # a fused optimizer decides on the device whether it steps
            self.recorder.note(AMP, AMP, "output", "found_inf", found_inf)
        self._optimizer_tap.after(optimizer)
        self.recorder.at(batch=self._epochs.coming(self.recorder.batch))
        if self._steps.after(id(optimizer)):
            self._end_step()

    def on_skipped(self, optimizer: Optimizer) -> None:
        if self._owns(optimizer):
            if not self._begun:
                self._begin(self._first_step(optimizer))
            self.skipped += 1
            self._skip = True
            if self._steps.after(id(optimizer)):
                self._end_step()

    def failed(self, error: Exception, event: str) -> bool:
        return self.recorder.stop_on(error, f"watch ({event})")

    # Steps.

    def _end_step(self) -> None:
        recorder = self.recorder
        if recorder.touched:
            batch = self._epochs.spent(recorder.batch)
            step = Step(number=recorder.step_number, epoch=recorder.epoch, batch=batch, skipped=self._skip)
            recorder.after(functools.partial(self._ring.end_step, step))
        self._steps.ended()
        self._losses, self._skip = 0, False
        recorder.step()

    def _first_step(self, optimizer: Optimizer) -> int:
        done = steps_done(optimizer)
        if done is not None or self._last_step is None:
            return done or 0
        after = self._last_step + 1
        self.recorder.notes.append(
            f"resumed, and {type(optimizer).__name__} does not say at which step: numbered on from {after}; "
            f"say start=, or w.step = …"
        )
        return after

    def _begin(self, step: int) -> None:
        """The number of the step under way is known now."""
        if not self._begun:
            self._begun = True
            self.recorder.after(functools.partial(self._ring.begin_at, step))
            if step:
                self.recorder.at(step=step)

    def _tapped(self, step: int, epoch: int | None, batch: int | None) -> bool:
        # Which step a resumed training is at, the first update tells; until then everything is taken and held.
        first = not self._begun and self._resuming
        return first or self.config.ring > 0 or self._written.due(step, epoch, batch)

    def _record_due(self, record: Record) -> bool:
        return self._written.due(record.step, record.epoch, record.batch)

    def _owns(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer trains this model."""
        if optimizer not in self._owned:
            ours = {id(parameter) for parameter in self.model.parameters()}
            self._owned[optimizer] = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
        return self._owned[optimizer]

    def _enclose(self, wrapper: nn.Module | None) -> None:
        if wrapper is not None:
            self.recorder.enclose(wrapper)
            self.recorder.notes.append(
                "the model runs as a torch.compile'd graph: what its modules take and return is seen, and gradients of "
                "parameters; those of activations inside it are not"
            )

    def _fire(self, rule: str, reason: str) -> None:
        if self._open and os.getpid() == self._pid:
            recorder = self.recorder
            step = Step(number=recorder.step_number, epoch=recorder.epoch, batch=recorder.batch)
            self._begin(0)
            recorder.after(functools.partial(self._ring.fire, rule, reason, step))
            recorder.flush()

    def _finish(self) -> None:
        if self._steps.pending:
            self._end_step()
        self.recorder.after(self._ring.finish)
        self.recorder.flush()

    def _spared(self, action: Callable[[], None], event: str) -> str:
        """Does something of layertap's own; its error is returned as a text, or raised if that was asked for."""
        try:
            action()
        except Exception as error:
            if not self.failed(error, event):
                raise
            return f"{type(error).__name__}: {error}"
        return ""

    def _tell(self) -> None:
        ring, notes = self._ring, self.recorder.notes
        if ring.reports:
            notes.append(f"triggers: {', '.join(f'{report.rule} at step {report.step}' for report in ring.reports)}")
        if self._out_of_phase:
            notes.append(
                f"{self._out_of_phase} steps were made while the model was in {self.recorder.phase} mode; "
                f"phases={list(self.config.phases)} leaves them out"
            )
        if ring.silenced:
            notes.append(f"{ring.silenced} more triggers were not told; triggers.most = {self.config.rules.most}")
        if ring.stripped:
            notes.append(f"{ring.stripped} tensors of the ring gave way to its budget; their statistics stayed")
        if self.skipped:
            notes.append(f"{self.skipped} steps were skipped by the AMP scaler; Inf in their gradients is no fault")
