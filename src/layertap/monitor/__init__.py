"""The outputs of chosen layers at chosen epochs and batches of a training loop.

Monitor           the class that the loop calls                                    <- read first
MonitoredTrainer  the same around a training function
epoch_statistics  statistics of whole epochs, merged exactly over uneven batches
find_sample       where a sample was, whatever the shuffling
plot_attention    attention weights by head, as a picture
TensorBoard       scalars and histograms for TensorBoard

layers, entries   what is asked for; where each output is
recorder          `record`'s recorder, asked about each output
files             the documented files, and the thread that writes them
never_raise       errors and missing outputs are logged once and never raised
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layertap.monitor.epochs import EpochStatistics, epoch_statistics
    from layertap.monitor.monitor import Monitor
    from layertap.monitor.plot import plot_attention
    from layertap.monitor.samples import SamplePlace, find_sample
    from layertap.monitor.tensorboard import TensorBoard
    from layertap.monitor.trainer import MonitoredTrainer

__all__ = [
    "EpochStatistics",
    "Monitor",
    "MonitoredTrainer",
    "SamplePlace",
    "TensorBoard",
    "epoch_statistics",
    "find_sample",
    "plot_attention",
]

_FILES = {
    "EpochStatistics": "epochs",
    "Monitor": "monitor",
    "MonitoredTrainer": "trainer",
    "SamplePlace": "samples",
    "TensorBoard": "tensorboard",
    "epoch_statistics": "epochs",
    "find_sample": "samples",
    "plot_attention": "plot",
}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"layertap.monitor has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"layertap.monitor.{_FILES[name]}"), name)
