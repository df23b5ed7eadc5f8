"""What rounding is judged by, of a pair of CUDA tensors, in one read of both and without synchronising.

    launch_pair(reference, candidate)            # enqueues; `many.read_pairs` reads the row of numbers

Three kernels: fused.py reads the data, takes all values to be finite and of ordinary size, and adds up in float32,
tile by tile, up to 2048 numbers; exact.py reads the chunks in which that did not hold again, in float64;
fold.py looks for the row and the column that stand out, in the norms that these left of each.

Rows are separate from 64 columns on, columns up to 262144, as many as a vocabulary has.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from layertap.errors import BadArgument
from layertap.measure.bits import FOUND
from layertap.measure.kernel import stream_of
from layertap.measure.launching import Prepared, Series, SeriesStep
from layertap.measure.pair.blocks import PairBlock, PairRow
from layertap.measure.pair.exact import mend_pair
from layertap.measure.pair.fold import FOLDS, LINE, PAIR_SLAB_BYTES, SAMPLE, fold_lines, sample_step
from layertap.measure.pair.fused import MOST, compare_pair
from layertap.messages import tr

_KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_RAW = {2: torch.int16, 4: torch.int32}
_NARROW, _WIDE = 64, MOST * 256  # rows are distinguished from the one on, columns up to the other

# As tuned on an H200 by benchmarks/gpu_pair.py; by whether two 16-bit numbers come in a word.
_BLOCKS = {True: 4, False: 8}  # of 128 bytes, in a row of a tile
_WARPS = {True: 2, False: 2}  # each has four rows of a tile
_PER_SM = {True: 4, False: 4}
_STAGES = {True: 3, False: 3}  # tiles in shared memory
_CHUNK = 64  # tiles that are added up in float32, and read again if need be


@lru_cache(maxsize=4096)
def supported_pair(shape: tuple[int, ...], one: torch.dtype, two: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel measures such a pair well enough: it sums in float32, so 16 bits must be in it.

    What it does not take, `deferred` measures by torch's operations.
    """
    known = FOUND and torch.version.hip is None and device.type == "cuda" and one in _KINDS and two in _KINDS
    return known and min(one.itemsize, two.itemsize) == 2 and all(folds_of(shape))


def launch_pair(reference: torch.Tensor, candidate: torch.Tensor) -> PairRow:
    """Enqueues on the current stream what measures a pair; its numbers will be in the row that comes back."""
    device = reference.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # triton launches on the current device
            return launch_pair(reference, candidate)
    if reference.shape != candidate.shape or not (reference.is_contiguous() and candidate.is_contiguous()):
        sides = " and ".join(
            tr("measure.with_strides", shape=tuple(side.shape), stride=side.stride()) for side in (reference, candidate)
        )
        raise BadArgument(tr("measure.two_tensors", sides=sides))
    place_a, place_b = reference.data_ptr(), candidate.data_ptr()
    plan = _plan(reference.shape, reference.dtype, candidate.dtype, place_a % 16, place_b % 16, device)
    stream = stream_of(device)
    with _one_at_a_time:  # a plan has one place for its kernels' arguments
        block = plan.open_block(device, stream)
        row = PairRow(block, block.taken)
        block.taken += 1
        if plan.series is not None:
            plan.series(stream, *_addresses(plan, place_a, place_b, row))
        elif plan.count:
            _launch_slowly(plan, reference, candidate, row)
        else:
            row.slab.zero_()
    return row


_one_at_a_time = threading.Lock()


def _addresses(plan: _PairPlan, reference: int, candidate: int, row: PairRow) -> tuple[int, ...]:
    """The pair, the slab, the norms of rows and of columns, the flags, the sample and the norms of whole lines."""
    block, number = row
    slabs, lines, scratch, wide = block.places
    lines += wide * number
    size = torch.float32.itemsize
    columns, flags = scratch + 2 * size * plan.row_norms, scratch + size * plan.norms
    return reference, candidate, slabs + PAIR_SLAB_BYTES * number, scratch, columns, flags, lines, lines + size * SAMPLE


def _tensors(plan: _PairPlan, reference: torch.Tensor, candidate: torch.Tensor, row: PairRow) -> list[torch.Tensor]:
    """The same as triton takes them: to make a view of a tensor takes as long as to launch."""
    scratch, lines = row.block.scratch, row.lines
    norms, flags = scratch[2 * plan.row_norms :], scratch[plan.norms :].view(torch.int32)
    return [_words(reference), _words(candidate), row.slab, scratch, norms, flags, lines, lines[SAMPLE:]]


def _words(side: torch.Tensor) -> torch.Tensor:
    return side.detach().view(_RAW[side.element_size()])


def _launch_slowly(plan: _PairPlan, reference: torch.Tensor, candidate: torch.Tensor, row: PairRow) -> None:
    """By triton, which compiles what it has not met: it takes 100 us to find out which compiled kernel fits."""
    tensors = _tensors(plan, reference, candidate, row)
    steps = []
    for kernel, programs, given, sizes, constants, options in plan.launches():
        compiled = kernel[(programs,)](*(tensors[place] for place in given), *sizes, **constants, **options)
        if compiled is not None:  # triton's interpreter compiles nothing
            prepared = Prepared(compiled, list(constants.values()), len(given) + len(sizes))
            steps.append(SeriesStep(prepared, programs, given, sizes))
    plan.series = Series(len(tensors), steps) if steps else None


