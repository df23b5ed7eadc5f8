"""Recorded statistics as TensorBoard scalars, kept tensors and histograms as histograms; the tags are the sites."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import MissingExtra
from layertap.measure import histogram
from layertap.messages import tr
from layertap.site import Record
from layertap.store import Run
from layertap.store.dtype import to_numpy

SCALARS = ("mean", "std", "abs_max", "l2")


class TensorBoard:
    """Writes each record to TensorBoard: `model.layers.3/std` at its step, and `model.layers.3` as a histogram.

        monitor = Monitor(..., tensorboard="runs/tb")        # as the training goes on
        TensorBoard("runs/tb").add_run(Run("runs/a"))        # any run, afterwards

    What is kept has a histogram: of a tensor's values, or the one that `keep="histogram"` counted. NaN and infinities
    are counted in a scalar of their own (`…/nonfinite`), since neither scalars nor histograms can show them.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, histograms: bool = True) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra(tr("monitor.tensorboard")) from error
        # No queue of its own: we are on the writer's thread already.
        self._writer: Any = SummaryWriter(os.fspath(log_dir), max_queue=1000, flush_secs=30)
        self._histograms = histograms

    def add(self, record: Record, data: npt.NDArray[np.uint8] | None) -> None:
        if not record.asked:
            return
        tag = str(record.site) if record.phase == "train" else f"{record.phase}/{record.site}"
        statistics = record.statistics
        for name in SCALARS:
            value = getattr(statistics, name)
            if np.isfinite(value):
                self._writer.add_scalar(f"{tag}/{name}", value, record.step)
        self._writer.add_scalar(f"{tag}/nonfinite", statistics.nonfinite, record.step)
        if not self._histograms or data is None:
            return
        if record.kept == histogram.NAME:
            self._add_counts(tag, record, to_numpy(np.array(data), record.kept_dtype, record.kept_shape))
        else:
            values = to_numpy(np.array(data), record.kept_dtype, record.kept_shape).reshape(-1)
            values = np.abs(values) if np.iscomplexobj(values) else values.astype(np.float64, copy=False)
            finite = values[np.isfinite(values)]
            if finite.size:
                self._writer.add_histogram(tag, finite, record.step)

    def _add_counts(self, tag: str, record: Record, counts: npt.NDArray[Any]) -> None:
        statistics = record.statistics
        if not statistics.finite:
            return
        # TensorBoard draws each bin from the limit before it, so there are only finite limits, each above the one
        # before, and one empty bin below the least value. The bins of the largest values end at the extremes.
        limits = histogram.edges()[2:-2]
        zero = np.flatnonzero(limits == 0)
        limits[zero] = np.array([-1.0, 1.0]) * np.finfo(np.float64).tiny
        limits[-1] = max(statistics.max, 2.0 * limits[-2])
        counts = counts[1:-2]
        filled = np.flatnonzero(counts)
        begin, end = max(int(filled[0]) - 1, 0), int(filled[-1]) + 1
        self._writer.add_histogram_raw(
            tag,
            min=statistics.min,
            max=statistics.max,
            num=int(counts.sum()),
            sum=statistics.mean * statistics.finite,
            sum_squares=statistics.l2 * statistics.l2,
            bucket_limits=limits[begin:end].tolist(),
            bucket_counts=counts[begin:end].tolist(),
            global_step=record.step,
        )

    def add_scalars(self, scalars: dict[str, Any]) -> None:
        """Writes what is known of a step: loss, learning rate, gradient norm, seconds."""
        for name, value in scalars.items():
            if name not in ("step", "epoch", "batch") and np.isfinite(value):
                self._writer.add_scalar(f"training/{name}", value, scalars["step"])

    def add_run(self, run: Run) -> None:
        """Writes all of a run that already exists, whatever recorded it; one tensor at a time is in memory."""
        for record in run.records():
            self.add(record, run.kept_bytes(record) if self._histograms and record.kept != "stats" else None)

    def close(self) -> None:
        self._writer.close()
