"""Everything for trainings under one name, and the callbacks of training libraries.

layertap.monitor, layertap.watching            the two products; their public names can be had here too
layertap.training.lightning, .transformers     callbacks, which need those libraries
"""

from typing import Any

from layertap import monitor, watching

__all__ = [
    "EpochStatistics",
    "Monitor",
    "MonitoredTrainer",
    "SamplePlace",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"layertap.training has no {name!r}; it has {', '.join(__all__)}")
    return getattr(monitor if name in monitor.__all__ else watching, name)
