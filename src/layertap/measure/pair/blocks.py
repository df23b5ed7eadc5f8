"""Where the pair kernel leaves its numbers: a row for each pair, in blocks that are allocated for many pairs at once.

A block lives as long as one of its rows is waited for: the next pairs of its kind take its next rows, and a new block
where it is full or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import torch

from layertap.measure.pair.fold import PAIR_SLAB_BYTES, SAMPLE

T = TypeVar("T")

BLOCK_BYTES = 4 << 20
"""What a block takes, unless one row takes more."""
ALIGNED = 4
"""Rows of float32 begin at multiples of 16 bytes, as the kernels were compiled for."""


class PairBlock:
    """Rows for pairs of one shape, on one device and stream.

    A row is a slab of f64; and in `lines`, of float32, SAMPLE of the candidate's values, then the norms of the error
    and of the reference, of each row and each column of the pair.
    """

    __slots__ = ("__weakref__", "folds", "line_counts", "lines", "places", "scratch", "slabs", "stream", "taken")

    def __init__(
        self, line_counts: tuple[int, int], folds: tuple[int, int], scratch: int, device: torch.device, stream: int
    ) -> None:
        wide = -(-(SAMPLE + 2 * sum(line_counts)) // ALIGNED) * ALIGNED if any(line_counts) else 0
        rows = max(1, BLOCK_BYTES // (PAIR_SLAB_BYTES + 4 * wide))
        self.slabs = torch.empty((rows, PAIR_SLAB_BYTES // 8), dtype=torch.float64, device=device)
        self.lines = torch.empty((rows, wide), dtype=torch.float32, device=device)
        self.scratch = torch.empty(scratch, dtype=torch.float32, device=device)
        """What the kernels of one pair leave for each other: on one stream, pairs come one after the other."""
        self.places = self.slabs.data_ptr(), self.lines.data_ptr(), self.scratch.data_ptr(), 4 * wide
        """The addresses of the three, and the bytes of a row of `lines`."""
        self.line_counts, self.folds, self.stream = line_counts, folds, stream
        """How many rows and columns a pair has that are measured one by one, and by how many programs each."""
        self.taken = 0

    @property
    def full(self) -> bool:
        return self.taken == len(self.slabs)


class PairRow(NamedTuple):
    """The numbers of one pair."""

    block: PairBlock
    number: int

    @property
    def slab(self) -> torch.Tensor:
        return self.block.slabs[self.number]

    @property
    def lines(self) -> torch.Tensor:
        return self.block.lines[self.number]


class Filled(NamedTuple):
    """The rows of a block up to the last that is asked for."""

    block: PairBlock
    rows: int


def read_together(
    rows: Sequence[PairRow], kind: Callable[[PairBlock], Hashable], most: int, read: Callable[[list[Filled]], list[T]]
) -> list[T]:
    """What `read` says of each row: it is asked for about `most` rows of one kind at a time."""
    asked: dict[PairBlock, int] = {}
    for block, number in rows:
        asked[block] = max(asked.get(block, 0), number + 1)
    kinds: dict[Hashable, list[Filled]] = {}
    for block, count in asked.items():
        kinds.setdefault(kind(block), []).append(Filled(block, count))
    found: dict[tuple[PairBlock, int], T] = {}
    for alike in kinds.values():
        while alike:
            some: list[Filled] = []
            count = 0
            while alike and (not some or count + alike[-1].rows <= most):
                some.append(alike.pop())
                count += some[-1].rows
            places = ((block, number) for block, held in some for number in range(held))
            found.update(zip(places, read(some), strict=True))
    return [found[row] for row in rows]
