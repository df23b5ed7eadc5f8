"""More readers of what is recorded, beside the run: each sees every record on the writer's thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from layertap.capture.writer_thread import Writer
from layertap.messages import tr
from layertap.site import Receipt, Record

log = logging.getLogger("layertap")


class RecordListener(Protocol):
    """What is called with each record."""

    def add(self, record: Record, data: npt.NDArray[np.uint8] | None) -> None:
        """One record, and the bytes of what was kept of it, which are valid during the call only."""

    def close(self) -> None: ...


class Tee:
    """Between a sink and a run's writer. A listener that fails is reported once and called no more."""

    def __init__(self, writer: Writer, listeners: Sequence[RecordListener]) -> None:
        self._writer, self._listeners = writer, list(listeners)

    @property
    def records(self) -> int:
        return self._writer.records

    @property
    def bytes(self) -> int:
        return self._writer.bytes

    @property
    def thinned(self) -> int:
        """What the writer has taken out again."""
        return int(getattr(self._writer, "thinned", 0))

    def add(self, record: Record, data: npt.NDArray[np.uint8] | None) -> None:
        for listener in list(self._listeners):
            try:
                listener.add(record, data)
            except Exception as error:  # noqa: BLE001 - the run must not suffer for a listener
                self._listeners.remove(listener)
                log.error(
                    tr("capture.log_output"),
                    type(listener).__name__,
                    record.site,
                    error,
                )
        self._writer.add(record, data)

    def commit(self) -> None:
        self._writer.commit()

    def close(self, receipt: Receipt | None, **info: Any) -> None:
        self._writer.close(receipt, **info)
