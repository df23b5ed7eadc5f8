"""The documented files of a monitor, `epoch_{e}_batch_{b}_{alias}.pt`: each is whole or absent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from layertap.capture.leaves import fill
from layertap.durable import replacing
from layertap.errors import BadArgument
from layertap.formats.monitor import KEYS, file_name, shapes
from layertap.formats.numbers import theirs
from layertap.messages import tr
from layertap.monitor.entries import BatchOutput, OutputReader
from layertap.monitor.layers import MonitoredLayer
from layertap.site import Statistics

WHOLE = "full"
"""In the place of the batch's number, in the name of a file that holds an epoch."""

log = logging.getLogger("layertap")

Job = tuple[MonitoredLayer, list[BatchOutput]]
Open = Callable[[Iterable[BatchOutput]], OutputReader]


class Saver:
    """Writes the documented files. `limit`: an epoch of more bytes than this is not joined into one file."""

    def __init__(self, folder: Path, form: str | None, *, limit: int, asynchronous: bool) -> None:
        self._folder, self._form, self._limit = folder, form, limit
        self._thread = ThreadPoolExecutor(1, "layertap-files") if asynchronous else None
        self._saved: set[tuple[str, int, int, str]] = set()

    def save(
        self, jobs: Sequence[Job], open_run: Open, done: Callable[[OutputReader], None], *, unsaved: bool
    ) -> list[Path]:
        """Writes these entries, or only those not written yet; returns the files, none where another thread writes."""
        if self._form is None:
            return []
        todo = [
            (item, entries) for item, entries in jobs if entries and not (unsaved and self._all_saved(item, entries))
        ]
        if not todo:
            return []
        self._saved |= {_mark(item, entry) for item, entries in todo for entry in entries}
        if self._thread is None:
            return self._write(todo, open_run, done)
        self._thread.submit(self._write, todo, open_run, done).add_done_callback(_log_failure)
        return []

    def save_object(self, obj: Any, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return save_object(self._folder, obj, name)

    def close(self) -> None:
        """Waits for what is under way; from now on files are written at once."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _write(self, jobs: Sequence[Job], open_run: Open, done: Callable[[OutputReader], None]) -> list[Path]:
        written: list[Path] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            reader = open_run(entry for _, entries in jobs for entry in entries)
            for item, entries in jobs:
                for phase in dict.fromkeys(entry.phase for entry in entries):
                    written += self._write_phase(item, [entry for entry in entries if entry.phase == phase], reader)
        except BaseException:  # to be tried again
            self._saved -= {_mark(item, entry) for item, entries in jobs for entry in entries}
            raise
        done(reader)
        return written

    def _write_phase(self, item: MonitoredLayer, entries: list[BatchOutput], reader: OutputReader) -> Iterable[Path]:
        assert self._form is not None
        whole = item.record_type == "epoch_full"
        joining = whole and sum(map(reader.nbytes, entries)) <= self._limit
        outputs = []
        for entry in entries:
            output = reader.value(entry)
            if output is not None:
                yield save_output(self._folder, item.layer, item.alias, entry, output, self._form)
                if joining:
                    outputs.append((entry, output))
        if not whole:
            return
        for epoch in dict.fromkeys(entry.key[0] for entry in entries):
            mine = [entry for entry in entries if entry.key[0] == epoch]
            merged = {leaf: statistics_dict(found) for leaf, found in reader.statistics(mine).items()}
            statistics = fill(mine[0].outline, merged.get)
            there = [(entry, output) for entry, output in outputs if entry.key[0] == epoch]
            if not joining:
                message = "monitor.over_budget"
                log.warning("layertap: %s", tr(message, layer=item.layer, epoch=epoch))
            held, values = ([entry for entry, _ in there], [value for _, value in there]) if there else (mine, [None])
            yield save_epoch(self._folder, item.layer, item.alias, held, values, statistics, self._form)

    def _all_saved(self, item: MonitoredLayer, entries: Iterable[BatchOutput]) -> bool:
        return all(_mark(item, entry) in self._saved for entry in entries)


def _mark(item: MonitoredLayer, entry: BatchOutput) -> tuple[str, int, int, str]:
    return item.alias, entry.step, entry.call, entry.phase


def _log_failure(future: Future[list[Path]]) -> None:
    error = future.exception()
    if error is not None:
        message = tr("monitor.goes_on", where="Monitor", error=f"{type(error).__name__}: {error}")
        log.error("layertap: %s", message)


def save_output(folder: Path, layer: str, alias: str, entry: BatchOutput, output: Any, form: str) -> Path:
    """Writes one output. A further forward of the same batch, and eval mode, are marked in alias and file name."""
    alias = f"{alias}{suffix(entry)}"
    epoch, batch = entry.key
    content = dict(zip(KEYS, (epoch, batch, layer, alias, shapes(output), output), strict=True))
    return _write(folder / file_name(epoch, batch, alias), content, form)


def save_epoch(
    folder: Path,
    layer: str,
    alias: str,
    entries: Sequence[BatchOutput],
    outputs: Sequence[Any],
    statistics: Any,
    form: str,
) -> Path:
    """Writes an epoch as one: its outputs joined on dimension 0, its batches, its statistics."""
    output = joined(outputs)
    epoch = entries[0].key[0]
    alias = alias if entries[0].phase == "train" else f"{alias}_{entries[0].phase}"
    content = dict(zip(KEYS, (epoch, None, layer, alias, shapes(output), output), strict=True))
    content |= {"batches": [entry.key[1] for entry in entries], "statistics": statistics}
    return _write(folder / file_name(epoch, WHOLE, alias), content, form)


def save_object(folder: Path, obj: Any, name: str) -> Path:
    """Writes whatever `torch.save` takes under a name of the user's, inside the folder."""
    if not name or Path(name).name != name:
        raise BadArgument(tr("monitor.file_name", name=name, folder=folder))
    return _atomically(folder / name, lambda file: torch.save(obj, file))


def suffix(entry: BatchOutput) -> str:
    """What distinguishes a file from that of the batch's first forward in training mode."""
    phase = "" if entry.phase == "train" else f"_{entry.phase}"
    return phase + (f"_call{entry.key.call}" if entry.key.call else "")


def joined(outputs: Sequence[Any]) -> Any:
    """Outputs of one form as one: tensors joined on dimension 0. Those that do not fit together stay a list.

    >>> joined([(torch.zeros(2, 3), None), (torch.zeros(1, 3), None)])[0].shape
    torch.Size([3, 3])
    >>> [part.shape[1] for part in joined([torch.zeros(1, 3), torch.zeros(1, 5)])]
    [3, 5]
    """
    first = outputs[0]
    if all(isinstance(output, torch.Tensor) for output in outputs):
        if len({(output.dim(), output.dtype, output.shape[1:]) for output in outputs}) > 1:
            return list(outputs)
        return torch.cat(list(outputs)) if first.dim() else torch.stack(list(outputs))
    if any(type(output) is not type(first) for output in outputs):
        return list(outputs)
    if isinstance(first, (tuple, list)) and len({len(output) for output in outputs}) == 1:
        parts = [joined(part) for part in zip(*outputs, strict=True)]
        return tuple(parts) if isinstance(first, tuple) else parts
    if isinstance(first, Mapping) and all(output.keys() == first.keys() for output in outputs):
        return {key: joined([output[key] for output in outputs]) for key in first}
    return first if all(output == first for output in outputs) else list(outputs)


def statistics_dict(statistics: Statistics) -> dict[str, float]:
    """Statistics as the files hold them; `std` is what `torch.std` would give."""
    ours = {
        name: getattr(statistics, name) for name in ("count", "abs_mean", "l2", "nan", "pos_inf", "neg_inf", "zero")
    }
    return {**theirs(statistics, ddof=1), **ours}


def _write(path: Path, content: dict[str, Any], form: str) -> Path:
    if form == "pt":
        return _atomically(path, lambda file: torch.save(content, file))
    arrays = {name: np.asarray(value) for name, value in _flat("", content) if value is not None}
    return _atomically(path.with_suffix(".npz"), lambda file: np.savez(file, allow_pickle=False, **arrays))


def _flat(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), item)
    elif path.startswith("output") and not path.startswith("output_shape") and isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _flat(f"{path}.{place}", item)
    elif isinstance(value, (tuple, list)):
        yield path, str(value)  # shapes may be ragged
    else:
        yield path, as_numpy(value) if isinstance(value, torch.Tensor) else value


def as_numpy(tensor: torch.Tensor) -> Any:
    """As numpy holds it; bfloat16 and 8-bit floats are widened to float32."""
    narrow = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    return (tensor.float() if narrow else tensor).numpy()


def _atomically(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    with replacing(path) as file:
        write(file)
    return path
