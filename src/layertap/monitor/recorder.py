"""The recorder behind a monitor: `record`'s own, asked about each output, and given the samples of the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from layertap.capture.leaves import LeafSlot, fill, leaves, parts
from layertap.capture.module_tap import Call, CallMoment, ModuleTap
from layertap.capture.options import RecordOptions
from layertap.capture.pending_record import PendingRecord
from layertap.capture.recorder import Recorder
from layertap.capture.site_counts import Source
from layertap.errors import RunError
from layertap.measure import supported
from layertap.measure.rows import row_fingerprints
from layertap.messages import tr
from layertap.monitor.samples import FINGERPRINTS, INDICES
from layertap.site import Receipt, SiteReceipt
from layertap.store import Run, RunWriter
from layertap.store.plans import RecordPlan
from layertap.store.recorded import recorded_steps

log = logging.getLogger("layertap")

Accept = Callable[[ModuleTap, Call, Any], Any]


class MonitorRecorder(Recorder):
    """Records the outputs of some modules at the moments when a monitor wants them."""

    def __init__(self, model: nn.Module, options: RecordOptions, accept: Accept) -> None:
        super().__init__(model, None, options)
        self.samples: torch.Tensor | None = None
        """The indices of the samples in this batch, where the loop gives them."""
        self._accept = accept
        self._graph_calls: dict[tuple[str, int, str, int], tuple[CallMoment, list[str]]] = {}
        self._identified: tuple[int, str, int] | None = None

    @property
    def started(self) -> bool:
        return self._state != "new"

    def empty_receipt(self, why: str) -> Receipt:
        """The receipt of a recording that never began."""
        sites = (SiteReceipt(path=choice.path, role="output", kind=choice.kind, why=why) for choice in self.selection)
        return Receipt(sites=tuple(sites), steps=0, records=0, bytes=0, seconds=0.0, overhead=0.0)

    @property
    def usage(self) -> dict[str, int]:
        """Bytes under way to disk, and bytes recorded."""
        if not self.started:
            return {"under_way": 0, "recorded": 0}
        return {"under_way": self.sink.under_way, "recorded": self._writer.bytes}

    @property
    def shard(self) -> str:
        """Where the run is being written; empty for a run in memory."""
        return self._writer.shard if isinstance(self._writer, RunWriter) else ""

    def since(self, shard: str) -> Run:
        """What was recorded since then; opening all of a long run at the end of each epoch would take ever longer."""
        self.flush()
        return Run(self._writer.path, since=shard) if isinstance(self._writer, RunWriter) else self.run

    def begin(self) -> int:
        """Starts; returns the number of the first step, behind those of an earlier session in the same folder."""
        first = 0
        try:
            if self.path is not None and self._exists == "append":
                last = recorded_steps(self.path, self.rank)[1]
                first = 0 if last is None else last + 1
            self.start()
        except RunError as error:
            if self.strict:
                raise
            # A folder that could be written when the monitor was made, and cannot now: the training still gets its
            # data, as far as the budget of memory goes.
            log.error("layertap: %s", tr("monitor.into_memory", error=error))
            self.path = None
            self.start()
        return first

    def move(self, *, step: int, epoch: int | None, batch: int | None) -> None:
        """Goes on to another batch: calls are counted anew, and the schedule decides whether it is tapped."""
        self.epoch, self.batch, self.step_number = epoch, batch, step - 1
        self.step()

    def identify(self, batch: Any) -> None:
        """Takes the samples of this step from the batch itself, where the model as a whole is not called with it."""
        first = next((leaf.tensor for leaf in leaves(batch) if leaf.tensor is not None and leaf.tensor.dim()), None)
        if first is not None and self.live:
            with self.inside(""):
                moment = CallMoment(0, self.step_number, self.epoch, self.batch, self.phase, False)
                for part in parts(first.detach()):
                    if part.tensor.dim() and not supported(part.tensor):
                        self._identify(Source("", type(self.model).__name__), part.tensor, moment)

    def graph_calls(self) -> list[tuple[str, CallMoment, Any]]:
        """The calls inside compiled graphs since this was asked last, each with the outline of its output."""
        calls, self._graph_calls = self._graph_calls, {}
        return [(path, moment, _outline_of(names)) for (path, *_), (moment, names) in calls.items()]

    def pending_record(self, tap: ModuleTap | Source, plan: RecordPlan, moment: CallMoment) -> PendingRecord:
        if plan.role == "output" and isinstance(tap, ModuleTap) and tap.region is not None:
            # No Python sees this output as a whole: a graph returned the tensors of it.
            call = (tap.path, moment.step, moment.phase, moment.call)
            self._graph_calls.setdefault(call, (moment, []))[1].append(plan.leaf)
        return super().pending_record(tap, plan, moment)

    def seen(self, tap: ModuleTap, call: Call, output: Any) -> Any:
        return self._accept(tap, call, output)

    def on_model_input(self, tap: ModuleTap | Source, tensor: torch.Tensor, moment: CallMoment) -> None:
        if tensor.dim():
            self._identify(tap, tensor, moment)

    def _identify(self, source: ModuleTap | Source, tensor: torch.Tensor, moment: CallMoment) -> None:
        call = (moment.step, moment.phase, moment.call)
        if self._identified == call:
            return  # the first tensor that the model is given represents its samples
        self._identified = call
        self._put_input(source, FINGERPRINTS, row_fingerprints(tensor.detach()), moment)
        if self.samples is not None:
            self._put_input(source, INDICES, self.samples, moment)

    def _put_input(self, source: ModuleTap | Source, leaf: str, tensor: torch.Tensor, moment: CallMoment) -> None:
        self.put(source, self.record_plan(source, "input", leaf, tensor, asked=False), tensor, moment)


def _outline_of(names: list[str]) -> Any:
    """The form of an output from the key paths of its tensors: numbers are places in a tuple, the rest are keys."""
    if names == [""]:
        return LeafSlot("")
    below: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        below.setdefault(first, []).append(rest)
    inner = {first: _moved(_outline_of(rest), first) for first, rest in below.items()}
    return tuple(inner.values()) if all(map(str.isdigit, inner)) else inner


def _moved(outlined: Any, first: str) -> Any:
    return fill(outlined, lambda path: LeafSlot(f"{first}.{path}" if path else first))


def modules_at(paths: Iterable[str]) -> list[Any]:
    """The patterns for modules at these paths; the empty path is the model itself."""
    return [path or _the_model for path in paths]


def _the_model(path: str, module: nn.Module) -> bool:
    return not path
