"""The nouns of fault finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layertap.errors import LayertapError
from layertap.measure.pair.difference import Difference
from layertap.messages import tr
from layertap.result import EXIT_CODES, Result, Verdict, rebuild
from layertap.site import Site

CAUSES = (
    *("weights", "config", "skipped", "scale", "offset", "sign", "permutation", "transpose", "shift", "mask"),
    *("clipping", "quantization", "precision", "nonfinite", "structure", "cache", "reduce", "shard", "unknown"),
)
"""The closed list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """One module of the candidate, forced to the reference."""

    path: str
    """The candidate's name for it."""
    reference_path: str
    """The reference's; `page` in files."""
    kind: str
    order: int
    """The place of its worst measurement in the order of execution."""
    where: str
    """Where that was: at its own exit, or at the entry of one of its children."""
    total: float
    """The error of its output in a free run: what it was given, and what it did to it."""
    entry: float
    """The error of what it is given by a caller that computes from right values: the caller's doing."""
    exit: float
    """The error of what it returns when it computes from right values: its own."""
    local: float
    """Its own error at the worst place."""
    floor: float
    """The error that rounding makes there."""
    ratio: float
    """The worst of error ÷ floor over the whole, the worst row, the worst column, slope and offset."""
    sign: str
    """Which of these it was."""
    site: Site
    """The measurement behind it, by the reference's names."""
    call: int
    """Which of the module's own calls it was in."""
    found: Difference
    """All numbers of that measurement."""
    by_rank: tuple[tuple[int, float], ...] = ()
    """The error there of each rank's part, where the candidate runs on several."""

    @property
    def page(self) -> str:
        """`reference_path`, by its name in files."""
        return self.reference_path

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModuleRow:
        return rebuild(cls, {**data, "reference_path": data["page"]})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding(Result):
    """The culprit, and why."""

    verdict: Verdict
    site: str = ""
    """The path of the smallest faulty module."""
    op: str = ""
    """The operator inside it where the two part, with its source line; empty where that was not found."""
    cause: str = ""
    """One of `CAUSES`; empty without a fault."""
    ranks: tuple[int, ...] = ()
    """Where the candidate runs on several ranks: those at fault, the first first; empty where it is all of them."""
    evidence: tuple[str, ...] = ()
    explained: float = 0.0
    """The share of the output's error that goes away when the reference's values are put back at the culprit.

    NaN where nothing can be put back: in a compiled model, or where the error is everywhere.
    """
    total: float = 0.0
    """The relative error of the model's output, in a free run."""
    local: float = 0.0
    floor: float = 0.0
    ratio: float = 0.0
    others: tuple[Finding, ...] = ()
    """Further faults, in order of execution."""
    table: tuple[ModuleRow, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not forced, not judged or could not be known."""
    forwards: dict[str, int] = field(default_factory=dict)
    """How many passes each side was run."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of the reference's tensors on the device, in memory and on disk."""
    write_repro: Callable[[Path], Path] | None = field(default=None, repr=False, compare=False)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def repro(self, path: str | os.PathLike[str]) -> Path:
        """Writes a folder with the culprit on both sides, its inputs, both outputs, and a script that shows it."""
        if self.write_repro is None and self.verdict == "fault":
            raise LayertapError(tr("finding.repro_elsewhere"))
        if self.write_repro is None:
            raise LayertapError(tr("finding.no_repro", verdict=self.verdict))
        return self.write_repro(Path(path))
