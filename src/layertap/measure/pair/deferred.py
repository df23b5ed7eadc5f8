"""Pairs of tensors of any device, measured now and read later.

A measurement is begun where the tensor is at hand and read when the run is over, all of them at once: on a GPU, reading
a number waits for everything before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from layertap.measure.dense import closed, closing, dense
from layertap.measure.pair import many, signs_native
from layertap.measure.pair.blocks import PairRow
from layertap.measure.pair.difference import Concentration, Difference
from layertap.measure.pair.kernel import launch_pair, supported_pair
from layertap.measure.pair.massive import MASSIVE, SEVERAL, judged, on_grid, without_massive

BLOCK = 1 << 22
"""Elements at a time, in float64."""


class PendingPair(NamedTuple):
    """A measurement that is under way: its numbers lie on the tensors' device."""

    numbers: torch.Tensor | PairRow
    """A row where the kernel measures."""
    numel: int
    truth: bool = False
    calm: torch.Tensor | None = None
    """The error apart from what is massive, and whether the values lie on a grid; a row has it too."""


def compare_tensors(reference: torch.Tensor, candidate: torch.Tensor) -> Difference | None:
    """None where the two differ in form: then there is nothing to measure."""
    begun = begin(reference, candidate)
    return settle([begun])[0] if isinstance(begun, PendingPair) else begun


def begin(reference: torch.Tensor, candidate: torch.Tensor) -> PendingPair | Difference | None:
    """Starts a measurement on the candidate's device; what needs no measuring is returned at once."""
    form = form_of(reference, candidate)
    if form is None or form.shape or not reference.numel():
        return form
    if not torch.is_grad_enabled():
        return _begin(reference, candidate)
    with torch.no_grad():
        return _begin(reference, candidate)


def _begin(reference: torch.Tensor, candidate: torch.Tensor) -> PendingPair | Difference | None:
    ours, theirs = dense(reference), dense(candidate)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    reference, candidate = on_one_device(ours, theirs)
    if reference.is_complex():
        reference, candidate = torch.view_as_real(reference), torch.view_as_real(candidate)
    if not reference.is_floating_point():
        apart = (reference != candidate).sum(dtype=torch.float64).reshape(1)
        return PendingPair(apart, reference.numel(), truth=reference.dtype == torch.bool)
    if candidate.is_cuda:
        reference, candidate = reference.contiguous(), candidate.contiguous()
        if supported_pair(reference.shape, reference.dtype, candidate.dtype, reference.device):
            return by_kernel(reference, candidate)
    if signs_native.available() and signs_native.fits(reference) and signs_native.fits(candidate):
        closed_at = closing(reference.dtype), closing(candidate.dtype)
        *sums, nonfinite, calm, grid = signs_native.signs(reference, candidate, closed_at, MASSIVE, SEVERAL)
        only_nan = float((reference.isnan() != candidate.isnan()).sum()) if nonfinite else 0.0
        return _read([*sums, only_nan, nonfinite - only_nan], reference.numel(), calm=calm, grid=bool(grid))
    numbers, energies = _measure_lines(reference, candidate)
    judgement = [without_massive(*energies)[0], on_grid(candidate.reshape(1, -1))[0].double()]
    return PendingPair(numbers, reference.numel(), calm=torch.stack(judgement))


def by_kernel(reference: torch.Tensor, candidate: torch.Tensor) -> PendingPair:
    """Starts a measurement by the pair kernel, which fits."""
    if _may_close(candidate):
        reference, candidate = _closed_at_infinity(reference), _closed_at_infinity(candidate)
    return PendingPair(launch_pair(reference, candidate), reference.numel())


