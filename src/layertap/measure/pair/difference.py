"""What one pass over a pair of tensors gives: every metric by which people compare them, and where the error sits."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Concentration:
    """The row (token, position) or column (channel) that carries most of the error."""

    index: tuple[int, ...]
    """Where: the leading indices of a row, or the last index of a column."""
    share: float
    """Its part of the squared error of the whole tensor, 0 to 1."""
    relative: float
    """Its own relative L2 error; its reference's norm counts as no less than that of the average row or column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether the largest entry of each row, a logit's choice, is in the same place on both sides."""

    rows: int
    share: float
    """Of the rows, how many agree: 0 to 1."""
    margin: float
    """Over the rows that disagree, the widest lead of the reference's choice over its second best, in standard
    deviations of the row: near 0 they were all ties. 0 where all rows agree, inf where the runner-up is -inf."""
    index: tuple[int, ...] | None
    """The row with that margin; None where all rows agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A candidate against its reference, element by element, accumulated in float64.

    Pairs in which either value is not finite are left out of the numbers and counted. Relative errors are divided by
    |reference| + eps.
    """

    count: int
    """How many pairs there are."""
    finite: int
    """How many of them are finite on both sides."""
    max_abs: float
    mean_abs: float
    """Also called MAE."""
    max_relative: float
    mean_relative: float
    mse: float
    reference_square: float
    """The mean square of the reference, over the same pairs."""
    reference_abs: float
    """The mean |reference|."""
    cosine: float
    pearson: float
    max_ulp: float
    """The largest difference, counted in steps of the coarser of the two dtypes at the reference's size."""
    close: float
    """The share of pairs with |difference| <= atol + rtol × |reference|."""
    percentiles: tuple[float, float, float, float]
    """p50, p90, p95, p99 of |difference|."""
    median_relative: float
    nan_mismatch: int
    """Positions where only one side is NaN."""
    inf_mismatch: int
    """Positions without a NaN where only one side is infinite, or the signs differ."""
    nonfinite: int
    """Positions that are not finite on both sides alike."""
    row: Concentration | None
    column: Concentration | None
    """None for tensors of one row, or of one column, or without elements."""
    row_typical: float = 0.0
    """The median over all rows of their own relative error: what `row.relative` is compared with."""
    column_typical: float = 0.0
    """The same over all columns."""
    argmax: Agreement | None = None
    """Where it was asked for, and the tensor has rows of 2 to a million floating-point entries."""
    exact: bool = True
    """False when estimated from sketches; then only relative_l2 and cosine are known."""

    @property
    def rmse(self) -> float:
        return math.sqrt(self.mse)

    @property
    def median_abs(self) -> float:
        return self.percentiles[0]

    @property
    def allclose(self) -> bool:
        return self.close == 1.0 and not (self.nan_mismatch or self.inf_mismatch)

    @property
    def relative_mse(self) -> float:
        return _ratio(self.mse, self.reference_square)

    @property
    def relative_mae(self) -> float:
        return _ratio(self.mean_abs, self.reference_abs)

    @property
    def relative_l2(self) -> float:
        return math.sqrt(self.relative_mse)

    @property
    def sqnr(self) -> float:
        """Signal to noise, in decibels."""
        if math.isnan(self.relative_mse):
            return math.nan
        return -10 * math.log10(self.relative_mse) if self.relative_mse > 0 else math.inf


def _ratio(error: float, size: float) -> float:
    if math.isnan(error):
        return math.nan
    if error == 0:
        return 0.0
    return error / size if size > 0 else math.inf
