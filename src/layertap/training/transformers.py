"""A monitor as a callback of `transformers.Trainer`."""

from __future__ import annotations

from typing import Any

from layertap.errors import MissingExtra
from layertap.messages import tr
from layertap.monitor.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise MissingExtra(tr("training.needs_transformers")) from missing


class MonitorCallback(TrainerCallback):
    """Informs a monitor where the Trainer's loop is; each recorded epoch is saved when it ends.

        trainer = Trainer(model, ..., callbacks=[MonitorCallback(monitor)])
        trainer = Trainer(model, ..., callbacks=[MonitorCallback(layers_to_monitor=["model.layers.0"], ...)])

    The second form makes its monitor from the Trainer's model when training begins. Epochs count from 1. With gradient
    accumulation every forward pass is a batch of its own. Evaluation is recorded as such (`phase="eval"`). If training
    raises, call `callback.monitor.remove_hooks()`; else the hooks stay until the process ends, since the Trainer tells
    its callbacks nothing of it.
    """

    def __init__(self, monitor: Monitor | None = None, **options: Any) -> None:
        self.monitor = monitor
        self._options = options
        self._batch = -1
        self._predicted = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.monitor is None:
            self.monitor = Monitor(model, **self._options)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batch = -1
        if self.monitor is not None:
            # A fraction of epochs done; its rounding must not take the begin of one for the end of another.
            self.monitor.set_epoch(int((state.epoch or 0) + 1e-6) + 1)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._next()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._next()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._expect_evaluation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.save_single_outputs()
            self.monitor.save_epoch_outputs()
        self._expect_evaluation(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._predicted += 1  # this one is done: the next batch of the evaluation
        if self.monitor is not None:
            self.monitor.set_batch_idx(self._predicted)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.remove_hooks()

    def _next(self) -> None:
        self._batch += 1
        if self.monitor is not None:
            self.monitor.set_batch_idx(self._batch)

    def _expect_evaluation(self, control: Any) -> None:
        if control.should_evaluate and self.monitor is not None:
            self._predicted = 0
            self.monitor.set_batch_idx(0)
