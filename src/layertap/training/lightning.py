"""A monitor as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from layertap.errors import MissingExtra
from layertap.messages import tr
from layertap.monitor.monitor import Monitor

try:
    from lightning.pytorch import Callback
except ImportError as missing:
    raise MissingExtra(tr("training.needs_lightning")) from missing


class MonitorCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Informs a monitor where Lightning's loop is; each recorded epoch is saved when it ends.

        trainer = Trainer(callbacks=[MonitorCallback(monitor)])
        trainer = Trainer(callbacks=[MonitorCallback(layers_to_monitor=["net.0"], epochs_to_record=[1], ...)])

    The second form makes its monitor from the LightningModule when fitting begins. Epochs count from 1. Validation is
    recorded as such (`get_single_data(phase="eval")`), the sanity check before training not at all.
    """

    def __init__(self, monitor: Monitor | None = None, **options: Any) -> None:
        self.monitor = monitor
        self._options = options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is None:
            self.monitor = Monitor(pl_module, **self._options)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is not None:
            self.monitor.set_epoch(trainer.current_epoch + 1)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.monitor is not None:
            self.monitor.set_batch_idx(batch_idx, batch=batch)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.monitor is not None and not trainer.sanity_checking:
            self.monitor.set_batch_idx(batch_idx, batch=batch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is not None:
            self.monitor.save_single_outputs()
            self.monitor.save_epoch_outputs()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end()

    def _end(self) -> None:
        if self.monitor is not None:
            self.monitor.remove_hooks()
