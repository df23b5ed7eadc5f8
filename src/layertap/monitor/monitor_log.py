"""What a monitor says in the log: never a silent nothing, and nothing twice."""

from __future__ import annotations

import logging
from collections.abc import Collection

from layertap.monitor.entries import BatchOutput, OutputReader
from layertap.words import say

log = logging.getLogger("layertap")


def why_nothing(epochs: Collection[int], batches: Collection[int], last: int | None, came: bool) -> str:
    """Why a whole training gave nothing: what was waited for never came."""
    if last is None:
        return say("set_epoch was never called")
    if came:
        return say("none of batch_indices {batches} came in a recorded epoch", batches=sorted(batches))
    return say("none of the epochs {epochs} came; the last one set was {last}", epochs=sorted(epochs), last=last)


class MonitorLog:
    """Warns, once for each text."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("layertap: %s", text)

    def tell_missing(self, reader: OutputReader) -> None:
        """Outputs that were asked for and are not there, layer by layer."""
        missing: dict[str, list[BatchOutput]] = {}
        for entry in {id(entry): entry for entry in reader.missing}.values():  # a layer may have two aliases
            missing.setdefault(entry.path, []).append(entry)
        for layer, entries in missing.items():
            told = (
                "{layer}: the tensors of {count} outputs, first at epoch {epoch}, batch {batch}, are not in the run "
                "(keep, budget, or a full disk); see monitor.receipt"
            )
            epoch, batch = entries[0].key
            self.tell(say(told, layer=layer or "model", count=len(entries), epoch=epoch, batch=batch))
