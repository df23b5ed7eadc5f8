"""A training script recorded from outside, on the steps that matter; it is never raised into and never slowed.

watch, Watch      the recording of a training loop (loop, training)                 <- read first
clock             how steps, epochs and batches are seen without the loop's help    <- what it changes in torch
trigger, trigger_ring, trigger_report   what brings the last steps to disk, and where NaN first appeared
read_reports      the triggers of a run
update_ratios     the norm of each update divided by the norm of its weight
script, inject    `layertap watch -- command`: how a script is recorded that is not edited
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layertap.watching.config import WatchConfig, read_config
    from layertap.watching.loop import Watch, watch
    from layertap.watching.optimizer import update_ratios
    from layertap.watching.trigger_report import TriggerReport, read_reports

__all__ = ["TriggerReport", "Watch", "WatchConfig", "read_config", "read_reports", "update_ratios", "watch"]

_FILES = {
    "TriggerReport": "trigger_report",
    "Watch": "loop",
    "WatchConfig": "config",
    "read_config": "config",
    "read_reports": "trigger_report",
    "update_ratios": "optimizer",
    "watch": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"layertap.watching has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"layertap.watching.{_FILES[name]}"), name)
