"""A training of days as numbers while it runs: a line of progress, `scalars.jsonl` in the run, TensorBoard."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from layertap.messages import tr
from layertap.result import Note, jsonable
from layertap.site import Record
from layertap.watching.trigger import Step, gradient_norm
from layertap.watching.trigger_report import loss_of

FILE = "scalars.jsonl"
LEAST = 1.0
"""Seconds between two lines of the file: a fast loop must not write more scalars than records."""

log = logging.getLogger("layertap")


def scalars_of(step: Step, records: Sequence[Record]) -> dict[str, Any]:
    """Loss, learning rate, gradient norm and time of a step, as far as they are known."""
    found = {
        "step": step.number,
        "epoch": step.epoch,
        "batch": step.batch,
        "loss": loss_of(records),
        "learning_rate": step.rate,
        "gradient_norm": gradient_norm(records),
        "seconds": step.seconds,
    }
    return {name: value for name, value in found.items() if value is not None}


def scalars_text(scalars: dict[str, Any]) -> str:
    """One line for people.

    >>> scalars_text({"step": 120, "epoch": 3, "loss": 2.31, "learning_rate": 3e-4, "seconds": 0.25})
    'step 120, epoch 3, loss 2.31, learning rate 0.0003, 0.25 s per step'
    """
    parts: list[str] = []
    for name, value in scalars.items():
        if name == "seconds":
            parts.append(Note("watch.seconds_a_step", value=value))
        elif name != "batch":
            text = str(value) if isinstance(value, int) else f"{value:.6g}"
            parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


class Scalars:
    """Sees each step that was recorded, in the writer's thread. An error here is reported once, and no more."""

    def __init__(self, *, progress: float, tensorboard: Any) -> None:
        self.folder: Path | None = None
        """Where `scalars.jsonl` is; settled with the first step."""
        self._progress, self._board = progress, tensorboard
        self._file: IO[str] | None = None
        self._written = self._said = -1e9
        self._failed = False

    def add(self, step: Step, records: Sequence[Record]) -> None:
        if self._failed:
            return
        try:
            self._add(scalars_of(step, records))
        except Exception as error:  # noqa: BLE001 - a full disk, a closed terminal
            self._failed = True
            log.error(tr("watch.log_scalars"), type(error).__name__, error)

    def _add(self, scalars: dict[str, Any]) -> None:
        now = time.monotonic()
        if self._board is not None:
            self._board.add_scalars(scalars)
        if self.folder is not None and now - self._written >= LEAST:
            self._written = now
            if self._file is None:
                self._file = open(self.folder / FILE, "a", encoding="utf-8")  # noqa: SIM115 - as long as the training
            self._file.write(json.dumps({"time": round(time.time(), 3), **jsonable(scalars)}, allow_nan=False) + "\n")
            self._file.flush()
        if self._progress and now - self._said >= self._progress:
            self._said = now
            print(f"layertap: {scalars_text(scalars)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
