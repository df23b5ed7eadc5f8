"""What an audit returns: one row a tensor, and one verdict. Plain data: it needs no torch, and can be pickled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from layertap.result import Result, as_dict

AuditVerdict = Literal["identical", "noise", "fault", "inconclusive"]

STATUSES = (
    "exact",
    "cast",
    "converted",
    "changed",
    "missing",
    "unexpected",
    "shape",
    "untied",
    "meta",
    "nonfinite",
    "constant",
    "unwritten",
)
"""Every status that a row can have."""

_WEIGHS: Mapping[str, AuditVerdict] = {
    "exact": "identical",
    "converted": "identical",
    "cast": "noise",
    "constant": "inconclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One tensor of either side, and what was proven of it."""

    name: str
    """Its name in the model; empty for a tensor that only the other side has."""
    other: str
    """What of the other side it was made of; several names are folded. Empty where nothing was found."""
    status: str
    """One of `STATUSES`."""
    rule: str = ""
    """How it follows from the other side: `same`, `renamed`, `tied`, `cast`, `stacked`, `transposed`, …"""
    detail: str = ""
    """The evidence in words and numbers."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    lossy: bool = False
    """Whether a cast to another dtype is part of the rule."""
    explained: bool = False
    """Whether a finding of this status is known to be harmless here; it then does not weigh in the verdict."""
    partial: bool = False
    """Whether values of the other side are left out, and nothing shows that they may be."""

    @property
    def weighs(self) -> AuditVerdict:
        """What this row alone would make of the verdict."""
        if self.explained:
            return "identical"
        if self.partial and self.status == "converted":
            return "inconclusive"
        return "noise" if self.status == "converted" and self.lossy else _WEIGHS.get(self.status, "fault")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit(Result):
    """Two sets of parameters, tensor by tensor."""

    model: str
    """What the first side is called."""
    other: str
    rows: tuple[AuditRow, ...]
    notes: tuple[str, ...] = ()
    """What concerns the whole: the class that was built, settings that were ignored."""
    faults: tuple[str, ...] = ()
    """Those of the notes that make the verdict a fault, whatever the tensors say."""
    bytes: int = 0
    """How much was read."""
    seconds: float = 0.0

    @property
    def verdict(self) -> AuditVerdict:
        """`identical`, `noise` (casts alone), `fault` or `inconclusive`."""
        found = {row.weighs for row in self.rows}
        if self.faults or "fault" in found:
            return "fault"
        if not self.rows or "inconclusive" in found:
            return "inconclusive"
        return "noise" if "noise" in found else "identical"

    @property
    def by_status(self) -> dict[str, int]:
        """How many rows have each status, in the order of `STATUSES`."""
        counted = Counter(row.status for row in self.rows)
        return {status: counted[status] for status in STATUSES if counted[status]}

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the verdict and the counts beside them."""
        return {"verdict": self.verdict, "by_status": self.by_status, **as_dict(self)}
