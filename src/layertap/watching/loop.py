"""`watch`: a training loop recorded from outside, on the steps that matter, without ever being in its way."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from layertap.capture.exit_signal import keep_interrupts
from layertap.capture.info import rank as this_rank
from layertap.capture.info import world_size
from layertap.capture.receipt_builder import why_nothing
from layertap.errors import BadArgument, NothingCaptured
from layertap.messages import tr
from layertap.site import Receipt
from layertap.store import Run
from layertap.watching import clock, exit_signal
from layertap.watching.config import Config, WatchConfig, read_config
from layertap.watching.find import compiled_wrapper, unwrap
from layertap.watching.optimizer import parameters_of
from layertap.watching.recorder import WatchRecorder
from layertap.watching.training import Training
from layertap.watching.trigger_report import TriggerReport

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
    """A watched model. Steps are counted by its optimizers, epochs and batches by its DataLoaders.

    Each training of it is a run of its own: where its weights were set anew and another optimizer begins, another run
    begins (`runs`).
    """

    def __init__(self, model: nn.Module, config: WatchConfig) -> None:
        if not isinstance(model, nn.Module):
            raise BadArgument(tr("watch.module", name=type(model).__name__))
        self.config = config
        self.rank, self.world = this_rank(), world_size()
        self.active = not config.ranks or self.rank in config.ranks
        """Whether this rank records at all."""
        model, wrapper = unwrap(model)
        self.model = model
        self.runs: list[Path] = []
        """The runs of the trainings before this one."""
        self._owned: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._new: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._weights: tuple[Any, ...] = ()
        self._sample: list[nn.Parameter] = []
        self._receipt: Receipt | None = None
        self._stepped = False
        self._open = False
        self._pid = os.getpid()
        if self.active:
            # The plan is checked before anything is touched: a pattern that matches nothing is reported here.
            self._training = self._started(compiled_wrapper(model) if wrapper is None else wrapper)
            self._open = True
            for other in clock.listeners():
                if isinstance(other, Watch) and other.abandoned:
                    log.info(tr("watch.log_complete"), other.path)
                    other.close()
            clock.listen(self)
            keep_interrupts()
            atexit.register(self.close)
            exit_signal.before_sudden_end(self.ends_suddenly)

    def _started(self, wrapper: nn.Module | None) -> Training:
        return Training(self.model, wrapper, self.config, self.rank, self.world)

    # What a user asks and says.

    @property
    def recorder(self) -> WatchRecorder:
        return self._training.recorder

    @property
    def path(self) -> Path:
        """The run's folder, settled with the first step."""
        return self._training.path

    @property
    def step(self) -> int:
        """The number of the step that is under way."""
        return self.recorder.step_number

    @step.setter
    def step(self, number: int) -> None:
        self._training.begin(number)
        self.recorder.at(step=number)

    @property
    def epoch(self) -> int | None:
        """The epoch, from 1, as DataLoaders count it; set it where there is none."""
        return self.recorder.epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._training.tell_epoch(number)

    @property
    def skipped(self) -> int:
        """Steps whose update an AMP scaler left out."""
        return self._training.skipped

    @property
    def reports(self) -> tuple[TriggerReport, ...]:
        """The triggers that fired so far."""
        if os.getpid() == self._pid:
            self.recorder.flush()
        return tuple(self._training.ring.reports)

    @property
    def receipt(self) -> Receipt:
        if not self.active:
            nothing = tr("watch.rank_nothing", rank=self.rank, ranks=list(self.config.ranks))
            return Receipt(sites=(), steps=0, records=0, bytes=0, seconds=0.0, overhead=0.0, notes=(nothing,))
        return self._receipt or self.recorder.receipt

    @property
    def run(self) -> Run:
        """The run of the training that is under way, or was the last."""
        return self.recorder.run

    @property
    def closed(self) -> bool:
        return not self._open

    @property
    def abandoned(self) -> bool:
        """Whether the training is over: optimizers have stepped, and none of them exists any more.

        When another watch begins, an abandoned one ends, so that a loop over folds keeps no model in memory.
        """
        return self._stepped and not any(self._owned.values())

    def dump(self, reason: str = tr("watch.requested")) -> None:
        """Brings the ring to disk now."""
        self._guarded(functools.partial(self._fire, "asked", reason), "dump")

    def advance(self) -> None:
        """Ends a step, for loops that use no torch optimizer."""
        if self._open:
            self._guarded(self._training.advance, "advance")

    def close(self) -> None:
        """Ends watching and makes the receipt. Calling it again does nothing."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        clock.forget(self)
        exit_signal.no_longer(self.ends_suddenly)
        atexit.unregister(self.close)
        self._receipt = self._training.close(self._guarded)
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
        self._save_ring(": ".join(filter(None, (type(error).__name__, str(error)))))

    def ends_suddenly(self, what: str) -> None:
        """The process is about to end without its `atexit` functions."""
        if what != exit_signal.ENDED_WELL:
            self._save_ring(what)
        self.close()

    # Called by the clock.

    def on_batch(self, loader: int, data: int, index: int, ahead: bool, batch: Any) -> None:
        self._look_for_another_training()
        self._training.on_batch(loader, data, index, ahead, batch)

    def on_exhausted(self, loader: int) -> None:
        self._training.on_exhausted(loader)

    def on_backward(self, loss: torch.Tensor | None) -> None:
        self._training.on_backward(loss)

    def after_backward(self) -> None:
        self._training.after_backward()

    def on_compiled(self, wrapper: nn.Module) -> None:
        self._training.on_compiled(wrapper)

    def on_built(self, optimizer: Optimizer) -> None:
        if self._owns(optimizer):
            self._new.add(optimizer)
            self._look_for_another_training()

    def before_update(self, optimizer: Optimizer) -> None:
        if self._owns(optimizer):
            if optimizer in self._new:
                self._look_for_another_training()
                self._new.discard(optimizer)
            self._training.before_update(optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        if self._owns(optimizer):
            self._stepped = True
            self._training.after_update(optimizer)
            self._weights = self._sampled_weights()

    def on_skipped(self, optimizer: Optimizer) -> None:
        if self._owns(optimizer):
            self._training.on_skipped(optimizer)

    def failed(self, error: Exception, event: str) -> bool:
        return self.recorder.stop_on(error, f"watch ({event})")

    # One run for each training.

    def _look_for_another_training(self) -> None:
        """Begins another run where the weights were set anew and an optimizer that never stepped is waiting.

        A second optimizer that goes on with the weights as they are (a second phase of a training) begins none.
        """
        if not self._new or not self._weights or self._weights == self._sampled_weights():
            return
        if all(self._training.trained.isdisjoint(parameters_of(new)) for new in self._new):
            return
        self._new.clear()
        self._weights = ()
        self.runs.append(self.path)
        ended = self._training
        ended.close(self._guarded)
        self._training = self._started(compiled_wrapper(self.model))

    def _sampled_weights(self) -> tuple[Any, ...]:
        """What changes when weights are set: of the first and the last parameter, where it is and its version."""
        if not self._sample:
            found = list(self.model.parameters())
            self._sample = found[:1] + found[-1:]
        return tuple((parameter.data_ptr(), parameter._version) for parameter in self._sample)

    def _owns(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer trains this model."""
        if optimizer not in self._owned:
            theirs = parameters_of(optimizer)
            self._owned[optimizer] = any(id(parameter) in theirs for parameter in self.model.parameters())
        return self._owned[optimizer]

    # The end.

    def _save_ring(self, reason: str) -> None:
        fire = functools.partial(self._fire, "crash", reason)
        with contextlib.suppress(Exception):  # the loop's own error is the one that counts
            if self._guarded(fire, "crash"):
                fire()  # without what a failed card has refused

    def _fire(self, rule: str, reason: str) -> None:
        if self._open and os.getpid() == self._pid:
            self._training.fire(rule, reason)

    def _guarded(self, action: Callable[[], None], event: str) -> str:
        """Does something of layertap's own; its error is returned as a text, or raised if that was asked for."""
        try:
            action()
        except Exception as error:
            if not self.failed(error, event):
                raise
            return f"{type(error).__name__}: {error}"
        return ""
