"""What a monitor holds of its epoch: not the tensors, which are in the run, but where each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from layertap.capture.leaves import fill
from layertap.formats.monitor import shapes
from layertap.measure.result import merge_statistics
from layertap.site import Statistics
from layertap.store import Run, SiteRecords
from layertap.store.dtype import size_of

if TYPE_CHECKING:
    from layertap.monitor.layers import MonitoredLayer
from collections import Counter
from collections.abc import Sequence

from layertap.capture.module_tap import CallMoment
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.monitor.layers import MonitoredLayer


class BatchKey(tuple[int, int]):  # noqa: SLOT001 - a tuple's subclass cannot have slots of its own
    """`(epoch, batch_idx)`, the key of one output. A further forward in the same batch has its own, by `call`.

    >>> first, second = BatchKey(1, 0), BatchKey(1, 0, call=1)
    >>> first == (1, 0), second == (1, 0), first == second
    (True, False, False)
    >>> epoch, batch_idx = second
    >>> second
    (1, 0)@1
    """

    call: int

    def __new__(cls, epoch: int, batch_idx: int, call: int = 0) -> BatchKey:
        key = super().__new__(cls, (epoch, batch_idx))
        key.call = call
        return key

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.call == getattr(other, "call", 0)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # The plain tuple's own where it equals the plain tuple, so that data[1, 0] finds it.
        return hash((self[0], self[1], self.call)) if self.call else hash((self[0], self[1]))

    def __repr__(self) -> str:
        return f"({self[0]}, {self[1]})" + (f"@{self.call}" if self.call else "")

    def __reduce__(self) -> tuple[type[BatchKey], tuple[int, int, int]]:
        return BatchKey, (self[0], self[1], self.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """One recorded call of one layer."""

    path: str
    key: BatchKey
    phase: str
    step: int
    call: int
    """As the run counts it."""
    outline: Any
    """The output with slots in the place of its tensors."""


class OutputReader:
    """Reads entries back from the run that was recorded."""

    def __init__(self, run: Run | None, entries: Iterable[BatchOutput], rank: int) -> None:
        self.missing: list[BatchOutput] = []
        """Entries of which a tensor is not there: not kept for lack of budget, or lost to a full disk."""
        self._found: dict[tuple[str, int, int, str], dict[str, SiteRecords]] = {}
        wanted = {(entry.path, entry.call, entry.step, entry.phase) for entry in entries}
        calls = {(path, call) for path, call, _, _ in wanted}
        for site in run.sites if run is not None else ():
            if site.role != "output" or (site.path, site.call) not in calls:
                continue
            assert run is not None
            rows = run.index.find(site)
            columns = (run.index.values(name, rows).tolist() for name in ("step", "phase", "rank"))
            for place, (step, phase, owner) in enumerate(zip(*columns, strict=True)):
                key = (site.path, site.call, step, phase)
                if owner == rank and key in wanted:
                    self._found.setdefault(key, {})[site.leaf] = run[site][place : place + 1]

    def value(self, entry: BatchOutput) -> Any:
        """The output as it was, on the CPU, in memory of its own; None when a tensor of it is not there."""
        there = self._of(entry)
        absent = False

        def tensor(path: str) -> Any:
            nonlocal absent
            below = f"{path}." if path else ""
            mine = {leaf: _tensor(part) for leaf, part in there.items() if leaf == path or leaf.startswith(below)}
            absent |= not mine or any(part is None for part in mine.values())
            # A sparse tensor, or one of a subclass, is recorded as what it is made of.
            return mine.get(path, mine)

        value = fill(entry.outline, tensor)
        if absent:
            self.missing.append(entry)
            return None
        return value

    def nbytes(self, entry: BatchOutput) -> int:
        """How much memory its value takes."""
        kept = (records.record for records in self._of(entry).values())
        return sum(size_of(record.kept_dtype, record.kept_shape) or 0 for record in kept)

    def statistics(self, entries: Iterable[BatchOutput]) -> dict[str, Statistics]:
        """By leaf, of all the values of these entries together."""
        parts: dict[str, list[Statistics]] = {}
        for entry in entries:
            for leaf, records in self._of(entry).items():
                parts.setdefault(leaf, []).append(records.statistics)
        return {leaf: merge_statistics(found) for leaf, found in parts.items()}

    def _of(self, entry: BatchOutput) -> dict[str, SiteRecords]:
        return self._found.get((entry.path, entry.call, entry.step, entry.phase), {})


def collected(watched: MonitoredLayer, entries: Iterable[BatchOutput], reader: OutputReader) -> dict[str, Any] | None:
    """The documented form: layer, alias, output_shape, and the outputs by epoch and batch; None without any."""
    data = {}
    for entry in entries:
        value = reader.value(entry)
        if value is not None:
            data[entry.key] = value
    if not data:
        return None
    first = next(iter(data.values()))
    return {"layer": watched.layer, "alias": watched.alias, "output_shape": shapes(first), "data": data}


def _tensor(records: SiteRecords) -> torch.Tensor | None:
    return records.tensor().clone() if records.record.kept != "stats" else None


class EpochEntries:
    """The entries by alias. Nothing overwrites: a further forward in the same batch gets a key of its own."""

    def __init__(self, layers: Sequence[MonitoredLayer]) -> None:
        self._layers = layers
        self._entries: dict[str, list[BatchOutput]] = {item.alias: [] for item in layers}
        self._counts: Counter[tuple[str, int, int | None, str]] = Counter()
        self.last_step = -1
        """Of the newest entry."""

    def take(
        self,
        items: Iterable[MonitoredLayer],
        path: str,
        epoch: int,
        batch: int | None,
        moment: CallMoment,
        outline: object,
    ) -> None:
        """Notes an output that is being recorded. Where batches are not counted, calls count as such."""
        count = (path, epoch, batch, moment.phase)
        number = self._counts[count]
        self._counts[count] += 1
        entry = BatchOutput(
            path=path,
            key=BatchKey(epoch, number) if batch is None else BatchKey(epoch, batch, number),
            phase=moment.phase,
            step=moment.step,
            call=moment.call,
            outline=outline,
        )
        for item in items:
            self._entries[item.alias].append(entry)
        self.last_step = moment.step

    def chosen(self, record_type: str | None, layers: Iterable[str] | None) -> list[MonitoredLayer]:
        """The layers of one record type, or those of them that are named, by alias or by layer."""
        mine = [item for item in self._layers if record_type in (None, item.record_type)]
        if layers is None:
            return mine
        wanted = [layers] if isinstance(layers, str) else list(layers)
        for name in wanted:
            if not any(name in (item.alias, item.layer) for item in self._layers):
                known = ", ".join(item.alias for item in self._layers)
                raise BadArgument(tr("monitor.no_layer", name=name, known=known))
        return [item for item in mine if item.alias in wanted or item.layer in wanted]

    def of(self, item: MonitoredLayer) -> list[BatchOutput]:
        return list(self._entries[item.alias])

    def in_phase(self, item: MonitoredLayer, phase: str | None) -> list[BatchOutput]:
        """In train or eval mode; by default in train mode, or in eval mode where nothing at all was recorded in it."""
        if phase is None:
            trained = any(entry.phase == "train" for entries in self._entries.values() for entry in entries)
            phase = "train" if trained else "eval"
        return [entry for entry in self._entries[item.alias] if entry.phase == phase]

    def came(self, path: str, epoch: int | None) -> bool:
        """Whether anything was ever taken of a module in an epoch."""
        return any(count[:2] == (path, epoch) for count in self._counts)

    def clear(self, *record_types: str) -> None:
        for item in self._layers:
            if item.record_type in record_types:
                self._entries[item.alias] = []

    def __len__(self) -> int:
        return len({id(entry) for entries in self._entries.values() for entry in entries})


def lists_of(data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """By alias, the outputs alone, in the order in which they came."""
    return {alias: list(item["data"].values()) for alias, item in data.items()}
