"""The running counts behind a line of the receipt, and what has them besides a module's tap."""

from __future__ import annotations

from dataclasses import dataclass, field

from layertap.capture.short_way import TapCounts
from layertap.messages import tr
from layertap.site import SiteReceipt

REASONS = 40
"""Different reasons that one line of the receipt counts one by one."""


class SiteCounts(TapCounts):
    """What has come so far from one module in one role."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: dict[str, int] = {}
        """Tensors that were not taken, by the reason."""

    def skip(self, reason: str) -> None:
        """Counts a tensor that is not taken."""
        if len(self.skipped) >= REASONS and reason not in self.skipped:
            reason = tr("capture.other_reasons")
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def receipt(self, *, path: str, role: str, kind: str, why: str = "") -> SiteReceipt:
        """The line of the receipt."""
        return SiteReceipt(
            path=path,
            role=role,
            kind=kind,
            fired=self.fired,
            tensors=self.tensors,
            direct=self.direct,
            skipped=dict(self.skipped),
            recomputed=self.recomputed,
            dropped=self.dropped,
            why=why,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Where tensors come from that no module's call brings: a loss, an optimizer's state."""

    path: str
    kind: str
    counts: SiteCounts = field(default_factory=SiteCounts)

    def counts_of(self, role: str, asked: bool) -> SiteCounts:
        """The counts of all that comes from here."""
        return self.counts
