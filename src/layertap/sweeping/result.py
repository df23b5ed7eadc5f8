"""What a sweep returns: plain data, which can be pickled, written and read again. No torch in this file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layertap.result import EXIT_CODES, Note, Result, Verdict, rebuild

if TYPE_CHECKING:
    import os

    from layertap.store import Run

WRONG_NAME = ("sweep.not_its_name", "sweep.other_float")
NO_EFFECT = "sweep.no_effect"
"""Codes of the notes about modes that do not compute in what their names say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """One site of a mode against the reference."""

    site: str
    kind: str
    """The module's class."""
    order: int
    verdict: Verdict
    error: float
    """The relative L2 error."""
    floor: float
    """The error that rounding, or an ideal quantiser of the mode's bits, makes here."""
    floor_kind: str
    """`measured` (by another batch or other threads), `modelled`, `ideal`."""
    ratio: float
    sqnr: float
    """Signal to noise, in decibels; inf where nothing differs."""
    ideal_sqnr: float
    """What an ideal quantiser of the mode's bits leaves of the reference's tensor; NaN where no bits are known."""
    stands_out: float
    """The error against that of the mode's other sites of the same kind of place; above 3 it is shown."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """mse, mae, rmse, relative_mse, relative_mae, pearson, cosine, p50, p90, p95, p99, max: all of the difference."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a language model says, against what the reference says; over all positions."""

    positions: int
    kl: float
    """Mean divergence in nats, and its standard error."""
    kl_error: float
    kl_percentiles: Mapping[str, float]
    """`max`, `99.9`, `99`, `95`, `90`, `median`."""
    rms_delta_p: float
    """Of the probability of the token that follows; NaN where the input has no following tokens."""
    mean_delta_p: float
    same_top: float
    """The share of positions with the same likeliest token, and its standard error."""
    same_top_error: float
    perplexity: float
    reference_perplexity: float
    perplexity_ratio: float
    perplexity_ratio_error: float
    top: int
    """So many of the likeliest tokens were kept of each position."""
    covered: float
    """The mean mass of the tokens that both have kept; below 1 the divergence is a lower bound."""
    not_finite: int = 0
    """Positions whose logits contain NaN on either side; every mean is NaN then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScore:
    """How much one layer's own error does to the output."""

    path: str
    kind: str
    score: float
    """Own error × gradient of the output: the divergence (of other outputs: the squared relative error) it predicts."""
    share: float
    """Of the sum over all layers."""
    weights: float
    activations: float
    cache: float
    """The score by where the error is made; they need not add up, since errors may cancel."""
    own_error: float
    """Relative L2, with the reference's inputs."""
    confirmed: float = math.nan
    """The share of the output's divergence that goes away with the reference put back at this layer, or that its error
    makes alone in the reference (see `Sensitivity.graft`); NaN where not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Every layer of a mode, worst first."""

    rows: tuple[LayerScore, ...]
    output: str
    """What the scores predict: `kl` or `relative`."""
    total: float
    """The output's divergence as it was measured."""
    graft: str = ""
    """How the worst were confirmed: `module` (the float module put back into the mode) or `injected` (the layer's error
    put into the reference)."""
    quantised: tuple[str, ...] = ()

    def ignore(self, share: float = 0.5, most: float = 0.25) -> tuple[str, ...]:
        """The layers that make `share` of the output's divergence, but no more than a part `most` of all layers.

        What was confirmed counts as it was measured, since a gradient does not see a choice that tips (a router's); the
        rest as predicted. For a quantised mode only layers that were quantised are named.
        """
        known = set(self.quantised)
        total = self.total or sum(row.score for row in self.rows)
        rows = [
            (row.score / total if math.isnan(row.confirmed) else row.confirmed, row.path) for row in self.rows if total
        ]
        rows = sorted((row for row in rows if row[0] > 0 and (not known or row[1] in known)), key=lambda row: -row[0])
        taken, found = 0.0, list[str]()
        for part, path in rows:
            if taken >= share or len(found) >= max(1, math.floor(most * len(rows))):
                break
            found.append(path)
            taken += part
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """One mode: its run, or why there is none, and how it differs from the reference."""

    name: str
    about: str = ""
    path: str = ""
    """The folder of its run; empty where there is none."""
    error: str = ""
    """Why there is no run; empty where there is one."""
    log: str = ""
    """The file with what its process printed."""
    seconds: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part: load, record, look."""
    peak: int = 0
    """The most memory that its process held, in bytes."""
    resumed: bool = False
    """Whether the run was there already."""
    verdict: Verdict = "inconclusive"
    """Against the reference."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Each dtype really used → what shows it: parameters, kernels, grids of values."""
    bits: int = 0
    """Of its coarsest whole-number or 8-bit arithmetic; 0 where none was seen."""
    declared: str = ""
    """What the definition says of its precision: a dtype, or a torchao configuration."""
    rows: tuple[SiteRow, ...] = ()
    """Against the reference, in order of execution."""
    output_error: float = math.nan
    """Of the model's output: the relative error where it was recorded, else NaN."""
    tokens: Tokens | None = None
    sensitivity: Sensitivity | None = None
    quantised: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """The evidence as it was collected: parameters, weights, kernels, casts, rounding, outputs."""

    @property
    def run(self) -> Run | None:
        """Its run, opened now; None where there is none."""
        if not self.path:
            return None
        from layertap.store import Run

        return Run(self.path)

    @property
    def first(self) -> SiteRow | None:
        """The first site that differs from the reference's."""
        return next((row for row in self.rows if row.verdict != "identical"), None)


