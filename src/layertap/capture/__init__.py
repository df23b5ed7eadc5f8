"""Tensors out of a running model.

`recording` is the door, `recorder` what stands behind it. `taps` sees the calls of modules (`classes`: how),
`module_tap` takes the tensors of a call, `leaves` finds them in nested values, `sink` measures them and hands them to
the store's writer (`cuda`: without synchronising), `ledger` balances the receipt.
Compiled graphs: `graph_taps` are taps that a compiler sees, `baking` makes them outputs of a model's graph, `compiled`
records a model that torch.compile was applied to (`graph_ops`: with operations of our own).
"""

from typing import TYPE_CHECKING, Any

from layertap.capture.keep import Level
from layertap.capture.planning import plan
from layertap.capture.recorder import Recorder
from layertap.capture.recording import record
from layertap.capture.schedule import Schedule
from layertap.store.layout import Layout

if TYPE_CHECKING:
    from layertap.capture.baking import Tapped, bake

__all__ = ["Layout", "Level", "Recorder", "Schedule", "Tapped", "bake", "plan", "record"]


def __getattr__(name: str) -> Any:
    if name in ("Tapped", "bake"):  # these import torch._dynamo, which takes seconds
        from layertap.capture import baking

        return getattr(baking, name)
    raise AttributeError(f"layertap.capture has no {name!r}")
