"""What goes wrong or is missing in a monitor is logged, once, and never raised into the training loop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from layertap.messages import tr
from layertap.monitor.entries import BatchOutput, OutputReader

log = logging.getLogger("layertap")

F = TypeVar("F", bound=Callable[..., Any])


def never_raise(nothing: Callable[[], Any]) -> Callable[[F], F]:
    """The method, returning `nothing()` where it fails; with `self._strict` it raises as it would."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if self._strict:
                    raise
                where = f"{type(self).__name__}.{method.__name__}"
                message = tr("monitor.goes_on", where=where, error=f"{type(error).__name__}: {error}")
                log.error("layertap: %s", message)
                return nothing()

        return guarded  # type: ignore[return-value]

    return decorate


def nothing() -> None:
    return None


def why_nothing(epochs: Collection[int], batches: Collection[int], last: int | None, came: bool) -> str:
    """Why a whole training gave nothing: what was waited for never came."""
    if last is None:
        return tr("monitor.no_set_epoch")
    if came:
        return tr("monitor.no_batches_in_epoch", batches=sorted(batches))
    return tr("monitor.no_epoch_came", epochs=sorted(epochs), last=last)


class MonitorLog:
    """Warns, once for each text."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            log.warning("layertap: %s", text)

    def report_missing(self, reader: OutputReader) -> None:
        """Outputs that were asked for and are not there, layer by layer."""
        missing: dict[str, list[BatchOutput]] = {}
        for entry in {id(entry): entry for entry in reader.missing}.values():  # a layer may have two aliases
            missing.setdefault(entry.path, []).append(entry)
        for layer, entries in missing.items():
            message = "monitor.not_kept"
            epoch, batch = entries[0].key
            self.report(tr(message, layer=layer or "model", count=len(entries), epoch=epoch, batch=batch))