@dataclass(kw_only=True, eq=False)
class _PairPlan:
    """How pairs of a shape are cut up: into rows × segments of `span` columns, and those into tiles."""

    kinds: tuple[str, str]
    count: int
    width: int
    rows: int
    rowed: bool
    columned: bool
    words: bool
    aligned: bool
    asm: bool
    full: bool
    blocks: int
    span: int
    tiles: int
    segments: int
    programs: int
    flags: int

    row_folds: int
    column_folds: int
    """Programs that look for the worst row and column."""
    series: Series | None = None
    """Its kernels, once they are compiled."""
    block: weakref.ref[PairBlock] | None = None
    """Where the next pair's numbers go, as long as somebody waits for those of the last."""

    def open_block(self, device: torch.device, stream: int) -> PairBlock:
        """A block with a row to take, on the stream."""
        block = None if self.block is None else self.block()
        if block is None or block.full or block.stream != stream:
            lines = self.rows if self.row_folds else 0, self.width if self.column_folds else 0
            folds = self.row_folds, self.column_folds
            block = PairBlock(lines, folds, self.norms + self.flags, device, stream)
            self.block = weakref.ref(block)
        return block

    def launches(self) -> Iterator[tuple[Any, int, tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any]]]:
        """Of each kernel the programs, which of `_tensors` it takes, its sizes, its constants and triton's options."""
        sizes = self.count, self.width, self.rows, self.tiles, self.segments
        yield compare_pair, self.programs, (0, 1, 2, 3, 4, 5), sizes, self.compares, self.options
        yield mend_pair, self.programs, (0, 1, 2, 3, 4, 5), sizes, self.mends, self.options
        if self.row_folds:
            kind, folds = {"KIND_B": self.kinds[1]}, self.row_folds + self.column_folds
            yield fold_lines, folds, (1, 2, 3, 4, 6, 7), self.folds, kind, {"num_warps": 8}

    @cached_property
    def row_norms(self) -> int:
        return self.tiles * 4 * _WARPS[self.words] * self.segments if self.rowed else 0

    @cached_property
    def norms(self) -> int:
        """Floats: of rows and of columns, of the error and of the reference."""
        return 2 * (self.row_norms + (self.programs * self.span if self.columned else 0))

    # The constants of a kernel in the order of its parameters, by which triton's own way takes them.

    @property
    def compares(self) -> dict[str, Any]:
        """What compare_pair is compiled for."""
        way = {"ALIGNED": self.aligned, "WORDS": self.words, "ASM": self.asm}
        ahead = {"STAGES": _STAGES[self.words] if self.aligned else 1, "FULL": self.full}
        return {**self._kinds, **way, **self._cut, **ahead}

    @property
    def mends(self) -> dict[str, Any]:
        """What mend_pair is compiled for."""
        return {**self._kinds, "UNIT": 2 if self.words else 1, **self._cut}

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": _WARPS[self.words], "num_stages": 1, "enable_fp_fusion": True}

    @property
    def _kinds(self) -> dict[str, Any]:
        return {"KIND_A": self.kinds[0], "KIND_B": self.kinds[1]}

    @property
    def _cut(self) -> dict[str, Any]:
        tall = 4 * _WARPS[self.words]
        rows = {"ROWED": self.rowed, "COLUMNS": self.columned, "BLOCKS": self.blocks, "ROWS": tall}
        return {**rows, "CHUNK": _CHUNK}

    @cached_property
    def folds(self) -> tuple[int, ...]:
        """The sizes that fold_lines takes."""
        slots, full = self.programs // self.segments, self.tiles * 4 * _WARPS[self.words]
        sizes = (self.rows, self.segments, self.row_folds, self.width)
        return (*sizes, slots, self.segments * self.span, full, self.programs, self.count, sample_step(self.count))


@lru_cache(maxsize=4096)
def _plan(
    shape: tuple[int, ...], one: torch.dtype, two: torch.dtype, place_a: int, place_b: int, device: torch.device
) -> _PairPlan:
    count = math.prod(shape)
    rows, rowed, columned = _lines(shape)
    place = place_a | place_b
    row = shape[-1] if rowed else count
    words = one.itemsize == two.itemsize == 2 and place == 0 and row % 8 == 0
    blocks, unit = _BLOCKS[words], 32 * (2 if words else 1)
    width = row if rowed else blocks * unit
    while blocks > 1 and (blocks // 2) * unit >= width:
        blocks //= 2
    span = blocks * unit
    if not rowed:
        rows = -(-count // width)
    tiles, segments = -(-rows // (4 * _WARPS[words])), -(-width // span)
    most = _programs(device, _PER_SM[words])
    slots = max(1, min(tiles, most // segments))
    programs = slots * segments if columned else max(1, min(tiles * segments, most))
    aligned = words or (place == 0 and row % 4 == 0)
    row_folds, column_folds = folds_of(shape)
    return _PairPlan(
        count=count,
        kinds=(_KINDS[one], _KINDS[two]),
        width=width,
        rows=rows,
        rowed=rowed,
        columned=columned,
        words=words,
        aligned=aligned,
        asm=_hopper(device),
        full=aligned and count == rows * width and rows % (4 * _WARPS[words]) == 0 and width % span == 0,
        blocks=blocks,
        span=span,
        tiles=tiles,
        segments=segments,
        programs=programs,
        flags=programs * (-(-tiles * segments // (programs * _CHUNK)) + 1),
        row_folds=row_folds,
        column_folds=column_folds,
    )


def _lines(shape: tuple[int, ...]) -> tuple[int, bool, bool]:
    """How many rows there are, whether they are distinguished, and whether columns are."""
    width = shape[-1] if shape else 1
    rows = math.prod(shape) // max(1, width)
    rowed = rows > 1 and width >= _NARROW
    return rows, rowed, rowed and width <= _WIDE


@lru_cache(maxsize=4096)
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
