"""One tensor against its reference, in the signs by which a fault differs from rounding: how far, which way, where."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    calm: float = 0.0
    """The relative error of what is left without the few rows or columns that force nearly all of the energy."""
    grid: bool = False
    """Whether the candidate's values have no more bits than an eight-bit float."""
    mismatched: float = 0.0
    """For integers: the share of places that differ."""
    truth: bool = False
    """Whether they are true or false: a mask, which no rounding flips."""
    nonfinite: int = 0
    """Places that are NaN or Inf on one side only."""
    count: int = 0
    shape: bool = False
    """Whether the two have as many axes but not the same shape."""
    absent: bool = False
    """Whether one side has nothing there: a gradient that never comes."""
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
            calm=max(self.calm, other.calm),
            grid=self.grid or other.grid,
            mismatched=max(self.mismatched, other.mismatched),
            nonfinite=max(self.nonfinite, other.nonfinite),
            shape=self.shape or other.shape,
        )
