"""Rows that C and Python measure on a device by turns are in the right slabs, each completed once."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layertap.capture import cuda
from layertap.capture.cuda import DevicePart, by_slabs

TOGETHER, SLABS = 3, 4


class Kernels:
    """Launches nothing: writes down which slabs were filled, and which of them were completed."""

    TOGETHER = TOGETHER
    scratch = (0, 8)

    def __init__(self):
        self.filled, self.completed = [], []
        self.waiting, self.end, self.slabs = 0, 0, None

    def resume(self, slabs, waiting, end):
        self.slabs, self.waiting, self.end = (slabs if waiting else None), waiting, end

    def launch(self, _, slabs, index):
        if self.waiting and (self.slabs is not slabs or self.waiting == TOGETHER):
            self.finish()
        self.slabs, self.end = slabs, index + 1
        self.filled.append((id(slabs), index))
        self.waiting += 1

    def finish(self):
        if self.waiting:
            assert self.end >= self.waiting, "what waits must lie in one tensor of slabs"
            self.completed += [(id(self.slabs), self.end - self.waiting + at) for at in range(self.waiting)]
        self.waiting, self.slabs = 0, None


def part_of(kernels):
    part = DevicePart.__new__(DevicePart)
    part.arena, part.queue = torch.empty(1, dtype=torch.uint8), None
    part.segments, part.slabs, part.rows = [], [], []
    part.begin = part.end = part.slab = part.last_slab = part.waiting = 0
    part.slab_bytes = cuda.SLAB_BYTES
    part.measure_with(kernels)
    return part


def as_tap_c_does(part, kernels, row):
    """What tap_take.h does: asks for slabs where none is left, and counts."""
    if part.slab >= part.last_slab or part.waiting >= part.together:
        part.make_slabs()
    assert part.slab < part.last_slab
    assert part.waiting < part.together
    place = SLABS - (part.last_slab - part.slab) // part.slab_bytes
    kernels.filled.append((id(part.slabs[-1]), place))
    part.rows.append(row)
    part.slab += part.slab_bytes
    part.waiting += 1


@given(st.lists(st.sampled_from(["C", "Python", "room"]), max_size=40))
def test_every_row_has_a_slab_that_is_completed_once(turns):
    kernels = Kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "SLABS", SLABS)
        patch.setattr(torch.cuda, "stream", lambda queue: nullcontext())
        part = part_of(kernels)
        for row, turn in enumerate(turns):
            if turn == "C":
                as_tap_c_does(part, kernels, row)
            elif turn == "Python":
                part.measure(torch.ones(1), row)
            else:
                part.make_slabs()
        part.finish()
        found = [(row, id(slabs), at) for rows, slabs in by_slabs(part.rows, part.slabs) for at, row in enumerate(rows)]
    assert [row for row, _, _ in found] == [row for row, turn in enumerate(turns) if turn != "room"]
    assert [place[1:] for place in found] == kernels.filled
    assert sorted(kernels.completed) == sorted(kernels.filled)
