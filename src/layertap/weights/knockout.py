"""Which branches may go: the effect on the output of leaving out each attention, feed-forward part, block or head.

One run of the whole model gives the cheap answers, how much each branch adds and which way. Then each is left out for
real: the divergence of the output from the whole model's, with an interval over the data. What comes before the branch
is not computed again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from layertap.engine import EngineChoice, open_engine
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Result
from layertap.weights.branches import ATTENTION, Branch
from layertap.weights.knockout_measure import Joint, Measure, Progress
from layertap.weights.knockout_workers import Build, Part, effects

SHOWN = 60
"""Lines in the table; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnockoutRow:
    """What happens without one part of the model."""

    site: str
    """The branch's or block's path; of a head, `path[number]`."""
    kind: str
    """`attention`, `mlp`, `block` or `head`."""
    layer: int
    kl: float
    """Mean divergence of the output from the whole model's, in nats a token."""
    kl_low: float
    kl_high: float
    """The 95 % interval of that mean, over the data."""
    top1: float
    """Share of the tokens whose likeliest successor is the same."""
    perplexity: float
    """NaN where the inputs contain no token ids to predict."""
    cosine: float
    """Between the residual stream before and after the branch: from one run of the whole model."""
    change: float
    """Length of what the branch adds, relative to the stream."""
    share: float
    """Of all parameters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Knockout(Result):
    """Every part, the one that does least harm first."""

    rows: tuple[KnockoutRow, ...]
    tokens: int
    perplexity: float
    """The whole model's."""

    def plan(self, size: float = 0.8, *, progress: Progress | None = None) -> Joint:
        """Branches to leave out until `size` of the parameters is left: chosen one by one, each set measured anew.

        In the process that made this result, while its model exists: the result is data and does not keep the model.
        """
        known, batches = _SOURCES.get(id(self), (None, ()))
        model = known() if known is not None else None
        if model is None:
            raise BadArgument(tr("knockout.no_model"))
        if not 0 < size < 1:
            raise BadArgument(tr("knockout.size", size=size))
        return Measure(model, batches).greedy([row.site for row in self.rows], size, progress)

    def __str__(self) -> str:
        known = {"tokens": self.tokens, "perplexity": self.perplexity}
        names = ("kl", "interval", "top1", "perplexity", "cosine", "change", "share")
        titles = dict(zip(names, (tr(f"knockout.{name}") for name in names), strict=True))
        width = max([24, *(len(row.site) for row in self.rows[:SHOWN])])
        layout = (
            "{site:{width}}  {kl:>9}  {interval:>19}  {top1:>6}  {perplexity:>8}  {cosine:>7}  {change:>6}  {share:>5}"
        )
        lines = [tr("knockout.head", count=len(self.rows), **known), layout.format(site="", width=width, **titles)]
        for row in self.rows[:SHOWN]:
            numbers = {"kl": f"{row.kl:.4g}", "top1": f"{row.top1:.1%}", "perplexity": f"{row.perplexity:.4g}"}
            numbers |= {"cosine": f"{row.cosine:.4f}", "change": f"{row.change:.3f}", "share": f"{row.share:.1%}"}
            numbers["interval"] = tr("knockout.span", low=row.kl_low, high=row.kl_high)
            lines.append(layout.format(site=row.site, width=width, **numbers))
        if len(self.rows) > SHOWN:
            lines.append(tr("knockout.more", count=len(self.rows) - SHOWN))
        return "\n".join(lines)


def knockout(
    model: nn.Module,
    inputs: Any,
    *,
    heads: bool = False,
    blocks: bool = True,
    engine: EngineChoice = None,
    address: str | None = None,
    build: Build | None = None,
    progress: Progress | None = None,
) -> Knockout:
    """Leaves out each attention, feed-forward part and block in turn, and ranks them by the harm that this does.

    `inputs` is one batch or a list of them: keywords, with `input_ids` for the perplexity, or positional arguments.
    `engine="ray"` does the runs by the workers of the Ray cluster at `address`, or of this machine: the same, bit for
    bit. They are sent the model, or make it by calling `build`, as is better for a large one.
    """
    batches = list(inputs) if isinstance(inputs, list) else [inputs]
    if not batches:
        raise BadArgument(tr("knockout.no_inputs"))
    measure = Measure(model, batches)
    parts: list[tuple[str, str, list[Branch]]] = [(b.path, b.kind, [b]) for b in measure.branches]
    if blocks:
        grouped: dict[str, list[Branch]] = {}
        for branch in measure.branches:
            grouped.setdefault(branch.block, []).append(branch)
        parts += [(path, "block", list(held)) for path, held in grouped.items() if len(held) > 1]
    jobs: list[tuple[str, str, list[Branch], int | None]] = [(*part, None) for part in parts]
    if heads:
        jobs += [
            (f"{branch.path}[{head}]", "head", [branch], head)
            for branch in measure.branches
            if branch.kind == ATTENTION
            for head in range(measure.heads(branch))
        ]
    rows = []
    runs = [Part(site, tuple(branch.path for branch in branches), head) for site, _, branches, head in jobs]
    with open_engine(engine, address) as workers:
        found = effects(workers, measure, runs, build)
        for done, ((site, kind, branches, head), effect) in enumerate(zip(jobs, found, strict=True), start=1):
            cosine, change = measure.added(site if kind != "head" else branches[0].path)
            share = measure.share(branches) if head is None else measure.share(branches) / measure.heads(branches[0])
            rows.append(
                KnockoutRow(
                    site=site, kind=kind, layer=branches[0].layer, cosine=cosine, change=change, share=share, **effect
                )
            )
            if progress is not None:
                progress(done, len(jobs))
    rows.sort(key=lambda row: row.kl if not math.isnan(row.kl) else math.inf)
    result = Knockout(rows=tuple(rows), tokens=measure.tokens, perplexity=measure.perplexity)
    _SOURCES[id(result)] = (weakref.ref(model), batches)
    weakref.finalize(result, _SOURCES.pop, id(result), None)
    return result


_SOURCES: dict[int, tuple[weakref.ref[nn.Module], Sequence[Any]]] = {}
"""By a result's id, the model that it is of and the inputs, as long as the result exists."""
