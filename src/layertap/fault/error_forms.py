"""What an error looks like: the forms that it can have, the surest first. Numbers alone; no module is asked."""

from __future__ import annotations

import math

import torch

from layertap.fault.module_differences import Explanation
from layertap.result import Note

NEAR = 0.01
"""Two values are the same one if they differ by less than this, relatively."""
REST = 0.05
"""A form fits if it leaves at most this share of the error, or of the value."""
FLOORS = 2
"""So many floors are the noise that a form may leave besides."""
TERM_NOISE = 0.5
"""A missing or doubled term is seen if the noise is at most this share of the error."""
OFFSET_NOISE = 0.7
"""The same of an offset."""
SLOPE_NOISE = 4
"""A slope differs from 1 if it does by more than so many times what the floor's noise makes by chance."""
AT_LIMIT = 1e-3
"""Values this near to the largest, relatively, are at the limit."""
CLIPPED = 3
"""More values than this are at the limit if they are clipped."""
LIMIT_GAIN = 2 / 3
"""And more than this share of those that are beyond the limit in the reference."""
REORDERED = 0.1
"""Rearranged values are at least this far off, relatively."""
CODES = 256
"""A tensor of an eight-bit type has at most so many values."""
FINER = 4
"""The reference has more than so many times as many."""
ROUNDED = 0.02
"""What is rounded is off by less than this, relatively."""
INCOHERENT = 1 / 4
"""And its slope by less than this share of that: rounding has no direction."""
SHIFT_LENGTH = 4
"""Shorter axes are not asked for a shift."""
SHIFT_GAIN = 0.1
"""A neighbour is much nearer than the same place: at most this share of its distance."""
SHIFTED_SLICES = 2
"""So many slices at least, where only a part of them is shifted."""
FEW = 4
"""Few lines are at most one in so many; shorter axes have no few."""
FEW_SHARE = 0.98
"""Few lines that are wrong alone carry more than this share of the error."""
FEW_GAIN = 49
"""And are so many times worse for their size than the others."""
LINE_SHARE = 0.01
"""A line counts as wrong with more than this share of the worst one's error."""
RIGHT_ROWS = 2
"""A row is right up to so many floors."""
WRONG_ROWS = 20
"""And wrong beyond so many."""


def certain_form(right: torch.Tensor, found: torch.Tensor, given: list[torch.Tensor]) -> Explanation | None:
    """Forms that leave no doubt."""
    if right.shape != found.shape:
        return "structure", (Note("cause.shape", shape=tuple(found.shape), shape2=tuple(right.shape)),)
    if not found.is_floating_point():
        return None
    broken = ~torch.isfinite(found) & torch.isfinite(right)
    if broken.any():
        return "nonfinite", (Note("cause.not_finite_where", sum=int(broken.sum())),)
    if any(value.shape == found.shape and near(value.double(), found.double()) for value in given):
        return "skipped", (Note("cause.returns_input"),)
    if not found.any():
        return "skipped", (Note("cause.returns_zeros"),)
    return None


def error_form(
    right: torch.Tensor, found: torch.Tensor, around: dict[str, torch.Tensor], floor: float, subject: str
) -> Explanation | None:
    """The cause by the form of the error; the surest forms first. The floor is the noise that the form stands in."""
    r, c = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (right, found))
    d = c - r
    size, error = d.norm().item(), (d.norm() / r.norm()).item()
    noise_of_floor = FLOORS * floor * r.norm().item()
    noise = math.hypot(REST * size, noise_of_floor)
    for name, value in around.items():
        if value.shape == d.shape and value.is_floating_point():
            for sign, cause, code in ((1, "skipped", "cause.missing"), (-1, "structure", "cause.added_twice")):
                if (d + sign * value.double()).norm().item() < noise < TERM_NOISE * size:
                    return cause, (Note(code, name=name),)
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    rest = (c - slope * r).norm().item()
    steep = abs(slope - 1) > SLOPE_NOISE * floor / math.sqrt(r.numel())
    if steep and rest < min(noise, math.hypot(REST * c.norm().item(), noise_of_floor)):
        return ("sign" if slope < 0 else "scale"), (Note("cause.times", subject=subject, slope=slope),)
    mean = d.mean().item()
    if (d - mean).norm().item() < noise < OFFSET_NOISE * size:
        return "offset", (Note("cause.added", mean=mean),)
    if d.ndim > 1 and (d - d.reshape(-1, d.shape[-1]).mean(0)).norm().item() < noise < OFFSET_NOISE * size:
        return "offset", (Note("cause.added_vector"),)
    if d.ndim == 4 and (d - d.mean((0, 2, 3), keepdim=True)).norm().item() < noise < OFFSET_NOISE * size:
        return "offset", (Note("cause.added_channel"),)
    return _shift(r, c) or _clipping(r, c, d) or _few(d, r) or _order(r, c, error)


def faint_form(right: torch.Tensor, found: torch.Tensor, floor: float) -> Explanation | None:
    """Forms that other causes have as well."""
    r, c = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (right, found))
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    return _untouched(c - r, r, floor) or _coarse(r, c, ((c - r).norm() / r.norm()).item(), slope)


