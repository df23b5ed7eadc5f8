"""What rounding is judged by, of a pair of CUDA tensors, in one read of both and without synchronising.

    launch_pair(reference, candidate, slab)            # enqueues; `many.read_pairs` reads the slab

Three kernels: fused.py reads the data, takes all values to be finite and of ordinary size, and adds up in float32,
tile by tile, up to 2048 numbers; exact.py reads the chunks in which that did not hold again, in float64;
fold.py looks for the row and the column that stand out, in the norms that these left of each.

Rows are separate from 64 columns on, columns up to 8192.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from layertap.errors import BadArgument
from layertap.measure.bits import FOUND
from layertap.measure.pair.exact import mend_pair
from layertap.measure.pair.fold import FOLDS, LINE, PAIR_SLAB_BYTES, fold_lines
from layertap.measure.pair.fused import MOST, compare_pair
from layertap.messages import tr

_KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_RAW = {2: torch.int16, 4: torch.int32}
_NARROW, _WIDE = 64, 8192  # rows are distinguished from the one on, columns up to the other

# As tuned on an H200 by benchmarks/gpu_pair.py; by whether two 16-bit numbers come in a word.
_BLOCKS = {True: 4, False: 8}  # of 128 bytes, in a row of a tile
_WARPS = {True: 2, False: 2}  # each has four rows of a tile
_PER_SM = {True: 4, False: 4}
_STAGES = {True: 3, False: 3}  # tiles in shared memory
_CHUNK = 64  # tiles that are added up in float32, and read again if need be


def supported_pair(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether the kernel can compare these two; if not, pair.py on the host can."""
    return (
        FOUND
        and torch.version.hip is None
        and reference.device.type == "cuda"
        and reference.device == candidate.device
        and reference.shape == candidate.shape
        and all(side.dtype in _KINDS and side.is_contiguous() for side in (reference, candidate))
    )


def launch_pair(reference: torch.Tensor, candidate: torch.Tensor, slab: torch.Tensor) -> None:
    """Enqueues on the current stream what measures a pair into `slab`: PAIR_SLAB_BYTES of uint8 on the same device."""
    device = reference.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # triton launches on the current device
            launch_pair(reference, candidate, slab)
        return
    if reference.shape != candidate.shape or not (reference.is_contiguous() and candidate.is_contiguous()):
        sides = " and ".join(
            tr("measure.with_strides", shape=tuple(side.shape), stride=side.stride()) for side in (reference, candidate)
        )
        raise BadArgument(tr("measure.two_tensors", sides=sides))
    if slab.numel() != PAIR_SLAB_BYTES or slab.data_ptr() % 16:
        raise BadArgument(tr("measure.pair_slab", PAIR_SLAB_BYTES=PAIR_SLAB_BYTES, numel=slab.numel()))
    if not reference.numel():
        slab.zero_()
        return
    plan = _plan(reference, candidate)
    norms = 2 * (plan.row_norms + plan.column_norms)
    scratch = torch.empty(norms + plan.flags, dtype=torch.float32, device=device)
    row_norms, column_norms = scratch[: 2 * plan.row_norms], scratch[2 * plan.row_norms : norms]
    out, flags = slab.view(torch.float64), scratch[norms:].view(torch.int32)
    a, b = (side.detach().reshape(-1).view(_RAW[side.element_size()]) for side in (reference, candidate))
    arguments = (
        *(a, b, out, row_norms, column_norms, flags),
        *(reference.numel(), plan.width, plan.rows, plan.tiles, plan.segments),
    )
    warps = _WARPS[plan.words]
    shape = {"ROWED": plan.rowed, "COLUMNS": plan.columned, "BLOCKS": plan.blocks, "ROWS": 4 * warps, "CHUNK": _CHUNK}
    kinds = {"KIND_A": plan.kinds[0], "KIND_B": plan.kinds[1]}
    way = {"ALIGNED": plan.aligned, "WORDS": plan.words, "ASM": _hopper(device)}
    ahead = {"STAGES": _STAGES[plan.words] if plan.aligned else 1, "FULL": plan.full}
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}
    _run(compare_pair, plan.programs, arguments, {**kinds, **way, **shape, **ahead}, options)
    _run(mend_pair, plan.programs, arguments, {**kinds, "UNIT": 2 if plan.words else 1, **shape}, options)
    row_folds, column_folds = folds_of(tuple(reference.shape))
    if row_folds:
        slots = plan.programs // plan.segments
        full = plan.tiles * 4 * warps
        sizes = (plan.rows, plan.segments, row_folds, plan.width, slots, plan.segments * plan.span, full, plan.programs)
        _run(fold_lines, row_folds + column_folds, (out, row_norms, column_norms, *sizes), {}, {"num_warps": 8})


