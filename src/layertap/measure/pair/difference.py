"""What one pass over a pair of tensors gives: the metrics by which people compare them, and where the error sits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from layertap.result import rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Concentration:
    """The row (token, position) or column (channel) that carries most of the error."""

    index: tuple[int, ...]
    """Where: the leading indices of a row, or the last index of a column. In a pair of live values a row has one
    number, which counts through the leading axes."""
    share: float
    """Its part of the squared error of the whole tensor, 0 to 1; NaN for live values."""
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

    `pair.compare` fills in all metrics. `deferred.begin`, which measures live values while a model runs, fills in those
    by which rounding is judged: the first group and the third; metrics that it does not take are NaN.

    Pairs in which either value is not finite are left out of the numbers and counted. Relative errors are divided by
    |reference| + eps.
    """

    count: int = 0
    """How many pairs there are."""
    relative_l2: float = 0.0
    slope: float = 0.0
    """The part of the error that is a multiple of the reference: 0.25 where the candidate is 1.25 × too large."""
    offset: float = 0.0
    """The mean error, in units of the reference's root mean square."""
    row: Concentration | None = None
    column: Concentration | None = None
    """None for tensors of one row, or of one column, or without elements; live values of one row have it."""
    nan_mismatch: int = 0
    """Positions where only one side is NaN."""
    inf_mismatch: int = 0
    """Positions without a NaN where only one side is infinite, or the signs differ."""
    equal: bool = False
    """Whether the two are equal, bit for bit but for their dtype and the sign of a zero."""

    finite: int = 0
    """How many pairs are finite on both sides; 0 for live values, which are not counted."""
    max_abs: float = math.nan
    mean_abs: float = math.nan
    """Also called MAE."""
    max_relative: float = math.nan
    mean_relative: float = math.nan
    mse: float = math.nan
    reference_square: float = math.nan
    """The mean square of the reference, over the same pairs."""
    reference_abs: float = math.nan
    """The mean |reference|."""
    cosine: float = math.nan
    pearson: float = math.nan
    max_ulp: float = math.nan
    """The largest difference, counted in steps of the coarser of the two dtypes at the reference's size."""
    close: float = math.nan
    """The share of pairs with |difference| <= atol + rtol × |reference|."""
    percentiles: tuple[float, float, float, float] = (math.nan, math.nan, math.nan, math.nan)
    """p50, p90, p95, p99 of |difference|."""
    median_relative: float = math.nan
    nonfinite: int = 0
    """Positions that are not finite on both sides alike."""
    row_typical: float = 0.0
    """The median over all rows of their own relative error: what `row.relative` is compared with."""
    column_typical: float = 0.0
    """The same over all columns."""
    argmax: Agreement | None = None
    """Where it was asked for, and the tensor has rows of 2 to a million floating-point entries."""
    exact: bool = True
    """False when estimated from sketches; then only relative_l2 and cosine are known."""

    calm: float = 0.0
    """The relative error of what is left without the few rows or columns that force nearly all of the energy."""
    grid: bool = False
    """Whether the candidate's values have no more bits than an eight-bit float."""
    mismatched: float = 0.0
    """For integers: the share of places that differ."""
    truth: bool = False
    """Whether they are true or false: a mask, which no rounding flips."""
    shape: bool = False
    """Whether the two have as many axes but not the same shape."""
    absent: bool = False
    """Whether one side has nothing there: a gradient that never comes."""

    @property
    def error(self) -> float:
        """The relative L2 error."""
        return self.relative_l2

    @property
    def row_error(self) -> float:
        """The worst row's own relative error; 0 where rows were not measured."""
        return self.row.relative if self.row else 0.0

    @property
    def column_error(self) -> float:
        """The same of columns."""
        return self.column.relative if self.column else 0.0

    @property
    def nonfinite_mismatch(self) -> int:
        """Positions that are NaN or Inf on one side only, or Inf of different signs."""
        return self.nan_mismatch + self.inf_mismatch

    def worst(self, other: Difference) -> Difference:
        """Each number by which rounding is judged, the larger of the two: a floor under both."""
        return replace(
            self,
            relative_l2=max(self.relative_l2, other.relative_l2),
            slope=max(abs(self.slope), abs(other.slope)),
            offset=max(abs(self.offset), abs(other.offset)),
            row=max(self.row, other.row, key=_relative),
            column=max(self.column, other.column, key=_relative),
            calm=max(self.calm, other.calm),
            grid=self.grid or other.grid,
            mismatched=max(self.mismatched, other.mismatched),
            nan_mismatch=max(self.nan_mismatch, other.nan_mismatch),
            inf_mismatch=max(self.inf_mismatch, other.inf_mismatch),
            shape=self.shape or other.shape,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Difference:
        """From a report's metrics, or from the numbers of a finding's module as `live_dict` names them."""
        if "row_index" not in data:
            return rebuild(cls, data)
        lines = {
            name: {"index": [data[f"{name}_index"]], "share": "NaN", "relative": data[name]}
            if data[f"{name}_index"] >= 0
            else None
            for name in ("row", "column")
        }
        only_nan = data.get("nan_mismatch", 0)
        counts = {"nan_mismatch": only_nan, "inf_mismatch": data["nonfinite"] - only_nan, "nonfinite": 0}
        names = {"relative_l2": data["error"], "equal": data["exact"], "exact": True}
        return rebuild(cls, {**data, **lines, **counts, **names})

    def live_dict(self) -> dict[str, Any]:
        """What was measured of live values, as a finding's module has it in files."""
        names = ("error", "slope", "offset", "calm", "grid", "mismatched", "truth", "count", "shape", "absent")
        return {
            **{name: getattr(self, name) for name in names},
            "row": self.row_error,
            "row_index": self.row.index[0] if self.row else -1,
            "column": self.column_error,
            "column_index": self.column.index[0] if self.column else -1,
            "nonfinite": self.nonfinite_mismatch,
            "nan_mismatch": self.nan_mismatch,
            "exact": self.equal,
        }

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
        return ratio(self.mse, self.reference_square)

    @property
    def relative_mae(self) -> float:
        return ratio(self.mean_abs, self.reference_abs)

    @property
    def sqnr(self) -> float:
        """Signal to noise, in decibels."""
        if math.isnan(self.relative_mse):
            return math.nan
        return -10 * math.log10(self.relative_mse) if self.relative_mse > 0 else math.inf


UNMEASURED = Difference()
"""In the place of a floor where nothing was measured."""


def _relative(line: Concentration | None) -> float:
    return line.relative if line else 0.0


def ratio(error: float, size: float) -> float:
    """An error in units of a size; nothing is 0 of anything, and more is infinitely more than nothing."""
    if math.isnan(error):
        return math.nan
    if error == 0:
        return 0.0
    return error / size if size > 0 else math.inf
