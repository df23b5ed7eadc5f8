"""One training of one model, from its first step to its receipt: one run."""

from __future__ import annotations

import functools
import os
import signal
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from layertap.capture import Schedule
from layertap.capture.tee import Tee
from layertap.capture.writer_thread import Writer
from layertap.errors import LayertapError
from layertap.files import parse_bytes
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt, Record
from layertap.store.storage import on_this_machine
from layertap.watching.config import WatchConfig, read_config
from layertap.watching.control import CHANGEABLE, COMMANDS, Control
from layertap.watching.disk import DiskBudget
from layertap.watching.epochs import Epochs
from layertap.watching.find import compiled_wrapper
from layertap.watching.folder import RunFolder, signature
from layertap.watching.loss import Reached
from layertap.watching.optimizer import OptimizerTap, learning_rate, parameters_of, proves_a_past, steps_done
from layertap.watching.recorder import WatchRecorder
from layertap.watching.rules import SiteRules
from layertap.watching.scalars import Scalars
from layertap.watching.steps import Steps
from layertap.watching.trigger import AMP, LOSS, Step
from layertap.watching.trigger_ring import RingWriter


class Training:
    """What a watch does with the events of one training; every method is called in the loop's own thread."""

    def __init__(self, model: nn.Module, wrapper: nn.Module | None, config: WatchConfig, rank: int, world: int) -> None:
        self.config = config
        self.skipped = 0
        """Steps whose update an AMP scaler left out."""
        self.begun = False
        """Whether the number of the first step, and so the run's folder, is known."""
        self.trained: set[int] = set()
        """The ids of the parameters that an optimizer has stepped on."""
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._model = model
        self._written = config.written
        self._epochs = Epochs()
        self._steps = Steps()
        self._losses = self._batches = self._out_of_phase = 0
        self._pending: list[tuple[torch.Tensor, int]] = []
        self._waiting_batch: Any = None
        self._skip = False
        self._seconds = self._ended = 0.0
        self._rate: float | None = None
        self._taps_stale = False
        self._lost_forward = False
        meta: dict[str, Any] = {"training": True, "world": world, "parameters": signature(model)}
        self.recorder = WatchRecorder(model, config, Schedule(str(self._written), self._tapped), meta)
        self._site_rules = [rule.on(model) for rule in config.site_rules]
        self._control = Control()
        self._board = _board(config)
        self._scalars = Scalars(progress=config.progress, tensorboard=self._board)
        self.home = RunFolder(on_this_machine(config.path, "watch"), rank, world, model, config.exists)
        self._resuming = config.start is None and self.home.maybe_resumed
        self.recorder.between = self._between
        self.recorder.step_number = config.start or 0
        self._optimizer_tap = OptimizerTap(self.recorder, config.what)
        self._reached = Reached(model)
        self._rank, self._world = rank, world
        try:
            if wrapper is not None:
                self.enclose(wrapper)
            self.recorder.start()
        except BaseException:
            self.home.release()
            raise
        self.recorder.writer.disk = DiskBudget(parse_bytes(config.disk) // world, rank, self.ring.is_kept)
        if config.start is not None:
            self.begin(config.start)

    @property
    def path(self) -> Path:
        return self.home.folder

    def _between(self, writer: Writer) -> Writer:
        config = self.config
        if self._board is not None:
            writer = Tee(writer, [self._board])
        self.ring = RingWriter(
            writer,
            config,
            due=self._record_due if config.ring or self._resuming else lambda record: True,
            site_rules=SiteRules(self._site_rules),
            scalars=self._scalars,
            rank=self._rank,
            world=self._world,
        )
        return self.ring

    # Called by the clock.

    def on_batch(self, loader: int, data: int, index: int, ahead: bool, batch: Any) -> None:
        if self._steps.on_batch():
            self.end_step()
        self._tap_again()
        used = self._model.training and torch.is_grad_enabled()
        epoch, number = self._epochs.on_batch(loader, data, index, used, ahead)
        self.recorder.at(epoch=epoch, batch=number)
        if ahead:  # the one that is used next came before it
            batch, self._waiting_batch = self._waiting_batch, batch
        self._note_batch(batch)

    def on_exhausted(self, loader: int) -> None:
        self._note_batch(self._waiting_batch)
        self._waiting_batch = None
        self._epochs.on_exhausted(loader)

    def on_backward(self, loss: torch.Tensor | None) -> None:
        if self.recorder.live:
            self._reached.begin()
            self._pending = [] if loss is None else [(loss, self.recorder.place())]

    def after_backward(self) -> None:
        # A loss is noted when its gradients have come, so that it is this model's; its place is before them.
        reached = not self.recorder.live or self._reached.end()
        if reached:
            self._steps.on_backward()
            for loss, place in self._pending:
                self.recorder.note_at(place, LOSS, LOSS, "output", "", loss, call=self._losses)
                self._losses += 1
        self._pending = []
        batch = self._epochs.on_used()
        if batch is not None:
            self.recorder.at(batch=batch)
        self.recorder.new_pass()

    def on_compiled(self, wrapper: nn.Module) -> None:
        """torch.compile was applied: to the model, or to what is, or may become, a part of it."""
        if compiled_wrapper(self._model) is wrapper:
            self.enclose(wrapper)
        elif any(module is wrapper for module in self._model.modules()):
            self.recorder.enclose(self._model)
        else:
            self._taps_stale = True

    def before_update(self, optimizer: Optimizer) -> None:
        self._count(optimizer)
        if not self.begun:
            if not self.recorder.calls and self.recorder.live:
                self._find_wrapper()
            self._begin_by(optimizer)
        if self._steps.before(id(optimizer)):
            self.end_step()
        self._out_of_phase += not self._model.training and "eval" not in self.config.phases
        self._rate = learning_rate(optimizer)
        self.recorder.at(batch=self._epochs.spent(self.recorder.batch))
        self._optimizer_tap.before(optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        self._epochs.on_update()
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, torch.Tensor):  # a fused optimizer decides on the device whether it steps
            self.recorder.note(AMP, AMP, "output", "found_inf", found_inf)
        self._optimizer_tap.after(optimizer)
        self.recorder.at(batch=self._epochs.coming(self.recorder.batch))
        if self._steps.after(id(optimizer)):
            self.end_step()

    def _count(self, optimizer: Optimizer) -> None:
        if optimizer not in self._known:
            self._known.add(optimizer)
            self.trained |= parameters_of(optimizer)

    def on_skipped(self, optimizer: Optimizer) -> None:
        self._count(optimizer)
        if not self.begun:
            self._begin_by(optimizer)
        self.skipped += 1
        self._skip = True
        if self._steps.after(id(optimizer)):
            self.end_step()

    def tell_epoch(self, number: int) -> None:
        """The loop says the epoch itself."""
        self._epochs.given = True
        self.recorder.at(epoch=number)

    # Steps.

    def advance(self) -> None:
        """Ends a step that no optimizer ends."""
        self.recorder.without_gradients_too = True
        self.begin(0)
        self.end_step()

    def end_step(self) -> None:
        recorder = self.recorder
        now = time.monotonic()
        self._seconds, self._ended = now - self._ended if self._ended else 0.0, now
        if recorder.touched:
            recorder.after(functools.partial(self.ring.end_step, self.now(self._epochs.spent(recorder.batch))))
        self._steps.ended()
        self._losses = self._batches = 0
        self._skip = False
        recorder.step()
        recorder.new_pass()
        self._tap_again(recorder.step_number - 1)
        self._look_for_orders()

    def _look_for_orders(self) -> None:
        """Changes what somebody wants changed, by a file in the run's folder."""
        try:
            options = self._control.look()
            if options is not None:
                self._reconfigure(options)
        except LayertapError as error:
            self.recorder.warn_once(tr("watch.not_changed", step_number=self.recorder.step_number, error=error))

    def _reconfigure(self, options: dict[str, Any]) -> None:
        changes = {name: value for name, value in options.items() if name in CHANGEABLE}
        config = read_config(self.config, **changes)
        site_rules = [rule.on(self._model) for rule in config.site_rules]
        self.config, self._written = config, config.written
        self.recorder.phases = frozenset(config.phases)
        change = functools.partial(
            self.ring.reconfigure,
            due=self._record_due,
            steps=config.ring,
            triggers=config.parsed_triggers,
            site_rules=SiteRules(site_rules),
            after=config.after,
            actions=config.actions,
        )
        self.recorder.after(change)
        text = ", ".join(f"{name} = {value!r}" for name, value in changes.items()) or "nothing"
        ignored = sorted(set(options) - {*CHANGEABLE, *COMMANDS})
        if ignored:
            text += tr("watch.ignored", ignored=", ".join(ignored))
        self.recorder.warn_once(tr("watch.changed", step_number=self.recorder.step_number, changes=text))
        self.recorder.at()
        if options.get("dump"):
            self.fire("asked", str(options["dump"]))
        if options.get("stop"):
            os.kill(os.getpid(), signal.SIGTERM)

    def now(self, batch: int | None) -> Step:
        """The step that is under way."""
        recorder = self.recorder
        return Step(
            number=recorder.step_number,
            epoch=recorder.epoch,
            batch=batch,
            skipped=self._skip,
            rate=self._rate,
            seconds=self._seconds or None,
        )

    def begin(self, step: int) -> None:
        """The number of the step under way is said."""
        if not self.begun:
            self._settle(step or None, trained=step > 0)
            self._number(step)

    def _begin_by(self, optimizer: Optimizer) -> None:
        """It is what the optimizer has made so far."""
        done = steps_done(optimizer)
        exists = self._settle(done, trained=proves_a_past(optimizer) or (self.config.start or 0) > 0)
        last = self.home.last_step() if exists == "append" else None
        if not done and last is not None:
            self.recorder.notes.append(tr("watch.resumed", name=type(optimizer).__name__, last=last + 1))
        self._number(done or (0 if last is None else last + 1))
        if self._lost_forward:
            self.recorder.warn_once(tr("watch.losses_only", step_number=self.recorder.step_number))

    def _number(self, step: int) -> None:
        self.recorder.after(functools.partial(self.ring.begin_at, step - self.recorder.step_number))
        if step != self.recorder.step_number:
            self.recorder.at(step=step)

    def _settle(self, done: int | None, *, trained: bool) -> str:
        """The run that the training belongs to is known now."""
        self.begun = True
        exists = self.home.settle(done, trained=trained)
        folder = self.home.folder
        self.recorder.path = folder
        self._control.begin(folder)
        self.ring.folder = self._scalars.folder = folder
        self.recorder.writer.write_to(folder, exists)
        if folder != Path(self.config.path):
            self.recorder.warn_once(
                tr("watch.elsewhere", path=self.config.path, why_elsewhere=self.home.why_elsewhere, folder=folder)
            )
        return exists

    def _tapped(self, step: int, epoch: int | None, batch: int | None) -> bool:
        # Which step a resumed training is at, the first update shows; until then everything is taken and held.
        first = not self.begun and self._resuming
        return first or self.config.ring > 0 or self._written.due(step, epoch, batch)

    def _record_due(self, record: Record) -> bool:
        return self._written.due(record.step, record.epoch, record.batch)

    def _note_batch(self, batch: Any) -> None:
        # Where the model as a whole is called, its own inputs tell the batch.
        if batch is not None and not (self.begun and self.recorder.calls):
            self.recorder.note_batch(batch, self._batches)
            self._batches += 1
        self.recorder.new_pass()

    # Compiled models.

    def enclose(self, wrapper: nn.Module) -> None:
        """The model is called through this wrapper of torch.compile."""
        self.recorder.enclose(wrapper)
        note = tr("watch.compiled")
        if note not in self.recorder.notes:
            self.recorder.notes.append(note)

    def _find_wrapper(self) -> None:
        wrapper = compiled_wrapper(self._model)
        if wrapper is not None:
            self.enclose(wrapper)
            self._lost_forward = True

    def _tap_again(self, step: int = -1) -> None:
        if self._taps_stale:
            self._taps_stale = False
            self.recorder.enclose(self._model)
            if step >= 0 and any(isinstance(m, torch._dynamo.OptimizedModule) for m in self._model.modules()):
                self.recorder.warn_once(tr("watch.inside_missing", step=step))

    # The end.

    def fire(self, rule: str, reason: str) -> None:
        """Brings the ring to disk."""
        self.begin(0)
        self.recorder.after(functools.partial(self.ring.fire, rule, reason, self.now(self.recorder.batch)))
        self.recorder.flush()

    def close(self, never_raise: Callable[[Callable[[], None], str], str]) -> Receipt:
        """Ends it, whatever fails on the way, and makes the receipt."""
        # Each on its own: a card that failed refuses to hand out what it holds, and run.json may meet a full disk; the
        # rest is written all the same, and the training does not end in this.
        failures = [never_raise(action, "close") for action in (self._finish, self._tell, self.recorder.close)]
        self._scalars.close()
        self.home.release()
        receipt = self.recorder.receipt
        return replace(receipt, error=receipt.error or next(filter(None, failures), ""))

    def _finish(self) -> None:
        if self._steps.pending:
            self.end_step()
        self.begin(0)
        self.recorder.after(self.ring.finish)
        self.recorder.flush()

    def _tell(self) -> None:
        self.recorder.notes += self.ring.notes
        if self.recorder.writer.disk is not None:
            self.recorder.notes += self.recorder.writer.disk.notes
        self.recorder.notes += [
            Note(code, count=count, phases=list(self.config.phases))
            for count, code in (
                (self._out_of_phase, "watch.out_of_phase"),
                (self.recorder.left_out, "watch.calls_left_out"),
                (self.skipped, "watch.steps_skipped"),
            )
            if count
        ]


def _board(config: WatchConfig) -> Any:
    if not config.tensorboard:
        return None
    from layertap.monitor.tensorboard import TensorBoard

    return TensorBoard(config.tensorboard, histograms=config.keep != "stats")
