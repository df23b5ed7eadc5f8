"""The floor: how much error rounding explains at each site, measured where a run for it exists, modelled where not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from layertap.judge.calibration import PER_LAYER, SPREAD
from layertap.judge.depth import depth
from layertap.result import Verdict
from layertap.site import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The error that rounding explains at one site."""

    error: float
    """Of the whole tensor: relative L2."""
    row: float
    column: float
    """Of the row and the column where it is largest."""
    kind: str
    """`measured`, `modelled`, or `tolerance`."""
    rounded_before: bool = False
    """Whether something that ran before differs at all: rounding may then change a choice between near equals."""
    tipped_before: bool = False
    """Whether such a choice was tipped: then single rows differ altogether, and no rounding bounds them."""
    tipped_here: bool = False
    """Whether it was tipped in the module that this site is a part of: then all may be in another order."""
    quiet_before: int = 0
    """How many sites ran before, if all of them are equal but for rounding: there the floor has proven itself."""
    least: float = 0.0
    """Below this, an error is one rounding of the coarsest dtype, wherever it sits."""


FloorKey = tuple[str, int, int]


def key_of(record: Record) -> FloorKey:
    return str(record.site), record.step, record.rank


def modelled_floor(record: Record, roundoff: float, before: Prefix | None = None) -> Floor:
    """From the coarsest arithmetic used and the depth: independent roundings add up as the root of their number.

    Layers that are bit-identical have added nothing; `before` says how far that is so.
    """
    layers = depth(record)
    if before is None:
        return _modelled(layers, roundoff, 0, rounded=False, tipped=False, here=False)
    return floor_at(layers, record.site.path, roundoff, before)


def floor_at(layers: int, path: str, roundoff: float, before: Prefix) -> Floor:
    """The same for a site of which only its depth and path are known."""
    return _modelled(
        max(0, layers - before.depth),
        roundoff,
        before.quiet,
        rounded=not before.exact,
        tipped=bool(before.tipped),
        here=bool(before.tipped) and before.covers(path),
    )


@lru_cache(maxsize=1 << 16)
def _modelled(layers: int, roundoff: float, quiet: int, *, rounded: bool, tipped: bool, here: bool) -> Floor:
    error = PER_LAYER * roundoff * math.sqrt(1 + layers)
    # Rows and columns differ from each other: the worst of thousands is well above the average.
    return Floor(
        error=error,
        row=SPREAD * error,
        column=SPREAD * error,
        kind="modelled",
        quiet_before=quiet,
        rounded_before=rounded,
        tipped_before=tipped,
        tipped_here=here,
        least=SPREAD * roundoff,
    )


@dataclass(slots=True)
class Prefix:
    """What ran before a site, in the same step: as far as it is equal, or equal but for rounding."""

    quiet: int = 0
    """How many sites are so; 0 from the first one on that is not."""
    open: bool = True
    exact: bool = True
    tipped: set[str] = field(default_factory=set)
    """The modules in which whole numbers, such as the experts that a router chose, differ in a few places."""
    depth: int = 0
    """How deep the bit-identical ones reach, which have added no rounding."""

    def add(self, record: Record, verdict: Verdict) -> None:
        if "float" in record.dtype:
            self.add_real(depth(record), verdict)
            return
        self.exact = self.exact and verdict == "identical"
        self.open = self.open and verdict in ("identical", "noise")
        if verdict == "inconclusive":
            self.tipped.add(record.site.path.rpartition(".")[0])

    def add_real(self, layers: int, verdict: Verdict) -> None:
        """Adds a site that holds floats, so many layers deep."""
        self.exact = self.exact and verdict == "identical"
        self.open = self.open and verdict in ("identical", "noise")
        self.quiet = self.quiet + 1 if self.open else 0
        if self.exact:
            self.depth = max(self.depth, layers)

    def covers(self, path: str) -> bool:
        """Whether a site is in a module whose choice was tipped."""
        return any(path == module or path.startswith(f"{module}.") for module in self.tipped)
