"""Which samples were in a batch: their indices where the loop gives them, and a fingerprint of each row always.

A shuffled DataLoader gives other batches in every epoch; what was recorded of sample 17 is found again by either.
They are records of the model's input under leaves that begin with `#`: known of the input, not given to the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layertap.site import Record
from layertap.store import Run

if TYPE_CHECKING:
    import torch

INDICES = "#indices"
FINGERPRINTS = "#fingerprints"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlace:
    """Where a sample was: a row of a batch."""

    step: int
    epoch: int | None
    batch: int | None
    phase: str
    rank: int
    call: int
    row: int


def find_sample(run: Run, sample: int | torch.Tensor) -> list[SamplePlace]:
    """Every place of a sample in a recorded run: by its index, or by the sample itself, without the batch dimension.

    find_sample(run, 17)             # needs monitor.set_batch_idx(i, samples=indices)
    find_sample(run, dataset[17][0]) # as the model got it: the same values, the same dtype
    """
    leaf, wanted = (INDICES, sample) if isinstance(sample, int) else (FINGERPRINTS, fingerprint_of(sample))
    return [
        SamplePlace(
            step=record.step,
            epoch=record.epoch,
            batch=record.batch,
            phase=record.phase,
            rank=record.rank,
            call=record.site.call,
            row=row,
        )
        for record, values in _identities(run, leaf)
        for row, value in enumerate(values)
        if value == wanted
    ]


def fingerprint_of(sample: torch.Tensor) -> int:
    """The fingerprint of one sample, as `find_sample` looks for it."""
    from layertap.measure.rows import row_fingerprints

    return int(row_fingerprints(sample.unsqueeze(0))[0])


def _identities(run: Run, leaf: str) -> Iterator[tuple[Record, list[int]]]:
    for site in run.index.sites:
        if site.role == "input" and not site.path and site.leaf == leaf:
            found = run[site]
            for place, record in enumerate(found):
                if record.kept == "tensor":
                    yield record, [int(value) for value in found[place : place + 1].numpy()]
