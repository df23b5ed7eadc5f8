"""`Monitor`: the outputs of chosen layers at chosen epochs and batches of a training that is not ours.

A thin layer over `record`: the same taps, the same run on disk. The tensors go to the run as they come, so a long epoch
needs no memory and a crash loses little; what a monitor itself holds is where each of them is.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from layertap.capture.leaves import outline
from layertap.capture.module_tap import UNWANTED, Call, CallMoment, ModuleTap
from layertap.capture.options import RecordOptions
from layertap.capture.tee import RecordListener, Tee
from layertap.errors import BadArgument, RunExists
from layertap.files import parse_bytes
from layertap.formats.detect import layout_of
from layertap.messages import tr
from layertap.monitor.attention import with_weights
from layertap.monitor.entries import BatchOutput, EpochEntries, OutputReader, collected, lists_of
from layertap.monitor.files import Saver
from layertap.monitor.layers import MonitoredLayer, integer_list, read_config, read_layers
from layertap.monitor.never_raise import MonitorLog, never_raise, nothing, why_nothing
from layertap.monitor.recorder import MonitorRecorder, modules_at
from layertap.site import Receipt, Statistics
from layertap.store import Run
from layertap.store.folder_lock import FolderLock
from layertap.store.storage import on_this_machine


class Monitor:
    """Records the outputs of layers at the given epochs and batches, and hands them out, or saves them.

        monitor = Monitor(model, ["encoder.layers.0"], epochs_to_record=[1, 5], output_dir="out", batch_indices=[0])
        for epoch in range(1, 11):
            monitor.set_epoch(epoch)
            for batch_idx, batch in enumerate(loader):
                monitor.set_batch_idx(batch_idx)
                ...                                      # the training as it is
            data = monitor.get_single_data()             # {alias: {"data": {(epoch, batch_idx): output}, ...}}
            monitor.save_single_outputs()
        monitor.remove_hooks()

    `layers_to_monitor` is a list of names or `{name: {"alias": ..., "record_type": "single" | "epoch_full"}}`; `single`
    takes the batches in `batch_indices`, `epoch_full` every batch of the epoch. See docs/training.md for the rest:
    `keep` is `record`'s, `condition` a function of an output, `every` takes each n-th batch of an epoch, `attention`
    adds the weights of `nn.MultiheadAttention`, `files` is "pt", "npz" or None, `asynchronous` writes them in another
    thread, `tensorboard` is a folder for its files, `budget` and `policy` are `record`'s.
    """

    def __init__(
        self,
        model: nn.Module,
        layers_to_monitor: Sequence[str] | Mapping[str, Any],
        epochs_to_record: Iterable[int],
        output_dir: str | os.PathLike[str],
        batch_indices: Iterable[int] | None = None,
        *,
        keep: Any = "tensor",
        condition: Callable[[Any], bool] | None = None,
        every: int = 1,
        attention: bool = True,
        files: Literal["pt", "npz"] | None = "pt",
        asynchronous: bool = False,
        tensorboard: str | os.PathLike[str] | None = None,
        budget: int | str = "2GiB",
        policy: Literal["block", "stats", "drop"] = "block",
        strict: bool = False,
        exists: Literal["error", "append", "replace"] = "append",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise BadArgument(tr("monitor.module", name=type(model).__name__))
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module  # the names that people know are those of the model inside
        if files not in ("pt", "npz", None):
            raise BadArgument(tr("monitor.files", files=files))
        if exists not in ("append", "replace", "error"):
            raise BadArgument(tr("monitor.exists", exists=exists))
        if type(every) is not int or every < 1:
            raise BadArgument(tr("monitor.every", every=every))
        epochs_to_record = integer_list("epochs_to_record", epochs_to_record)
        batch_indices = None if batch_indices is None else integer_list("batch_indices", batch_indices)
        self.model = model
        self.layers = read_layers(model, layers_to_monitor, epochs_to_record, batch_indices)
        """What is monitored, one item for each alias."""
        self.epochs_to_record = frozenset(epochs_to_record)
        self.batch_indices = frozenset(batch_indices or ())
        self.current_epoch: int | None = None
        self.current_batch_idx: int | None = None
        self._condition, self._every, self._attention, self._strict = condition, every, attention, strict
        self._by_path: dict[str, list[MonitoredLayer]] = {}
        for item in self.layers:
            self._by_path.setdefault(item.path, []).append(item)
        self._held = EpochEntries(self.layers)
        self._step = -1
        self._since = ""
        self._closed = False
        self._pid = os.getpid()
        self._came = False
        self._reached = False
        self._log = MonitorLog()
        self._listeners: list[RecordListener] = []
        if tensorboard is not None:
            from layertap.monitor.tensorboard import TensorBoard

            self._listeners.append(TensorBoard(tensorboard))
        options = RecordOptions(
            sites=modules_at(self._by_path),
            what="output",
            keep=keep,
            schedule=self._due,
            budget=budget,
            policy=policy,
            strict=strict,
            exists=exists,
            meta={"monitor": {item.alias: [item.layer, item.record_type] for item in self.layers}},
        )
        self._recorder = MonitorRecorder(model, options, self._accept)
        folder = on_this_machine(output_dir, "Monitor")
        if exists == "error" and layout_of(folder) == "run":  # raised here, not when epoch 5 begins
            raise RunExists(tr("monitor.has_run", output_dir=output_dir))
        self._folder_lock = FolderLock(folder, self._recorder.rank)
        self.output_dir = self._folder_lock.folder
        """Where the run and the files go: the folder that was given, or one in it while another monitor has that."""
        self._recorder.path = self.output_dir
        rank = self._recorder.rank
        folder = self.output_dir / f"rank_{rank}" if rank else self.output_dir  # names of files do not tell ranks apart
        self._saver = Saver(folder, files, limit=parse_bytes(budget), asynchronous=asynchronous)

    @classmethod
    def from_config(
        cls, model: nn.Module, config: str | os.PathLike[str] | Mapping[str, Any], **options: Any
    ) -> Monitor:
        """From `config.json`, or what was read from it: monitor_layers, monitor_epochs, monitor_batches,
        monitor_output_dir. What is given as an option of `Monitor` goes first."""
        return cls(model, **read_config(config, options))

    # Where the loop is.

    @never_raise(nothing)
    def set_epoch(self, epoch: int) -> None:
        """An epoch begins, counted from 1. What is held of another is saved if it is not yet, and let go."""
        epoch = int(epoch)
        self._take_graph_calls()
        if epoch != self.current_epoch:
            try:
                self._end_epoch()
            finally:  # what could not be saved must not keep the next epoch from being recorded as what it is
                self._step += 1  # an epoch whose batches are not counted is one step, else its first batch takes this
                self.current_epoch, self.current_batch_idx = epoch, None
                self._came = False
                self._reached |= epoch in self.epochs_to_record
                self._held.clear("single", "epoch_full")
                self._move()
        if self._closed and epoch in self.epochs_to_record:
            self._log.report(tr("monitor.hooks_removed", epoch=epoch))

    @never_raise(nothing)
    def set_batch_idx(self, batch_idx: int, samples: Any = None, batch: Any = None) -> None:
        """A batch begins, counted from 0. `samples`: the indices of its samples in the data, where they are known;
        `batch`: the batch, by which its samples are known where only parts of the model are called."""
        self._take_graph_calls()
        self._step += self.current_batch_idx is not None or self._step == self._held.last_step
        self.current_batch_idx = int(batch_idx)
        self._came |= self.current_batch_idx in self.batch_indices
        self._recorder.samples = None
        self._move()  # first, so that odd samples cannot keep a batch from being recorded as what it is
        if samples is not None:
            self._recorder.samples = torch.as_tensor(samples, dtype=torch.int64, device="cpu")
        if batch is not None:
            self._recorder.identify(batch)

    def create_epoch_callback(self) -> Callable[[int], None]:
        """A function to call with each epoch."""
        return self.set_epoch

    def create_batch_callback(self) -> Callable[[int], None]:
        """A function to call with each batch's index."""
        return self.set_batch_idx

    # What was recorded.

    @never_raise(dict)
    def get_single_data(self, layers: Iterable[str] | None = None, *, phase: str | None = None) -> dict[str, Any]:
        """`{alias: {"layer", "alias", "output_shape", "data": {(epoch, batch_idx): output}}}` of the `single` layers.

        `layers` are aliases or names; `phase` is "train" or "eval": by default what was recorded in training mode, and
        where nothing was, in eval mode. All of it is yours: clearing or going on does not change it.
        """
        return self._data("single", layers, phase)

    @never_raise(dict)
    def get_epoch_data(self, layers: Iterable[str] | None = None, *, phase: str | None = None) -> dict[str, Any]:
        """The same of the `epoch_full` layers."""
        return self._data("epoch_full", layers, phase)

    @property
    def single_data(self) -> dict[str, Any]:
        return self.get_single_data()

    @property
    def epoch_data(self) -> dict[str, Any]:
        return self.get_epoch_data()

    def get_single_outputs(self) -> dict[str, list[Any]]:
        """The outputs of each `single` layer in order, by alias."""
        return lists_of(self.get_single_data())

    def get_epoch_buffers(self) -> dict[str, list[Any]]:
        """The outputs of each `epoch_full` layer in order, by alias."""
        return lists_of(self.get_epoch_data())

    @never_raise(dict)
    def epoch_statistics(self, layers: Iterable[str] | None = None) -> dict[str, dict[str, Statistics]]:
        """By alias and leaf: the statistics of all values of the epoch so far, merged exactly over its batches."""
        self._take_graph_calls()
        chosen = {item.alias: self._held.in_phase(item, None) for item in self._held.chosen(None, layers)}
        reader = self._reader(entry for entries in chosen.values() for entry in entries)
        return {alias: reader.statistics(entries) for alias, entries in chosen.items() if entries}

    @property
    def run(self) -> Run:
        """The run so far: everything that was recorded, as `diff` and `show` read it."""
        return self._recorder.run

    @property
    def receipt(self) -> Receipt:
        """What really came from each layer, and where nothing came, why."""
        return self._recorder.receipt if self._recorder.started else self._recorder.empty_receipt(self._why_nothing())

    @property
    def usage(self) -> dict[str, int]:
        """Memory watched: outputs held, bytes under way to disk (never more than the budget), bytes recorded."""
        return {"outputs": len(self._held), **self._recorder.usage}

    # Saving and letting go.

    @never_raise(list)
    def save_single_outputs(self, layers: Iterable[str] | None = None) -> list[Path]:
        """Writes `epoch_{e}_batch_{b}_{alias}.pt` for what is held of the `single` layers; returns the files."""
        return self._save("single", layers)

    @never_raise(list)
    def save_epoch_outputs(self, layers: Iterable[str] | None = None) -> list[Path]:
        """The same for the `epoch_full` layers, and `epoch_{e}_batch_full_{alias}.pt`: all batches joined on dimension
        0, with their statistics."""
        return self._save("epoch_full", layers)

    @never_raise(nothing)
    def save_custom_output(self, obj: Any, name: str) -> Path | None:
        """Saves what you made of it, beside the others."""
        return self._saver.save_object(obj, name)

    @never_raise(nothing)
    def clear_current_epoch_data(self) -> None:
        """Lets go of what is held. What has been recorded stays in the run on disk."""
        self._held.clear("single", "epoch_full")

    @never_raise(nothing)
    def clear_epoch_data(self) -> None:
        """Lets go of what is held of the `epoch_full` layers."""
        self._held.clear("epoch_full")

    @never_raise(nothing)
    def remove_hooks(self) -> None:
        """Ends monitoring: what is unsaved is saved, the run is completed, the model is as it was."""
        if self._closed or os.getpid() != self._pid:  # a forked child that ends has nothing to save
            return
        self._closed = True
        atexit.unregister(self.remove_hooks)
        self._recorder.pause()
        try:
            self._end_epoch()
        finally:
            self._saver.close()
            self._recorder.close()
            for listener in self._listeners:
                listener.close()
            if self._folder_lock is not None:
                self._folder_lock.release()
        if not self._recorder.started:
            self._log.report(tr("monitor.nothing", why=self._why_nothing()))

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove_hooks()

    def _custom_condition(self, output: Any) -> bool:
        """Whether an output is recorded; a subclass may say otherwise."""
        return self._condition is None or bool(self._condition(output))

    # How it goes.

    def _due(self, step: int, epoch: int | None, batch: int | None) -> bool:
        return any(self._wants(item) for item in self.layers)

    def _wants(self, item: MonitoredLayer) -> bool:
        if self._closed or self.current_epoch not in self.epochs_to_record:
            return False
        if item.record_type == "single":
            return self.current_batch_idx in self.batch_indices
        return self.current_batch_idx is None or self.current_batch_idx % self._every == 0

    def _move(self) -> None:
        """Puts the taps on or takes them off, as this moment asks."""
        recorder = self._recorder
        if not recorder.started:
            if not self._due(0, None, None):
                return
            if self._listeners:
                recorder.between = lambda writer: Tee(writer, self._listeners)
            self._step += recorder.begin()
            atexit.register(self.remove_hooks)
        recorder.move(step=self._step, epoch=self.current_epoch, batch=self.current_batch_idx)

    def _accept(self, tap: ModuleTap, call: Call, output: Any) -> Any:
        """What is recorded of an output now, if anything; and the note of where it will be."""
        items = [item for item in self._by_path[tap.path] if self._wants(item)]
        if not items:
            return UNWANTED
        with torch.no_grad():
            if not self._custom_condition(output):
                return UNWANTED
        if self._attention:
            output = with_weights(tap.module, tap.path, call.args, call.kwargs, output)
        self._hold(items, tap.path, call.moment, outline(output))
        return output

    def _hold(self, items: list[MonitoredLayer], path: str, moment: CallMoment, outlined: Any) -> None:
        if not self._held:
            self._since = self._recorder.shard
        self._held.take(items, path, self.current_epoch or 0, self.current_batch_idx, moment, outlined)

    def _take_graph_calls(self) -> None:
        """What compiled graphs returned in this batch."""
        for path, moment, outlined in self._recorder.graph_calls():
            if items := [item for item in self._by_path.get(path, ()) if self._wants(item)]:
                self._hold(items, path, moment, outlined)
                if self._condition is not None:
                    self._log.report(tr("monitor.compiled_condition", layer=path))

    def _data(self, record_type: str, layers: Iterable[str] | None, phase: str | None) -> dict[str, Any]:
        self._take_graph_calls()
        chosen = [(item, self._held.in_phase(item, phase)) for item in self._held.chosen(record_type, layers)]
        reader = self._reader(entry for _, entries in chosen for entry in entries)
        found = {item.alias: collected(item, entries, reader) for item, entries in chosen}
        self._log.report_missing(reader)
        return {alias: data for alias, data in found.items() if data is not None}

    def _reader(self, entries: Iterable[BatchOutput], since: str | None = None) -> OutputReader:
        wanted = list(entries)
        since = self._since if since is None else since
        # Waiting for the writer, and opening the run, only where there is something to read.
        return OutputReader(self._recorder.since(since) if wanted else None, wanted, self._recorder.rank)

    def _save(self, record_type: str, layers: Iterable[str] | None, unsaved: bool = False) -> list[Path]:
        self._take_graph_calls()
        jobs = [(item, self._held.of(item)) for item in self._held.chosen(record_type, layers)]
        # By the time that another thread writes them, the loop may hold the next epoch.
        reader = functools.partial(self._reader, since=self._since)
        return self._saver.save(jobs, reader, self._log.report_missing, unsaved=unsaved)

    def _end_epoch(self) -> None:
        self._save_unsaved("single")
        self._save_unsaved("epoch_full")
        if self.current_epoch in self.epochs_to_record and self._recorder.started:
            for item in self.layers:
                self._tell_silence(item)

    @never_raise(list)
    def _save_unsaved(self, record_type: str) -> list[Path]:
        return self._save(record_type, None, unsaved=True)

    # What is said.

    def _why_nothing(self) -> str:
        return why_nothing(self.epochs_to_record, self.batch_indices, self.current_epoch, self._reached)

    def _tell_silence(self, item: MonitoredLayer) -> None:
        """Nothing came from a layer in an epoch that was to be recorded: never in silence."""
        if self._held.came(item.path, self.current_epoch):
            return
        if item.record_type == "single" and not self._came:
            why = tr("monitor.no_batches", batch_indices=sorted(self.batch_indices))
        else:
            sites = {site.path: site for site in self.receipt.sites}
            why = sites[item.path].why or tr("monitor.not_called")
        code = "monitor.nothing_in_epoch"
        self._log.report(tr(code, layer=item.layer, epoch=self.current_epoch, why=why))
