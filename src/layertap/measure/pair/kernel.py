"""Every metric of a pair of CUDA tensors in one read of both, without synchronising.

    found = compare_cuda(reference, candidate)         # waits for the result
    launch_pair(reference, candidate, slab)            # enqueues; `decode_pair` reads the slab once it is on the host

Three kernels: fused.py reads the data, takes all values to be finite and of ordinary size, and adds up in float32,
tile by tile, up to 2048 numbers; exact.py reads the chunks in which that did not hold again, in float64;
fold.py looks for the row and the column that stand out, in the norms that these left of each.

Percentiles and medians of single pairs are NaN: they would need a histogram. Ulps of bfloat16 are exact up to 256, then
to 8 bits. Rows are separate from 64 columns on, columns up to 8192; typical errors are medians of up to 4096 of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from layertap.errors import BadArgument
from layertap.measure.bits import FOUND
from layertap.measure.floats import FORMATS
from layertap.measure.pair.difference import Concentration, Difference
from layertap.measure.pair.exact import mend_pair
from layertap.measure.pair.fold import BEST, FOLDS, LINE, PAIR_SLAB_BYTES, SAMPLE, SAMPLES, fold_lines
from layertap.measure.pair.fused import FIELDS, MOST, compare_pair
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


def compare_cuda(
    reference: torch.Tensor, candidate: torch.Tensor, *, rtol: float = 1e-3, atol: float = 1e-3, eps: float = 1e-8
) -> Difference:
    """Measures `candidate` against `reference` and waits for the numbers."""
    slab = torch.empty(PAIR_SLAB_BYTES, dtype=torch.uint8, device=reference.device)
    launch_pair(reference, candidate, slab, rtol=rtol, atol=atol, eps=eps)
    return decode_pair(slab.cpu().numpy(), tuple(reference.shape), reference.dtype, candidate.dtype)


def launch_pair(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    slab: torch.Tensor,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-3,
    eps: float = 1e-8,
) -> None:
    """Enqueues on the current stream what measures a pair into `slab`: PAIR_SLAB_BYTES of uint8 on the same device."""
    device = reference.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # triton launches on the current device
            launch_pair(reference, candidate, slab, rtol=rtol, atol=atol, eps=eps)
        return
    if reference.shape != candidate.shape or not (reference.is_contiguous() and candidate.is_contiguous()):
        sides = " and ".join(
            tr("measure.with_strides", shape=tuple(side.shape), stride=side.stride()) for side in (reference, candidate)
        )
        raise BadArgument(tr("measure.two_tensors", sides=sides))
    if slab.numel() != PAIR_SLAB_BYTES or slab.data_ptr() % 16 or not 1e-30 <= eps < 1e30:
        raise BadArgument(tr("measure.pair_slab", PAIR_SLAB_BYTES=PAIR_SLAB_BYTES, numel=slab.numel(), eps=eps))
    if not reference.numel():
        slab.zero_()
        return
    plan = _plan(reference, candidate)
    _, least = _step(*plan.kinds)
    norms = 2 * (plan.row_norms + plan.column_norms)
    scratch = torch.empty(norms + plan.flags, dtype=torch.float32, device=device)
    row_norms, column_norms = scratch[: 2 * plan.row_norms], scratch[2 * plan.row_norms : norms]
    out, flags = slab.view(torch.float64), scratch[norms:].view(torch.int32)
    a, b = (side.detach().reshape(-1).view(_RAW[side.element_size()]) for side in (reference, candidate))
    arguments = (
        *(a, b, out, row_norms, column_norms, flags),
        *(reference.numel(), plan.width, plan.rows, plan.tiles, plan.segments, eps, rtol, atol, 2.0**least),
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


def decode_pair(
    slab: npt.NDArray[np.uint8], shape: tuple[int, ...], reference: torch.dtype, candidate: torch.dtype
) -> Difference:
    """What `launch_pair` left in `slab`, copied to the host, for tensors of that shape and those dtypes."""
    numbers = slab[: 8 * SAMPLES].view(np.float64)
    samples = slab[8 * SAMPLES :].view(np.float32).reshape(2, SAMPLE)
    table = numbers[:BEST].reshape(-1, MOST)
    fields = dict(zip(FIELDS, table[:, : int(table[-1, 0])], strict=True))
    total = {
        name: float(field.max(initial=0) if name.startswith("max_") else field.sum()) for name, field in fields.items()
    }
    # Parts about shifts of their own make a whole about its means: Chan's formula.
    finite, n = fields["finite"], max(1.0, total["finite"])
    some, sum_a, sum_b = np.maximum(finite, 1), fields["a"], fields["b"]
    means_a, means_b = fields["shift_a"] + sum_a / some, fields["shift_b"] + sum_b / some
    mean_a, mean_b = float(finite @ means_a) / n, float(finite @ means_b) / n
    off_a, off_b = means_a - mean_a, means_b - mean_b
    aa = float((fields["aa"] - sum_a * sum_a / some + finite * off_a * off_a).sum())
    bb = float((fields["bb"] - sum_b * sum_b / some + finite * off_b * off_b).sum())
    ab = float((fields["ab"] - sum_a * sum_b / some + finite * off_a * off_b).sum())
    error, size_a, size_b = total["error"], total["reference"], bb + n * mean_b * mean_b
    # Rounding leaves a constant tensor some spread; sums without a shift, those of 16-bit numbers, leave more.
    spread = 1e-6 if reference.itemsize == candidate.itemsize == 2 else 1e-12
    apart = mean_a - mean_b
    rows, rowed, columned = _lines(shape)
    best, folds = numbers[BEST:].reshape(2, 3, FOLDS), folds_of(shape)
    return Difference(
        count=math.prod(shape),
        finite=int(total["finite"]),
        max_abs=total["max_abs"],
        mean_abs=total["sum_abs"] / n,
        max_relative=total["max_relative"],
        mean_relative=total["sum_relative"] / n,
        mse=error / n,
        reference_square=size_a / n,
        reference_abs=total["reference_abs"] / n,
        cosine=_cosine(ab + n * mean_a * mean_b, size_a, size_b, error, 0.0),
        pearson=_cosine(ab, aa, bb, max(0.0, error - n * apart * apart), spread * max(size_a, size_b)),
        max_ulp=math.ldexp(total["max_ulp"], _step(_KINDS[reference], _KINDS[candidate])[0]),
        close=total["close"] / n if total["finite"] else 1.0,
        percentiles=(math.nan, math.nan, math.nan, math.nan),
        median_relative=math.nan,
        nan_mismatch=int(total["nan_mismatch"]),
        inf_mismatch=int(total["inf_mismatch"]),
        nonfinite=int(total["nonfinite"]),
        row=_worst(best[0, :, : folds[0]], error, shape[:-1]) if rowed else None,
        column=_worst(best[1, :, : folds[1]], error, shape[-1:]) if columned else None,
        row_typical=_typical(samples[0], rows) if rowed else 0.0,
        column_typical=_typical(samples[1], shape[-1]) if columned else 0.0,
    )


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


def _step(one: str, two: str) -> tuple[int, int]:
    """The step of the coarser type at x is 2^(max(exponent of x, least) - mantissa)."""
    forms = FORMATS[one], FORMATS[two]
    mantissa = min(form.mantissa for form in forms)
    return mantissa, max(form.least_exponent - form.mantissa for form in forms) + mantissa


def _cosine(dot: float, one: float, two: float, error: float, least: float) -> float:
    """From the error where the sides are near each other: then it is 1 less something, and that to all digits."""
    if one <= least or two <= least:
        return 1.0 if one <= least and two <= least else 0.0
    if 2 * error < one + two:
        dot = (one + two - error) / 2
    return min(1.0, max(-1.0, dot / math.sqrt(one) / math.sqrt(two)))


def _worst(best: npt.NDArray[np.float64], error: float, shape: tuple[int, ...]) -> Concentration:
    relative, errors, index = best
    fold = int(np.where(relative == relative.max(), errors, -1.0).argmax())
    place = tuple(int(i) for i in np.unravel_index(int(index[fold]), shape))
    return Concentration(
        index=place, share=float(errors[fold]) / error if error else 0.0, relative=float(relative[fold])
    )


def _typical(sample: npt.NDArray[np.float32], lines: int) -> float:
    """The median of up to SAMPLE lines: the kernel sampled every n-th."""
    return float(np.median(sample[: -(-lines // -(-lines // SAMPLE))]))


@lru_cache
def _programs(device: torch.device, per_sm: int) -> int:
    if device.type != "cuda":
        return 2  # triton's interpreter, in the tests
    return min(MOST, per_sm * torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
