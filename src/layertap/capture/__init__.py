"""Tensors out of a running model.

recording        `record`: a context manager (options); planning: what it would take           <- read first
recorder         a recording from its start to its receipt (arming: when taps stand; taking: one tensor)
short_way        tap.c: calls and tensors of known signature, without Python (plain_types: where it was not compiled)
taps             how the calls of a module are seen (classes: the class that a tapped module gets; guard: our own work)
module_tap       one module: which tensors of a call are taken (quick: the short way; slots: what is known of it)
leaves           tensors inside nested values; sharding, collectives: of distributed ones, the part that is here
contents         what has been recorded of shared objects; own_share: the gradients of a module's own inputs
keep, schedule   how much is kept, and when
sink             to the writer_thread: gathering (the open batch), pending_record, room, headroom (bytes), buffers, tee
cuda             from a device without synchronising
receipt_builder  what came from each site (site_counts) and why nothing did; info: what a run says about its making
graph_taps       taps that a compiler sees; graph_ops: with operations of our own
baking           `bake`: taps as outputs of a model's graph; compiled: recording what torch.compile was applied to
exit_signal      a script that Ctrl-C ended still ends by Ctrl-C
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
