"""The nouns of fault finding."""

from __future__ import annotations

from dataclasses import dataclass, field

from layertap.compare.result import EXIT_CODES, Verdict

CAUSES = (
    *("weights", "config", "skipped", "scale", "offset", "sign", "permutation", "transpose", "shift", "mask"),
    *("clipping", "quantization", "precision", "nonfinite", "structure", "cache", "unknown"),
)
"""The closed list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One module of the candidate, held to the reference."""

    path: str
    kind: str
    order: int
    """The place of its worst measurement in the order of execution."""
    where: str
    """Where that was: at its own exit, or at the entry of one of its children."""
    local: float
    """Its own relative error, computed from right values."""
    floor: float
    """The error that rounding makes there."""
    ratio: float
    """The worst of error ÷ floor over the whole, the worst row, the worst column, slope and offset."""
    sign: str
    """Which of these it was."""
    place: tuple[str, int, str, str]
    """The measurement behind it: module, call, entry or exit, leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The culprit, and why."""

    verdict: Verdict
    site: str = ""
    """The path of the smallest guilty module."""
    cause: str = ""
    """One of `CAUSES`; empty without a fault."""
    evidence: tuple[str, ...] = ()
    explained: float = 0.0
    """The share of the output's error that goes away when the reference's values are put back at the culprit."""
    total: float = 0.0
    """The relative error of the model's output, in a free run."""
    local: float = 0.0
    floor: float = 0.0
    ratio: float = 0.0
    others: tuple[Finding, ...] = ()
    """Further faults, in order of execution."""
    table: tuple[ModuleRow, ...] = ()
    notes: tuple[str, ...] = ()
    forwards: dict[str, int] = field(default_factory=dict)
    """How many passes each side was run."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def __str__(self) -> str:
        from layertap.report.finding import finding_text

        return finding_text(self)
