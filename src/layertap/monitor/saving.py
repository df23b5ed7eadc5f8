"""Bringing what a monitor holds into its files: now, or in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from layertap.capture.leaves import fill
from layertap.monitor import files
from layertap.monitor.entries import BatchOutput, OutputReader
from layertap.monitor.layers import MonitoredLayer
from layertap.words import say

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
        self._thread.submit(self._write, todo, open_run, done).add_done_callback(_told)
        return []

    def save_object(self, obj: Any, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return files.save_object(self._folder, obj, name)

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
                yield files.save_output(self._folder, item.layer, item.alias, entry, output, self._form)
                if joining:
                    outputs.append((entry, output))
        if not whole:
            return
        for epoch in dict.fromkeys(entry.key[0] for entry in entries):
            mine = [entry for entry in entries if entry.key[0] == epoch]
            merged = {leaf: files.statistics_dict(found) for leaf, found in reader.statistics(mine).items()}
            statistics = fill(mine[0].outline, merged.get)
            there = [(entry, output) for entry, output in outputs if entry.key[0] == epoch]
            if not joining:
                told = "{layer}: epoch {epoch} is larger than the budget: its batches have files of their own, not one"
                log.warning("layertap: %s", say(told, layer=item.layer, epoch=epoch))
            held, values = ([entry for entry, _ in there], [value for _, value in there]) if there else (mine, [None])
            yield files.save_epoch(self._folder, item.layer, item.alias, held, values, statistics, self._form)

    def _all_saved(self, item: MonitoredLayer, entries: Iterable[BatchOutput]) -> bool:
        return all(_mark(item, entry) in self._saved for entry in entries)


def _mark(item: MonitoredLayer, entry: BatchOutput) -> tuple[str, int, int, str]:
    return item.alias, entry.step, entry.call, entry.phase


def _told(future: Future[list[Path]]) -> None:
    error = future.exception()
    if error is not None:
        told = say("{where}: {error}; training goes on", where="Monitor", error=f"{type(error).__name__}: {error}")
        log.error("layertap: %s", told)
