"""The nouns of a comparison: pairs of sites, one row for each pair, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layertap.measure.pair.difference import Difference
from layertap.result import EXIT_CODES, Result, Verdict, rebuild
from layertap.site import Record, Site

if TYPE_CHECKING:
    from layertap.compare.align.layout import AxisLayout
    from layertap.compare.align.pairs import Pairs
    from layertap.compare.padding import Trim


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two records that are taken to be the same tensor on both sides."""

    reference: Record
    candidate: Record
    rung: str
    """Which step of the alignment paired them: exact, mapping, prefix, numbering, content, order, left over."""
    layout: AxisLayout | None = None
    """How the candidate's axes become the reference's; only ever because a mapping asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How two runs were laid side by side."""

    pairs: Pairs
    """In the reference's order of execution; read from both runs as they are asked for."""
    reference_only: tuple[Record, ...] = ()
    candidate_only: tuple[Record, ...] = ()
    """What was recorded on one side alone: the first record of each such site."""
    unpaired: tuple[str, ...] = ()
    """Whole steps and ranks that only one side has; their records are in neither list."""
    plan: tuple[str, ...] = ()
    """What each step of the alignment did."""
    shifted: tuple[str, ...] = ()
    """Where the numbers in names are wrong, and what shows it."""
    trims: tuple[Trim, ...] = ()
    """What is left out of tensors whose lengths differ, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair, measured and judged."""

    site: Site
    """The reference's name of it."""
    candidate_site: Site
    kind: str
    order: int
    step: int
    verdict: Verdict
    why: str
    """The judgement in a few words."""
    difference: Difference | None
    """None when the two could not be measured against each other (shapes, statistics without sketches)."""
    error: float
    """The relative L2 error."""
    estimated: bool
    """Whether the error was estimated from sketches; a few percent off, never an order of magnitude."""
    floor: float
    """The error that rounding explains here."""
    floor_kind: str
    """`measured`, `modelled` or `tolerance`."""
    ratio: float
    """The worst of error ÷ floor over the whole tensor, its worst row and its worst column."""
    jump: float
    """The error against the row before it; far above 1 where something new went wrong."""
    rung: str
    """How the pair was found."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Result):
    """Two runs, one verdict."""

    reference: str
    candidate: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is what it is, most important first."""
    rows: Sequence[Row]
    """In order of execution; reads like a tuple."""
    unmatched: tuple[tuple[str, str], ...]
    """("reference" or "candidate", site): recorded on one side alone."""
    cause: str = ""
    """`precision`: the candidate provably computes more coarsely than its tensors say. Runs alone show no other."""
    notes: tuple[str, ...] = ()
    """What a reader must know besides: trimmed padding, shifted names, a reference that is not what it is called."""
    plan: tuple[str, ...] = ()
    floor_kind: str = "modelled"
    """`measured` or `modelled`; `tolerance` where the user's own tolerances were the measure."""
    tolerance: str = ""
    """Those tolerances, in words."""
    placebo: bool = False
    """Whether everything is bit-identical although the two should differ."""

    @property
    def first(self) -> Row | None:
        """The first row, in order of execution, whose error is above its floor."""
        from layertap.compare.columns import column

        verdicts = enumerate(column(self.rows, "verdict"))
        place = next((place for place, verdict in verdicts if verdict == "fault"), None)
        return None if place is None else self.rows[place]

    @property
    def worst(self) -> Row | None:
        """The row that is furthest above its floor."""
        from layertap.compare.columns import column

        place, _ = max(enumerate(column(self.rows, "ratio")), key=lambda item: item[1], default=(None, 0.0))
        return None if place is None else self.rows[place]

    @property
    def growth(self) -> float | None:
        """How much the error grows from the first departure to the last site; None without one."""
        first = self.first
        if first is None or not 0 < first.error < math.inf or not self.rows[-1].error < math.inf:
            return None
        return self.rows[-1].error / first.error

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """What `to_dict` gave, or what `json.loads` made of it."""
        rows = [{**row, "difference": row["metrics"] or None} for row in data["rows"]]
        unmatched = [(one["side"], one["site"]) for one in data["unmatched"]]
        return rebuild(cls, {**data, "rows": rows, "unmatched": unmatched, "floor_kind": data["floor"]})
