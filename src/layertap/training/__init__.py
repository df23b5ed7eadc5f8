"""Watching a training that is not ours: never in its way, nothing lost.

Monitor           chosen layers at chosen epochs and batches, as a class that the loop calls
MonitoredTrainer  the same around a training function
epoch_statistics  statistics of whole epochs, merged exactly over uneven batches
find_sample       where a sample was, whatever the shuffling
plot_attention    attention weights by head, as a picture
TensorBoard       scalars and histograms for TensorBoard

layertap.training.lightning, layertap.training.transformers    callbacks, which need those libraries

layers, entries   what is asked for; where each output is
monitor_recorder  `record`'s recorder, asked about each output          <- how it hangs together
saving, files     the documented files

watch, Watch      a training loop recorded from outside, on the steps that matter (watch_loop)
watch_clock       how steps, epochs and batches are seen without being told     <- what it does to torch
trigger, …_ring, …_birth   what brings the last steps to disk, and where NaN was born
read_reports      the triggers of a run
update_ratios     ‖update‖ / ‖weight‖ of a run
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layertap.training.epochs import EpochStatistics, epoch_statistics
    from layertap.training.monitor import Monitor
    from layertap.training.plot import plot_attention
    from layertap.training.samples import Place, find_sample
    from layertap.training.tensorboard import TensorBoard
    from layertap.training.trainer import MonitoredTrainer
    from layertap.training.trigger_birth import TriggerReport, read_reports
    from layertap.training.watch_config import WatchConfig, read_config
    from layertap.training.watch_loop import Watch, watch
    from layertap.training.watch_optimizer import update_ratios

__all__ = [
    "EpochStatistics",
    "Monitor",
    "MonitoredTrainer",
    "Place",
    "TensorBoard",
    "TriggerReport",
    "Watch",
    "WatchConfig",
    "epoch_statistics",
    "find_sample",
    "plot_attention",
    "read_config",
    "read_reports",
    "update_ratios",
    "watch",
]

_FILES = {
    "EpochStatistics": "epochs",
    "Monitor": "monitor",
    "MonitoredTrainer": "trainer",
    "Place": "samples",
    "TensorBoard": "tensorboard",
    "epoch_statistics": "epochs",
    "find_sample": "samples",
    "plot_attention": "plot",
    "TriggerReport": "trigger_birth",
    "Watch": "watch_loop",
    "WatchConfig": "watch_config",
    "read_config": "watch_config",
    "read_reports": "trigger_birth",
    "update_ratios": "watch_optimizer",
    "watch": "watch_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"layertap.training has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"layertap.training.{_FILES[name]}"), name)