class Matrix(Mapping[str, Mapping[str, Mapping[str, float]]]):
    """Relative L2 errors: `matrix["fp32"]["2-1"]["layers.0"]`, the reference first; also `matrix["fp32", "2-1"]`.

    >>> Matrix({"a": {"b": {"fc": 0.5}}})["a", "b"]
    {'fc': 0.5}
    """

    __slots__ = ("errors",)

    def __init__(self, errors: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        self.errors = errors

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return self.errors[key]
        found: Any = self.errors
        for one in key:
            found = found[one]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.errors)

    def __len__(self) -> int:
        return len(self.errors)

    def __repr__(self) -> str:
        return f"Matrix({self.errors!r})"

    def __reduce__(self) -> Any:
        return Matrix, (self.errors,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question of the definition, answered by the difference of two modes."""

    question: str
    reference: str
    candidate: str
    site: str
    """Where the two differ most."""
    error: float
    """There, relative L2; 0 where they are bit-identical, NaN where one of them has no run."""
    first_site: str
    first_error: float
    before: float
    after: float
    """The worst error of each of the two against the sweep's reference: what the change gains or costs."""
    kl: float = math.nan
    note: Note | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep(Result):
    """One input through many modes."""

    name: str
    """The definition's file."""
    target: str
    folder: str
    reference: str
    verdict: Verdict
    modes: Mapping[str, ModeResult]
    groups: tuple[tuple[str, ...], ...]
    """Modes that are bit-identical, the reference's group first; modes without a run are in none."""
    matrix: Matrix
    answers: tuple[Answer, ...] = ()
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0
    jobs: int = 1
    disk: int = 0
    """Bytes of all runs together, and of the largest alone."""
    disk_of_one: int = 0

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def failed(self) -> tuple[ModeResult, ...]:
        """The modes without a run."""
        return tuple(mode for mode in self.modes.values() if mode.error)

    @property
    def misnamed(self) -> tuple[str, ...]:
        """The modes that do not compute in what their names say."""
        return tuple(str(note.values["mode"]) for note in self.notes if note.code in WRONG_NAME)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The modes whose settings changed not one bit."""
        return tuple(dict.fromkeys(str(note.values["mode"]) for note in self.notes if note.code == NO_EFFECT))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sweep:
        """What `to_dict` gave."""
        return rebuild(cls, data)

    def to_npz(self, path: str | os.PathLike[str], *, names: Mapping[str, str] | None = None) -> str:
        """Writes one layer's input and output in every mode, with statistics beside it as JSON; returns what was left
        out, in words."""
        from layertap.sweeping.exports import write_npz

        return write_npz(self, path, names)

    def to_png(self, path: str | os.PathLike[str], *, site: str | None = None) -> None:
        """Draws, for each mode, the histogram of its differences from the reference at one site (needs Pillow)."""
        from layertap.sweeping.exports import write_png

        write_png(self, path, site)

    def explain(self, reference: str, candidate: str) -> Explanation:
        """Runs `find_fault` between two of the modes; what they differ by is named by module and cause."""
        from layertap.sweeping.explaining import explain

        return explain(self, reference, candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Two modes in one process, searched for the module in which they part."""

    reference: str
    candidate: str
    verdict: Verdict
    how: str
    """`modules`: both models were searched; `runs`: only what was recorded could be compared."""
    finding: Mapping[str, Any]
    """The finding's, or the comparison's, dictionary."""
    text: str
    notes: tuple[Note, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        notes = [note.to_dict() for note in self.notes]
        own = {name: getattr(self, name) for name in ("reference", "candidate", "verdict", "how", "text")}
        return {**own, "exit_code": self.exit_code, "finding": dict(self.finding), "notes": notes}

    def __str__(self) -> str:
        return "\n".join([*self.notes, self.text])
