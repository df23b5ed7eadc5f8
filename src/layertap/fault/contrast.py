"""One tensor of the candidate against the reference's: how far, in which way, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The numbers of one pair; relative to the reference, in float64."""

    error: float = 0.0
    """Relative L2 error."""
    slope: float = 0.0
    """The part of the error that is a multiple of the reference: 0.25 where the output is 1.25 × too large."""
    offset: float = 0.0
    """The mean error, in units of the reference's root mean square."""
    row: float = 0.0
    row_index: int = -1
    column: float = 0.0
    column_index: int = -1
    """The worst row and column: their own relative error (against the average row's size at least)."""
    mismatched: float = 0.0
    """For integers: the share of places that differ."""
    nonfinite: int = 0
    """Places that are NaN or Inf on one side only."""
    count: int = 0
    shape: bool = False
    """Whether the two have as many axes but not the same shape."""
    exact: bool = False
    """Whether the two are equal, bit for bit but for their dtype."""

    def worst(self, other: Contrast) -> Contrast:
        """Each number the larger of the two: a floor under both."""
        return replace(
            self,
            error=max(self.error, other.error),
            slope=max(abs(self.slope), abs(other.slope)),
            offset=max(abs(self.offset), abs(other.offset)),
            row=max(self.row, other.row),
            column=max(self.column, other.column),
            mismatched=max(self.mismatched, other.mismatched),
            nonfinite=max(self.nonfinite, other.nonfinite),
        )


@torch.no_grad()
def contrast(reference: torch.Tensor, candidate: torch.Tensor) -> Contrast | None:
    """None where the two differ in form: then there is nothing to measure."""
    if reference.is_complex() != candidate.is_complex() or reference.ndim != candidate.ndim:
        return None
    if reference.shape != candidate.shape:
        return Contrast(error=math.inf, shape=True, count=reference.numel())
    candidate = candidate.to(reference.device)
    if reference.is_complex():
        reference, candidate = torch.view_as_real(reference), torch.view_as_real(candidate)
    if not reference.numel():
        return Contrast(exact=True)
    if not reference.is_floating_point():
        if candidate.is_floating_point():
            return None
        share = (reference != candidate).double().mean().item()
        return Contrast(mismatched=share, count=reference.numel(), exact=share == 0)
    if not candidate.is_floating_point():
        return None
    r, c = reference.double(), candidate.double()
    # Equal infinities (masks) are no error; a value that is finite on one side only is the worst there is.
    alike = torch.isfinite(r) & torch.isfinite(c)
    same = (r == c) | (torch.isnan(r) & torch.isnan(c))
    nonfinite = int((~alike & ~same).sum().item())
    r, c = torch.where(alike, r, 0.0), torch.where(alike, c, 0.0)
    d = c - r
    square = r.square().sum().item()
    wrong = d.square().sum().item()
    width = r.shape[-1] if r.ndim else 1
    row, row_index = _worst_line(r.reshape(-1, width), d.reshape(-1, width), 1)
    column, column_index = _worst_line(r.reshape(-1, width), d.reshape(-1, width), 0)
    rms = math.sqrt(square / r.numel())
    return Contrast(
        error=_over(math.sqrt(wrong), math.sqrt(square)),
        slope=(r * d).sum().item() / square if square else 0.0,
        offset=_over(d.mean().item(), rms) if wrong else 0.0,
        row=row,
        row_index=row_index,
        column=column,
        column_index=column_index,
        nonfinite=nonfinite,
        count=r.numel(),
        exact=wrong == 0 and nonfinite == 0,
    )


def _worst_line(r: torch.Tensor, d: torch.Tensor, axis: int) -> tuple[float, int]:
    size, wrong = r.square().sum(axis), d.square().sum(axis)
    relative = wrong / torch.maximum(size, size.mean()).clamp_min(1e-300)
    worst = int(relative.argmax().item())
    return math.sqrt(relative[worst].item()), worst


def _over(a: float, b: float) -> float:
    if a == 0:
        return 0.0
    return a / b if b else math.copysign(math.inf, a)
