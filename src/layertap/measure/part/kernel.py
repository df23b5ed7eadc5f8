"""The sums of a part on a CUDA device by one kernel a box, which reads the part once and never synchronises.

Where an element goes in the sketch depends on its index in the whole, so neighbours of one program go to lanes that
are known at run time only: they are added to lanes in memory, of which there are several sets, since what many programs
add to one place takes turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from layertap.measure import kernel
from layertap.measure.bits import FOUND, hash_of, value_of, word_of
from layertap.measure.definition import BUCKETS, LANE_SEED, LANES, ROW_SEED
from layertap.measure.part.place import Box, BoxLevel

if FOUND:
    import triton
    import triton.language as tl

    _L = tl.constexpr(LANES)
    _ROW_SEED, _LANE_SEED = tl.constexpr(ROW_SEED), tl.constexpr(LANE_SEED)

LEVELS = 4
"""A box with more levels, of a tensor that is cut along more axes, is left to torch's operations."""
MOST = 1 << 30
"""Elements of one launch: their indices in the box are 32 bits."""
SETS = 32
"""Sets of lanes."""
_BLOCK = 1024
_PER_SM = 8
_NUMBERS = [f"{name}{level}" for level in range(LEVELS) for name in ("extent", "step", "whole_step")]
_NUMBERS += ["count", "start", "whole_start"]
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _jit(function: Any) -> Any:
    if not FOUND:
        return function
    return triton.jit(function, do_not_specialize=_NUMBERS)  # else there would be one for numbers that 16 divides


@_jit
def _weights(index):  # type: ignore[no-untyped-def]
    return hash_of(index // _L, _ROW_SEED) * hash_of(index % _L, _LANE_SEED)


@_jit
def _sum_box(  # type: ignore[no-untyped-def]
    x,
    fingerprint,
    lanes,
    count,
    start,
    whole_start,
    step0,
    whole_step0,
    extent1,
    step1,
    whole_step1,
    extent2,
    step2,
    whole_step2,
    extent3,
    DEPTH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    SETS: tl.constexpr,
):
    """BoxLevel 3 is the innermost, whose steps are 1; outer ones that are not there have an index of 0."""
    program = tl.program_id(0)
    lane_set = lanes + (program % SETS) * _L
    terms = tl.zeros((BLOCK,), tl.uint64)
    for begin in range(program * BLOCK, count, tl.num_programs(0) * BLOCK):
        flat = begin + tl.arange(0, BLOCK)
        inside = flat < count
        place, index = tl.cast(start, tl.int64), tl.cast(whole_start, tl.int64)
        if DEPTH > 1:
            outer = flat // extent3
            flat -= outer * extent3
            if DEPTH > 2:
                rest = outer // extent2
                at = (outer - rest * extent2).to(tl.int64)
                outer = rest
                place += at * step2
                index += at * whole_step2
                if DEPTH > 3:
                    rest = outer // extent1
                    at = (outer - rest * extent1).to(tl.int64)
                    outer = rest
                    place += at * step1
                    index += at * whole_step1
            place += outer.to(tl.int64) * step0
            index += outer.to(tl.int64) * whole_step0
        place += flat
        index += flat
        bits = tl.load(x + place, mask=inside, other=0)
        weight = _weights(index)
        if bits.dtype == tl.int64:  # two words an element
            both = bits.to(tl.uint64, bitcast=True)
            terms += _weights(2 * index).to(tl.uint64) * (both & 0xFFFFFFFF)
            terms += _weights(2 * index + 1).to(tl.uint64) * (both >> 32)
        else:
            terms += weight.to(tl.uint64) * word_of(bits)  # bits outside are 0, and so are their terms
        value = value_of(bits, KIND).to(tl.float64)
        signed = tl.where(weight >= 0x80000000, -value, value)
        known = inside & (tl.abs(value) < float("inf"))
        tl.atomic_add(lane_set + index % _L, signed, mask=known, sem="relaxed")
    tl.atomic_add(fingerprint, tl.sum(terms, axis=0).to(tl.int64, bitcast=True), sem="relaxed")


def fits(tensor: torch.Tensor, boxes: Sequence[Box]) -> bool:
    """Whether the kernel can read such a tensor, cut like this."""
    return (
        kernel.available(tensor.device)
        and kernel.supported(tensor.dtype)
        and all(len(box.levels) <= LEVELS for box in boxes)
    )


def start(tensor: torch.Tensor, boxes: Sequence[Box]) -> tuple[torch.Tensor, torch.Tensor]:
    """What plain.start gives, enqueued on the current stream."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        with torch.cuda.device(tensor.device):  # a kernel is launched on the current device
            return start(tensor, boxes)
    raw = tensor.detach().reshape(-1).view(_RAW[tensor.element_size()])
    fingerprint = torch.zeros((), dtype=torch.int64, device=tensor.device)
    lanes = torch.zeros((SETS, LANES), dtype=torch.float64, device=tensor.device)
    kind = str(tensor.dtype).removeprefix("torch.")
    for box in boxes:
        for piece in box.pieces(MOST):
            programs = min(-(-piece.count // _BLOCK), _programs(tensor.device))
            constants = {"DEPTH": len(piece.levels), "KIND": kind, "BLOCK": _BLOCK, "SETS": SETS}
            _sum_box[(programs,)](raw, fingerprint, lanes, *_arguments(piece), **constants)
    return fingerprint, lanes.view(-1, BUCKETS).sum(dim=0)


def _arguments(box: Box) -> tuple[int, ...]:
    """The numbers of a box as the kernel takes them: its outermost level, those that are not there, the inner ones."""
    first, *rest = box.levels if len(box.levels) > 1 else (BoxLevel(1, 0, 0), *box.levels)
    middle = [BoxLevel(1, 0, 0)] * (LEVELS - 1 - len(rest)) + rest[:-1]
    found = [box.count, box.start, box.whole_start, first.step, first.whole_step]
    for level in middle:
        found += (level.extent, level.step, level.whole_step)
    return *found, rest[-1].extent


@lru_cache
def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # triton's interpreter, in the tests
    return _PER_SM * int(torch.cuda.get_device_properties(device).multi_processor_count)
