"""The ranks of one training beside each other: weights that part, one batch given to all, a rank that stands out."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layertap.messages import tr
from layertap.result import Note, Result
from layertap.store import Run

MOST = 500
"""Steps that are looked at, evenly over the training, so that memory is bounded."""
FAR = 5.0
"""A gradient or loss of one rank that is this many times the median of all ranks stands out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RanksReport(Result):
    """What the ranks of a run say about each other."""

    run: str
    ranks: tuple[int, ...]
    steps: int
    """Steps that all of them recorded."""
    compared: int
    """Weights and used gradients that were compared with each other."""
    findings: tuple[str, ...]
    losses: tuple[tuple[int, float, float], ...]
    """Rank, mean and largest loss."""
    notes: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        head = Note("ranks.head", count=len(self.ranks), steps=self.steps)
        lines = [tr("compare.of_run", name=self.run, text=head), *self.findings]
        if not self.findings:
            lines.append(Note("ranks.agree"))
        lines += [Note("ranks.losses", rank=rank, mean=mean, most=most) for rank, mean, most in self.losses]
        return "\n".join([*lines, *(tr("report.note", text=note) for note in self.notes)])


_COLUMNS = [
    "step",
    "rank",
    "phase",
    "path",
    "role",
    "leaf",
    "call",
    "kind",
    "site",
    "fingerprint",
    "l2",
    "mean",
    "nan",
    "placements",
]


def compare_ranks(source: Run | str | os.PathLike[str]) -> RanksReport:
    """Compares the ranks of a data-parallel training with each other, from statistics and fingerprints alone.

    Replicated weights and the gradients that the optimizer uses (`what="param,step_grad"`) must be bit-identical on all
    ranks; the batches must not be. Sharded tensors are left out: each rank has its own part.
    """
    run = source if isinstance(source, Run) else Run(source)
    table = run.table(_COLUMNS)
    table = table.filter(pc.equal(table.column("phase"), "train"))
    ranks = tuple(sorted(pc.unique(table.column("rank")).to_pylist()))
    by_rank = [table.filter(pc.equal(table.column("rank"), rank)) for rank in ranks]
    common = sorted(set[int].intersection(*(set(part.column("step").to_pylist()) for part in by_rank))) if ranks else []
    steps = set(common if len(common) <= MOST else common[:: -(-len(common) // MOST)])
    rows = table.filter(pc.is_in(table.column("step"), pa.array(sorted(steps), table.column("step").type))).to_pylist()
    shared: dict[tuple[int, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        shared[row["step"], row["site"]][row["rank"]] = row
    whole = {key: found for key, found in sorted(shared.items()) if len(found) == len(ranks) > 1}
    replicated = {key: found for key, found in whole.items() if _replicated(found.values())}
    findings = [*_parted(replicated), *_same_batch(whole, len(steps)), *_first_nan(rows), *_standing_out(whole)]
    notes = []
    if len(steps) < len(common):
        notes.append(Note("ranks.sampled", count=len(steps), total=len(common)))
    if not replicated:
        notes.append(Note("ranks.no_weights"))
    return RanksReport(
        run=run.name,
        ranks=ranks,
        steps=len(common),
        compared=len(replicated),
        findings=tuple(findings) if len(ranks) > 1 else (),
        losses=tuple(_losses(rows, ranks)),
        notes=tuple(notes),
    )


def _replicated(found: Iterable[dict[str, Any]]) -> bool:
    return all((row["role"] == "param" or row["kind"].endswith(" gradient")) and not row["placements"] for row in found)


def _parted(replicated: dict[tuple[int, str], dict[int, dict[str, Any]]]) -> list[str]:
    """The first weight, or used gradient, that is not the same on all ranks."""
    for (step, site), found in replicated.items():
        marks: dict[int, list[int]] = defaultdict(list)
        for rank, row in found.items():
            marks[row["fingerprint"]].append(rank)
        if len(marks) > 1:
            groups = " | ".join(", ".join(map(str, group)) for group in sorted(marks.values()))
            return [Note("ranks.parted", step=step, site=site, groups=groups)]
    return []


def _same_batch(whole: dict[tuple[int, str], dict[int, dict[str, Any]]], steps: int) -> list[str]:
    """Whether all ranks were given the same data: a sampler that does not know of the ranks."""
    inputs = [found for found in whole.values() if all(r["role"] == "input" and not r["path"] for r in found.values())]
    same = {
        row["step"]
        for found in inputs
        if len({r["fingerprint"] for r in found.values()}) == 1
        for row in found.values()
    }
    other = {
        row["step"] for found in inputs if len({r["fingerprint"] for r in found.values()}) > 1 for row in found.values()
    }
    if not same - other or len(same - other) < max(1, steps // 2):
        return []
    return [Note("ranks.same_batch", count=len(same - other), steps=steps)]


def _first_nan(rows: list[dict[str, Any]]) -> list[str]:
    bad = [row for row in rows if row["nan"]]
    if not bad:
        return []
    step = min(row["step"] for row in bad)
    first: dict[int, str] = {}
    for row in bad:
        if row["step"] == step:
            first.setdefault(row["rank"], row["site"])
    sites = ", ".join(tr("ranks.rank_site", rank=rank, site=site) for rank, site in sorted(first.items()))
    return [Note("ranks.first_nan", step=step, ranks=sites)]


def _standing_out(whole: dict[tuple[int, str], dict[int, dict[str, Any]]]) -> list[str]:
    """A rank whose losses or gradients are far above the other ranks' in most steps."""
    times: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for (_, site), found in whole.items():
        if "grad" not in next(iter(found.values()))["role"] and not site.startswith("loss"):
            continue
        for rank, row in found.items():
            others = statistics.median(abs(r["l2"]) for other, r in found.items() if other != rank)
            times[rank, site].append(others > 0 and row["l2"] > FAR * others)
    standing: list[str] = [
        Note("ranks.stands_out", rank=rank, site=site, far=f"{FAR:g}", count=sum(found), steps=len(found))
        for (rank, site), found in sorted(times.items())
        if sum(found) > len(found) / 2
    ]
    return standing[:3]


def _losses(rows: list[dict[str, Any]], ranks: Iterable[int]) -> Iterable[tuple[int, float, float]]:
    for rank in ranks:
        found = [row["mean"] for row in rows if row["rank"] == rank and row["path"] == "loss"]
        if found:
            yield rank, statistics.fmean(found), max(found)
