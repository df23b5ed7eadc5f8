"""`MonitoredTrainer`: a training function that somebody else wrote, with a monitor around it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from layertap.messages import tr
from layertap.monitor.monitor import Monitor

log = logging.getLogger("layertap")

P = ParamSpec("P")
T = TypeVar("T")


class MonitoredTrainer:
    """Wraps a training function so that its recorded epochs are saved, and no hook is left whatever happens.

    monitored_train = MonitoredTrainer(monitor).wrap_training_function(train)
    monitored_train(config, device)
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def wrap_training_function(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, called with `epoch_callback` and `batch_callback` as far as it takes them.

        Each epoch is saved when the next one begins, the last one when the function returns or raises.
        """
        callbacks = {
            "epoch_callback": self.monitor.create_epoch_callback(),
            "batch_callback": self.monitor.create_batch_callback(),
        }
        taken = _taken(function, callbacks)
        if "epoch_callback" not in taken:
            log.warning(
                tr("monitor.log_callback"),
                getattr(function, "__name__", function),
            )

        @functools.wraps(function)
        def monitored(*args: P.args, **kwargs: P.kwargs) -> T:
            given = {name: callbacks[name] for name in taken if name not in kwargs}
            try:
                return function(*args, **kwargs, **given)  # type: ignore[arg-type]
            finally:
                self.monitor.remove_hooks()

        return monitored


def _taken(function: Callable[..., object], names: dict[str, Callable[[int], None]]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return list(names)
    return [name for name in names if name in parameters]