def _may_close(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be a mask, or scores with one added, by its shape: the kernel knows infinities alone."""
    return tensor.ndim == 4 or (tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2])


def _closed_at_infinity(values: torch.Tensor) -> torch.Tensor:
    """In one pass, the lowest numbers there are, which masks add to scores, as the infinities that they represent."""
    return torch.nn.functional.threshold(values, closing(values.dtype), -math.inf)


def on_one_device(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the candidate's device where that has float64 and answers at once, or else on the CPU."""
    if candidate.is_cuda and reference.device == candidate.device:
        return reference, candidate
    device = candidate.device if candidate.device.type in ("cpu", "cuda") else torch.device("cpu")
    return (
        reference if reference.device == device else reference.to(device),
        candidate if candidate.device == device else candidate.to(device),
    )


def form_of(reference: torch.Tensor, candidate: torch.Tensor) -> Difference | None:
    """What can be said without looking at the values: None where the two differ in form, and whether shapes differ."""
    nested = reference.is_nested or candidate.is_nested
    if not nested and reference.dtype == candidate.dtype and reference.shape == candidate.shape:
        return alike(reference.numel())
    if reference.is_complex() != candidate.is_complex() or reference.ndim != candidate.ndim:
        return None
    if nested:  # torch's nested tensors have no shape to be asked for
        same = reference.is_nested == candidate.is_nested and reference.numel() == candidate.numel()
        return alike(reference.numel()) if same else None
    if reference.shape != candidate.shape:
        return Difference(relative_l2=math.inf, shape=True, count=reference.numel())
    if reference.is_floating_point() != candidate.is_floating_point():
        return None
    return alike(reference.numel())


@lru_cache(maxsize=1024)
def alike(count: int) -> Difference:
    """Of so many values that need no measuring, or have not been measured yet."""
    return Difference(equal=True, count=count)


def settle(begun: Sequence[PendingPair]) -> list[Difference]:
    """Reads the numbers of many measurements, one transfer for each device."""
    found: list[Difference | None] = [None] * len(begun)
    rows: dict[int, PairRow] = {}
    plain: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    beside: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for i, one in enumerate(begun):
        if isinstance(one.numbers, PairRow):
            rows[i] = one.numbers
        else:
            plain.setdefault(one.numbers.device, []).append((i, one.numbers))
        if one.calm is not None:
            beside.setdefault(one.calm.device, []).append((i, one.calm))
    waiting = [*rows.values()]
    for i, (calm, grid), numbers in zip(rows, judged(waiting), many.read_pairs(waiting), strict=True):
        found[i] = _read(numbers, begun[i].numel, calm=calm, grid=grid)
    for here in plain.values():
        read = torch.cat([numbers for _, numbers in here]).tolist()
        for i, own in here:
            found[i] = _read(read[: len(own)], begun[i].numel, truth=begun[i].truth)
            read = read[len(own) :]
    for ready in beside.values():
        for (i, _), (calm, grid) in zip(ready, torch.stack([calm for _, calm in ready]).tolist(), strict=True):
            found[i] = replace(found[i] or Difference(), calm=calm, grid=bool(grid))
    return [one for one in found if one is not None]


def _measure(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    return _measure_lines(reference, candidate)[0]


def _measure_lines(
    reference: torch.Tensor, candidate: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """The numbers that a difference is read from, and the energies of rows and columns for `without_massive`."""
    width = reference.shape[-1] if reference.ndim else 1
    left, right = reference.reshape(-1, width), candidate.reshape(-1, width)
    rows, columns, sums = [], torch.zeros(2, width, dtype=torch.float64, device=left.device), []
    step = max(1, BLOCK // width)
    for start in range(0, len(left), step):
        r, c = _opened(left[start : start + step]), _opened(right[start : start + step])
        d = c - r
        # Equal infinities (masks) are no error; a value that is finite on one side only is the worst there is.
        finite = torch.isfinite(d)
        only_nan = (torch.isnan(r) != torch.isnan(c)).sum()
        other = (~finite & ~((r == c) | torch.isnan(r) | torch.isnan(c))).sum()
        r, d = torch.where(finite, r, 0.0), torch.where(finite, d, 0.0)
        squares = torch.stack([d.square(), r.square()])
        rows.append(squares.sum(2))
        columns += squares.sum(1)
        sums.append(torch.stack([(r * d).sum(), d.sum(), only_nan, other]))
    by_row = torch.cat(rows, dim=1)
    product, total, *nonfinite = torch.stack(sums).sum(0).unbind()
    lines = map(_worst_line, (by_row, columns))
    numbers = torch.cat([by_row.sum(1), torch.stack([product, total]), *lines, torch.stack(nonfinite)])
    return numbers, (by_row.T[None], columns.T[None])


def _opened(values: torch.Tensor) -> torch.Tensor:
    """In float64, the lowest numbers there are, which masks add to scores, as the infinities that they represent."""
    return values.double().masked_fill_(closed(values), -math.inf)


def _worst_line(sums: torch.Tensor) -> torch.Tensor:
    wrong, size = sums
    value, index = (wrong / torch.maximum(size, size.mean()).clamp_min(1e-300)).max(0)
    return torch.stack([value.sqrt(), index.double()])


def _read(
    numbers: Sequence[float], count: int, *, calm: float = 0.0, grid: bool = False, truth: bool = False
) -> Difference:
    if len(numbers) == 1:
        return Difference(mismatched=numbers[0] / count, count=count, equal=numbers[0] == 0, truth=truth)
    wrong, square, product, total, row, row_index, column, column_index, only_nan, other = numbers
    return Difference(
        relative_l2=_over(math.sqrt(wrong), math.sqrt(square)),
        slope=product / square if square else 0.0,
        offset=_over(total / count, math.sqrt(square / count)) if wrong else 0.0,
        row=_line(row, row_index),
        column=_line(column, column_index),
        nan_mismatch=int(only_nan),
        inf_mismatch=int(other),
        count=count,
        equal=wrong == 0 and not (only_nan or other),
        calm=calm,
        grid=grid,
        truth=truth,
    )


def _line(relative: float, index: float) -> Concentration:
    return Concentration(index=(int(index),), share=math.nan, relative=relative)


def _over(a: float, b: float) -> float:
    if a == 0:
        return 0.0
    return a / b if b else math.copysign(math.inf, a)
