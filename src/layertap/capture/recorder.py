"""A recording from its start to its receipt: which taps stand when, and what becomes of what they see."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from layertap.artefact import artefact_of
from layertap.capture import taps
from layertap.capture.arming import Arming, paths_above
from layertap.capture.compiled import Uncompiled, split_compiled
from layertap.capture.contents import Contents, OwnState
from layertap.capture.exit_signal import keep_interrupts
from layertap.capture.guard import Inside
from layertap.capture.info import checking_of, computes_of, rank, run_info
from layertap.capture.keep import Keeper
from layertap.capture.leaves import Leaf
from layertap.capture.module_tap import CallMoment, ModuleTap
from layertap.capture.options import RecordOptions
from layertap.capture.receipt_builder import note_of, site_receipts, what_changed, why_nothing
from layertap.capture.schedule import parse_schedule
from layertap.capture.sharding import stated_on
from layertap.capture.sink import Sink
from layertap.capture.site_counts import Source
from layertap.capture.writer_thread import Writer
from layertap.errors import BadArgument, NothingCaptured
from layertap.files import parse_bytes
from layertap.messages import tr
from layertap.result import Note
from layertap.select import Selection, select
from layertap.site import Receipt
from layertap.store import MemoryWriter, Run, RunWriter
from layertap.store.storage import is_url

log = logging.getLogger("layertap")

_NOT_YET = "record.nothing_yet"


class Recorder(Arming):
    """A recording of one model. Made by `record`."""

    def __init__(self, model: Any, path: str | os.PathLike[str] | None, options: RecordOptions) -> None:
        if not isinstance(model, nn.Module):
            raise BadArgument(tr("record.module", name=type(model).__name__))
        super().__init__(rank(), stated_on(options.mapping))
        self._model: nn.Module | None = model
        self._model_ref = weakref.ref(model)
        self._url = str(path) if is_url(path) else ""
        self.path = None if path is None or self._url else Path(path)
        named = Uncompiled(model)
        self.selection: Selection = select(named, options.sites, exclude=options.exclude, what=options.roles)
        """The plan: which sites are recorded. Print it."""
        self._phases: frozenset[str] | None = None
        self.between: Callable[[Writer], Writer] = lambda writer: writer
        """What is between the sink and the run's writer; set it before `start`."""
        self.notes: list[str] = []
        """What the receipt reports besides."""
        self.schedule = parse_schedule(options.schedule)
        self.keeper = Keeper(named, options.keep)
        # Not the options themselves: a predicate among them may hold the model, which a closed recording lets go of.
        self._budget, self._policy = parse_bytes(options.budget), options.policy
        self._exists, self._durability = options.exists, options.durability
        self.strict = options.strict
        arguments = options.arguments(str(self.schedule))
        self._info = run_info(model, kind=self.selection.model, arguments=arguments, meta=options.meta or {})
        chosen = {choice.path: choice.roles for choice in self.selection}
        self._taps = {
            module: ModuleTap(self, module, name, chosen.get(name, ())) for name, module in named.named_modules()
        }
        self._root = self._taps.get(model)
        self._above = paths_above(tap.path for tap in self._taps.values() if not tap.idle)
        self._sources: dict[tuple[str, str, str], Source] = {}
        self._eager_taps, self._regions = split_compiled(self, model, self._taps)
        self._watched = {(choice.path, role) for choice in self.selection for role in choice.roles}
        self.contents = Contents()
        """What has been recorded of shared objects in this step."""
        self.own_state = OwnState()
        self._receipt: Receipt | None = None

    # The life of a recording.

    def start(self) -> Recorder:
        """Begins recording; `with` does it for you."""
        if self._state != "new":
            raise BadArgument(tr("record.used"))
        model = self.model
        for region in self._regions:
            region.check()
        self._writer = self.open_writer()
        between = self.between(self._writer)
        retains = self.path is None and not self._url
        self.sink = Sink(between, budget=self._budget, policy=self._policy, retains=retains)
        self.begin_in_process()
        self.gathering = self.sink.gathering
        self.flags = None if hasattr(type(model), "training") else vars(model)
        self.phases = self.phases
        self._began = time.perf_counter()
        self._checked_before = checking_of(self.model)
        self._state = "open"
        keep_interrupts()
        atexit.register(self.close)
        self._open_regions()
        self._arm()
        return self

    def open_writer(self) -> Any:
        """What the run is written with; a recorder of another kind may choose the folder later."""
        if self._url:
            from layertap.store.remote_writer import RemoteWriter

            return RemoteWriter(self._url, info=self._info, rank=self.rank, exists=self._exists)
        if self.path is None:
            return MemoryWriter(info=self._info, rank=self.rank)
        # Absolute: the working directory may change while the model runs.
        return RunWriter(
            self.path.absolute(), info=self._info, rank=self.rank, exists=self._exists, durability=self._durability
        )

    def step(self) -> None:
        """Ends a step: calls are counted anew, and the schedule decides about the next one."""
        if self._state != "open" or not self.of_this_process():
            return
        self.raise_failure()
        self.sink.pause()
        self._unhook_leaves()
        self.contents.clear()
        self.new_order()
        self.step_number += 1
        self._arm()

    def at(self, *, step: int | None = None, epoch: int | None = None, batch: int | None = None) -> None:
        """Says where the loop is, as far as it is known; the schedule then decides again."""
        self.step_number = self.step_number if step is None else step
        self.epoch = self.epoch if epoch is None else epoch
        self.batch = self.batch if batch is None else batch
        self._arm()

    def after(self, action: Callable[[], None]) -> None:
        """Has the writer's thread do something once all that was recorded so far has arrived there."""
        if self._state == "open" and self.of_this_process():
            self.sink.after(action)

    def flush(self) -> None:
        """Waits until everything recorded so far is written, and can be read."""
        if (
            self._state == "open" and self.of_this_process()
        ):  # in a forked child no thread writes, and nothing would arrive
            self.sink.flush()
            self.raise_failure()

    def close(self) -> None:
        """Ends recording, writes what is left, and makes the receipt. Calling it again does nothing."""
        if self._state != "open" or not self.of_this_process():
            return
        self._disarm()
        if self._regions:
            taps.detach(self._attached)
        for region in self._regions:
            region.close()
        self._state = "closed"
        atexit.unregister(self.close)
        self.sink.close()
        with self._errors_logged():
            self._writer.settle()
        self._receipt = self._make_receipt()
        with self._errors_logged():
            computes = computes_of(self.model)  # known only when it has run
            self._writer.close(self._receipt, **({"computes_in": computes} if computes else {}))
        if self._error and not self._receipt.error:
            self._receipt = replace(self._receipt, error=self._error)
        self._release()
        self.raise_failure()

    @contextmanager
    def _errors_logged(self) -> Iterator[None]:
        """Around what is written at the end: that a disk is full or a folder gone must not end the user's program."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a strict recording raises it when everything is as it was
            text = f"{type(error).__name__}: {error}"
            self._error = self._error or text
            self.sink.keep_failure(error)
            log.error(tr("record.log_incomplete"), text)

    def _release(self) -> None:
        """Lets go of the model: who keeps a recording for its receipt does not keep the model."""
        for tap in self._taps.values():
            tap.release()
        self._taps.clear()
        self.contents.clear()
        self.own_state.clear()
        self._eager_taps, self._attached, self._regions = {}, {}, []
        self._model, self.flags = None, None

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # the loop's own error is the one that counts
                raise
        if error is None and self._receipt is not None and not self._receipt.fired and not self._receipt.error:
            raise NothingCaptured(why_nothing(self._receipt))

    @property
    def receipt(self) -> Receipt:
        """What the recording did, or has done so far."""
        if self._state == "new":
            raise BadArgument(tr(_NOT_YET))
        self.flush()
        return self._receipt or self._make_receipt()

    @property
    def run(self) -> Run:
        """The run that was made."""
        if self._state == "new":
            raise BadArgument(tr(_NOT_YET))
        self.flush()
        return Run(self._writer if isinstance(self._writer, MemoryWriter) else self._url or self._writer.path)

    @property
    def model(self) -> nn.Module:
        """What is recorded. A closed recording does not keep it alive."""
        model = self._model_ref() if self._model is None else self._model
        if model is None:
            raise BadArgument(tr("record.model_gone"))
        return model

    @property
    def phase(self) -> str:
        model = self._model  # the property, where it is gone, says so
        return "train" if (self.model if model is None else model).training else "eval"

    # What the taps use.

    @property
    def phases(self) -> frozenset[str] | None:
        """Record only while the model is in one of these phases; None means both."""
        return self._phases

    @phases.setter
    def phases(self, phases: frozenset[str] | None) -> None:
        self._phases = phases
        # Where nothing is left to a class derived from this one, tap.c says itself when and in which phase it records.
        kind = type(self)
        own = kind.live is Recorder.live and kind.phase is Recorder.phase and kind.seen is Recorder.seen
        self.simple = own and phases is None

    @property
    def live(self) -> bool:
        """Whether taps may record: between start and end, and not in a forked child such as a DataLoader's worker."""
        return self.attached and self.of_this_process() and (self.phases is None or self.phase in self.phases)

    @property
    def touched(self) -> bool:
        """Whether anything of the present step has been recorded."""
        return self.last_step == self.step_number

    @property
    def calls(self) -> int:
        """Calls of the model itself that were seen."""
        return 0 if self._root is None else self._root.total

    def note(self, path: str, kind: str, role: str, leaf: str, tensor: torch.Tensor, *, call: int = 0) -> None:
        """Records a tensor that no module's call brings, for instance a loss; on steps that are not due, nothing."""
        if not self.live:
            return
        with self.inside(path):
            source = self._sources.setdefault((path, role, kind), Source(path, kind))
            source.counts.fired += 1
            moment = CallMoment(call, self.step_number, self.epoch, self.batch, self.phase, False)
            self.take(source, role, Leaf(leaf, tensor), moment)

    def inside(self, path: str) -> Inside:
        """Around layertap's own work in a tap: it is timed, and an error in it does not reach the user's loop."""
        return Inside(self, path)

    def warn_once(self, note: str) -> None:
        """Says something once, in the log and in the receipt."""
        if note not in self.notes:
            self.notes.append(note)
            log.warning("layertap: %s", note)

    def stop_on(self, error: Exception, path: str) -> bool:
        """Ends recording after an error of layertap's own; returns whether it is kept from the user's code."""
        if not self._error:
            self._error = f"{path or Note('capture.the_model')}: {type(error).__name__}: {error}"
            log.error(tr("record.log_stopped"), self._error)
        self._disarm()
        return not self.strict

    def _make_receipt(self) -> Receipt:
        error = self._error or self.sink.error
        module_taps = list(self._taps.values())
        changed = what_changed(module_taps, dict(Uncompiled(self.model).named_modules(remove_duplicate=False)))
        never_due = "" if self._ever_due else Note("why.never_due", schedule=self.schedule)
        return Receipt(
            sites=(
                *site_receipts(module_taps, changed, never_due=never_due, error=error),
                *(
                    source.counts.receipt(path=path, role=role, kind=kind)
                    for (path, role, kind), source in self._sources.items()
                ),
            ),
            steps=getattr(self.sink.writer, "steps", self._steps),
            records=self._writer.records,
            bytes=self._writer.bytes,
            seconds=time.perf_counter() - self._began - (checking_of(self.model) - self._checked_before),
            overhead=self.overhead,
            lost=self.sink.taken - self._writer.records - getattr(self.sink.writer, "let_go", 0),
            error=error,
            notes=(
                *note_of(changed),
                *(state.notes if (state := artefact_of(self.model)) is not None else ()),
                *self.parts.notes(self.rank),
                *self.notes,
                *(self.stated.unused() if self.stated is not None else ()),
                *self.sink.notes,
            ),
        )
