"""The same rows in batches of another size: what they are filled up with, and the run that their rows alone make."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from layertap.capture.leaves import leaves, map_tensors
from layertap.errors import BadArgument
from layertap.measure import measure
from layertap.messages import tr
from layertap.site import Receipt, Record
from layertap.store import Run, RunWriter
from layertap.store.dtype import size_of


class Batches:
    """The input's rows, `size` at a time. A batch that they do not fill is filled up with the same rows rolled on.

    Rolled along the sequence, so that the neighbours of a row are other rows than itself.
    """

    def __init__(self, inputs: Any, size: int) -> None:
        shapes = [leaf.tensor.shape for leaf in leaves(inputs) if leaf.tensor is not None]
        counts = {shape[0] for shape in shapes if shape}
        if len(counts) != 1:
            raise BadArgument(tr("sweeping.batch_axis", size=size, value=[list(s) for s in shapes]))
        self.rows, self.size = counts.pop(), size
        self._inputs = inputs

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, self.rows, self.size):
            yield map_tensors(self._inputs, partial(self._batch, begin))

    def _batch(self, begin: int, tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor[begin : begin + self.size]
        parts, turn = [rows], 1
        while (left := self.size - sum(map(len, parts))) > 0:
            other = rows.roll(turn, dims=1) if rows.ndim > 1 else rows
            parts.append(other[:left])
            turn += 1
        return torch.cat(parts)

    def _share(self, number: int) -> int:
        """How many rows of a batch are the input's own."""
        return min(self.size, self.rows - number * self.size)

    def joined(self, outputs: list[Any]) -> Any:
        """The outputs of the input's own rows, as one pass over all of them would give them."""
        each = [{leaf.path: leaf.tensor for leaf in leaves(output) if leaf.tensor is not None} for output in outputs]
        found: dict[str, torch.Tensor] = {}
        for path in each[0]:
            parts = [self._own(one[path], number) for number, one in enumerate(each)]
            found[path] = torch.cat(parts) if parts[0].ndim else parts[0]
        return found["" if len(found) == 1 else next(iter(found))] if list(found) == [""] else found

    def _own(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        whole, own = self.size, self._share(number)
        if tensor.ndim and tensor.shape[0] % whole == 0:
            return tensor[: tensor.shape[0] // whole * own]
        return tensor

    def write(self, run: Run, folder: Path, receipt: Receipt, meta: Mapping[str, Any]) -> None:
        """Writes the recorded rows of the input itself, measured anew: a run like one without batches."""
        info = {name: value for name, value in run.info.items() if name not in ("session", "status", "receipt")}
        writer = RunWriter(folder, info={**info, "meta": dict(meta), "batch": self.size})
        steps = run.index.steps()
        written = 0
        records: dict[tuple[str, str], list[Record]] = {}
        for record in run.records():
            records.setdefault((str(record.site), str(record.asked)), []).append(record)
        for found in sorted(records.values(), key=lambda one: one[0].order):
            if len(found) != len(steps) or found[0].kept not in ("tensor", "stats"):
                continue
            if found[0].kept == "stats":
                if self.rows == self.size:  # of other rows than the input's own nothing can be taken away again
                    writer.add(found[0])
                    written += 1
                continue
            parts = [self._own(_tensor(run, record), number) for number, record in enumerate(found)]
            whole = (torch.cat(parts) if parts[0].ndim else parts[0]).contiguous()
            measured = measure(whole)
            record = replace(
                found[0],
                shape=tuple(whole.shape),
                kept_shape=tuple(whole.shape),
                statistics=measured.statistics,
                fingerprint=measured.fingerprint,
                kept_fingerprint=None,
                sketch=measured.sketch,
            )
            raw = whole.reshape(-1).view(torch.uint8).numpy()
            assert size_of(record.kept_dtype, record.kept_shape) in (None, math.prod(raw.shape))
            writer.add(record, raw)
            written += 1
        writer.close(replace(receipt, records=written, steps=1))


def _tensor(run: Run, record: Record) -> torch.Tensor:
    return run[record.site].at(step=record.step).tensor()
