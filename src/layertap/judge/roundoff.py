"""How coarse the arithmetic of a dtype is: by how much one rounding moves a value, as floors count it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layertap.store import Run

ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-12,
    "bfloat16": 2.0**-9,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "int8": 2.0**-8,
}
"""The dtypes in which models compute, relatively; int8 represents quantised arithmetic. For the two half-precision
formats, whose sums are made in float32, it is half of the largest step."""


def roundoff_of(*runs: Run, computing: Sequence[Run] = ()) -> float:
    """The unit roundoff of the coarsest dtype in any of the runs, of tensors or of parameters.

    Not the dtype at the site: a residual stream or a router kept in float32 still carries what bfloat16 layers wrote.
    Of the runs in `computing`, what their runtimes say that they compute in counts as well.
    """
    dtypes = set()
    for run in runs:
        dtypes |= set(run.table(["dtype"]).column("dtype").unique().to_pylist())
        dtypes |= set(run.info.get("parameter_dtypes") or ())
    for run in computing:
        dtypes |= set(computes_in(run))
    return max((ROUNDOFF[dtype] for dtype in dtypes if dtype in ROUNDOFF), default=ROUNDOFF["float32"])


def computes_in(run: Run) -> tuple[str, ...]:
    """The dtypes, coarser than its tensors', in which the runtime of a run said that it computes."""
    return tuple(run.info.get("computes_in") or ())