def integer_form(right: torch.Tensor, found: torch.Tensor) -> Explanation | None:
    """Whole numbers: positions, ids, masks."""
    if found.dtype == torch.bool:
        return "mask", (Note("cause.places_differ", sum=int((found != right).sum()), numel=found.numel()),)
    apart = (found.long() - right.long()).flatten()
    if not apart.any():
        return None
    if bool((apart == apart[0]).all()):
        return "shift", (Note("cause.numbers_off", apart=int(apart[0])),)
    off = apart[apart != 0]
    if len(off) and bool((off == off[0]).all()):
        return "shift", (Note("cause.some_numbers_off", count=len(off), count2=len(apart), off=int(off[0])),)
    if torch.equal(found.flatten().sort().values, right.flatten().sort().values.to(found)):
        return "permutation", (Note("cause.numbers_order"),)
    return _shift(right.double(), found.double())


def _clipping(r: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Explanation | None:
    limit = c.abs().max().item()
    at = c.abs() >= limit * (1 - AT_LIMIT)
    before = (r.abs() >= limit * (1 - AT_LIMIT)).double().mean()
    if at.sum() > CLIPPED and at.double().mean() > LIMIT_GAIN * before and d[~at].norm() < REST * d.norm():
        return "clipping", (Note("cause.clipped", limit=limit),)
    return None


def _order(r: torch.Tensor, c: torch.Tensor, error: float) -> Explanation | None:
    if error < REORDERED:
        return None
    if r.ndim >= 2 and r.shape[-1] == r.shape[-2] and near(r.transpose(-1, -2), c):
        return "transpose", (Note("cause.axes_swapped"),)
    if near(r.flatten().sort().values, c.flatten().sort().values):
        return "permutation", (Note("cause.other_order"),)
    return None


def _coarse(r: torch.Tensor, c: torch.Tensor, error: float, slope: float) -> Explanation | None:
    unique = torch.unique(c).numel()
    if unique <= CODES < c.numel() and torch.unique(r).numel() > FINER * unique:
        return "quantization", (Note("cause.unique_values", unique=unique),)
    if error < ROUNDED and abs(slope - 1) < INCOHERENT * error:
        return "precision", (Note("cause.incoherent", error=error),)
    return None


def _shift(r: torch.Tensor, c: torch.Tensor) -> Explanation | None:
    for axis in range(max(r.ndim - 1, 0)):
        size = r.shape[axis]
        part = _partly_shifted(r, c, axis)
        if part is not None:
            return part
        for by in (1, -1):
            moved, there = r.narrow(axis, max(-by, 0), size - 1), c.narrow(axis, max(by, 0), size - 1)
            unmoved = r.narrow(axis, max(by, 0), size - 1)
            # What changes little along an axis is near its neighbour without being shifted.
            if size >= SHIFT_LENGTH and near(moved, there) and _much_nearer(there - moved, there - unmoved):
                return "shift", (Note("cause.axis_shifted", axis=axis, by=by),)
    return None


def _much_nearer(moved: torch.Tensor, unmoved: torch.Tensor) -> bool:
    return bool(moved.norm() <= SHIFT_GAIN * unmoved.norm())


def _partly_shifted(r: torch.Tensor, c: torch.Tensor, axis: int) -> Explanation | None:
    """From some place on, or up to it, each slice is its neighbour's: positions that jump."""
    size = r.shape[axis]
    if size < SHIFT_LENGTH:
        return None
    right, found = (t.movedim(axis, 0).reshape(size, -1) for t in (r, c))
    length = right.norm(dim=1)
    wrong = (found - right).norm(dim=1) > NEAR * length
    for by in (1, -1):
        there = wrong.clone()
        there[0 if by > 0 else -1] = False  # its neighbour is not there
        moved = right.roll(by, 0)
        taken = (found - moved).norm(dim=1) <= NEAR * moved.norm(dim=1)
        if int(there.sum()) >= SHIFTED_SLICES and bool(taken[there].all()) and not bool(wrong.all()):
            return "shift", (Note("cause.partly_shifted", count=int(wrong.sum()), total=size, axis=axis, by=by),)
    return None


def _few(d: torch.Tensor, r: torch.Tensor) -> Explanation | None:
    """A few rows or channels that carry all of the error."""
    if d.ndim < 2:
        return None
    flat, sizes = (value.reshape(-1, d.shape[-1]).square() for value in (d, r))
    for code, axis in (("cause.few_rows", 1), ("cause.few_channels", 0)):
        line, size = flat.sum(axis), sizes.sum(axis)
        order = line.sort(descending=True)
        few = max(1, len(line) // FEW)
        wrong, whole = order.values[:few].sum() / line.sum(), size[order.indices[:few]].sum() / size.sum()
        # Where the reference has its energy in the same few, the error is no larger there than elsewhere.
        if len(line) >= FEW and wrong > FEW_SHARE and wrong * (1 - whole) > FEW_GAIN * whole * (1 - wrong):
            count = int((line > LINE_SHARE * order.values[0]).sum())
            return "mask", (Note(code, count=count, total=len(line), first=int(order.indices[0])),)
    return None


def _untouched(d: torch.Tensor, r: torch.Tensor, floor: float) -> Explanation | None:
    """Rows that are right among rows that are wrong.

    The first of a sequence says nothing: what sees only itself is right whatever attention does with the others.
    """
    if r.ndim < 2:
        return None
    sizes = r.reshape(-1, r.shape[-1]).square().sum(1).clamp_min(1e-300)
    relative = (d.reshape(-1, d.shape[-1]).square().sum(1) / sizes).sqrt()
    clean = relative <= RIGHT_ROWS * floor
    first = torch.arange(len(clean), device=clean.device) % max(r.shape[-2], 1) == 0
    if (clean & ~first).any() and (relative > WRONG_ROWS * floor).any():
        return "mask", (Note("cause.rows_right", sum=int(clean.sum()), count=len(clean)),)
    return None


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= NEAR * a.norm()) and bool(a.any())