_ready: dict[Any, Any] = {}


def _run(
    kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], options: dict[str, Any]
) -> None:
    """Launches; knowing which compiled kernel fits saves the 100 us in which triton would find out."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    places = [x.data_ptr() for x in tensors]
    numbers = arguments[len(tensors) :]
    wide = [isinstance(x, int) and x >= 2**31 for x in numbers]
    key = (kernel, tensors[0].device, *(p % 16 for p in places), *wide, *constants.values(), *options.values())
    ready = _ready.get(key)
    if ready is None:
        _ready[key] = kernel[(programs,)](*arguments, **constants, **options)
    else:
        stream = torch.cuda.current_stream(tensors[0].device).cuda_stream
        ready[(programs, 1, 1)](*places, *numbers, *constants.values(), stream=stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairPlan:
    """How a pair is cut up: into rows × segments of `span` columns, and those into tiles."""

    kinds: tuple[str, str]
    width: int
    rows: int
    rowed: bool
    columned: bool
    words: bool
    aligned: bool
    full: bool
    blocks: int
    span: int
    tiles: int
    segments: int
    programs: int
    flags: int

    @property
    def row_norms(self) -> int:
        return self.tiles * 4 * _WARPS[self.words] * self.segments if self.rowed else 0

    @property
    def column_norms(self) -> int:
        return self.programs * self.span if self.columned else 0


def _plan(reference: torch.Tensor, candidate: torch.Tensor) -> _PairPlan:
    count = reference.numel()
    rows, rowed, columned = _lines(tuple(reference.shape))
    place = (reference.data_ptr() | candidate.data_ptr()) % 16
    both = reference.element_size() == candidate.element_size() == 2
    row = reference.shape[-1] if rowed else count
    words = both and place == 0 and row % 8 == 0
    blocks, unit = _BLOCKS[words], 32 * (2 if words else 1)
    width = row if rowed else blocks * unit
    while blocks > 1 and (blocks // 2) * unit >= width:
        blocks //= 2
    span = blocks * unit
    if not rowed:
        rows = -(-count // width)
    tiles, segments = -(-rows // (4 * _WARPS[words])), -(-width // span)
    most = _programs(reference.device, _PER_SM[words])
    slots = max(1, min(tiles, most // segments))
    programs = slots * segments if columned else min(tiles * segments, most)
    aligned = words or (place == 0 and row % 4 == 0)
    return _PairPlan(
        kinds=(_KINDS[reference.dtype], _KINDS[candidate.dtype]),
        width=width,
        rows=rows,
        rowed=rowed,
        columned=columned,
        words=words,
        aligned=aligned,
        full=aligned and count == rows * width and rows % (4 * _WARPS[words]) == 0 and width % span == 0,
        blocks=blocks,
        span=span,
        tiles=tiles,
        segments=segments,
        programs=programs,
        flags=programs * (-(-tiles * segments // (programs * _CHUNK)) + 1),
    )


def _lines(shape: tuple[int, ...]) -> tuple[int, bool, bool]:
    """How many rows there are, whether they are distinguished, and whether columns are."""
    width = shape[-1] if shape else 1
    rows = math.prod(shape) // max(1, width)
    rowed = rows > 1 and width >= _NARROW
    return rows, rowed, rowed and width <= _WIDE


def folds_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Programs that look for the worst row and the worst column."""
    rows, rowed, columned = _lines(shape)
    return min(FOLDS, -(-rows // LINE)) if rowed else 0, min(FOLDS, -(-shape[-1] // LINE)) if columned else 0


@lru_cache
def _programs(device: torch.device, per_sm: int) -> int:
    if device.type != "cuda":
        return 2  # triton's interpreter, in the tests
    return min(MOST, per_sm * torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
