"""What a monitor holds: for each alias, the entries of the epoch that is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from layertap.capture.module_tap import Moment
from layertap.errors import BadArgument
from layertap.monitor.entries import BatchKey, BatchOutput
from layertap.monitor.layers import MonitoredLayer


class EpochEntries:
    """The entries by alias. Nothing overwrites: a further forward in the same batch gets a key of its own."""

    def __init__(self, layers: Sequence[MonitoredLayer]) -> None:
        self._layers = layers
        self._entries: dict[str, list[BatchOutput]] = {item.alias: [] for item in layers}
        self._counts: Counter[tuple[str, int, int | None, str]] = Counter()
        self.last_step = -1
        """Of the newest entry."""

    def take(
        self, items: Iterable[MonitoredLayer], path: str, epoch: int, batch: int | None, moment: Moment, outline: object
    ) -> None:
        """Notes an output that is being recorded. Where nobody counts batches, calls count as such."""
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
                raise BadArgument(f"no layer or alias {name!r} is monitored; there are {known}")
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
