"""Which branches may go: the effect on the output of leaving out each attention, feed-forward part, block or head.

One run of the whole model gives the cheap answers, how much each branch adds and which way. Then each is left out for
real: the divergence of the output from the whole model's, with an interval over the data. What comes before the branch
is not computed again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layertap.engine import EngineChoice, open_engine
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Result
from layertap.weights.branches import ATTENTION, Branch, call, confirm, find_branches
from layertap.weights.knockout_workers import Build, Part, effects
from layertap.weights.plan import Plan
from layertap.weights.pruning import Pruning, outputs, skips_of

Progress = Callable[[int, int], None]

NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""
SHOWN = 60
"""Lines in the table; the rest is counted."""
TRIED = 4
"""So many branches are measured at each step of a greedy plan: those that do least harm alone."""
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Several branches left out together."""

    plan: Plan
    kl: float
    kl_low: float
    kl_high: float
    top1: float
    perplexity: float
    size: float
    """Share of the parameters that is left."""

    def __str__(self) -> str:
        known = {"size": self.size, "kl": self.kl, "top1": self.top1, "perplexity": self.perplexity}
        return tr("knockout.joint", plan=str(self.plan), **known)


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


class Measure:
    """The whole model's output, kept, and what becomes of it without some branches."""

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self.model, self.batches = model, batches
        self.branches = find_branches(model)
        confirmed = confirm(model, self.branches, batches[0])
        self._skips = skips_of(model, Plan(branches=tuple(self.branches)), confirmed)
        self._adds = {branch.path: confirmed[branch.path].adds or branch.path for branch in self.branches}
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._stream: dict[str, list[float]] = {}
        self._whole: list[torch.Tensor] = []
        self._after: list[dict[str, Any]] = []
        with _evaluating(model):
            for batch in batches:
                self._whole.append(self._reference(batch))
        self.tokens = sum(
            int(_counted(batch, logits).sum()) for batch, logits in zip(batches, self._whole, strict=True)
        )
        losses = [_losses(batch, logits) for batch, logits in zip(batches, self._whole, strict=True)]
        self.perplexity = _perplexity(losses)

    def _reference(self, batch: Any) -> torch.Tensor:
        """The log-probabilities of the whole model; what each block returns and each branch adds is kept on the way."""
        after: dict[str, Any] = {}
        given: dict[str, torch.Tensor] = {}
        added: dict[str, torch.Tensor] = {}
        handles = []
        for block in dict.fromkeys(branch.block for branch in self.branches):

            def block_done(_: Any, args: Any, kwargs: Any, output: Any, path: str = block) -> None:
                after[path] = output
                given[path] = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))

            handles.append(self.model.get_submodule(block).register_forward_hook(block_done, with_kwargs=True))
        for branch in self.branches:

            def branch_done(_: Any, args: Any, output: Any, path: str = branch.path) -> None:
                added[path] = output if isinstance(output, torch.Tensor) else output[0]

            handles.append(self.model.get_submodule(self._adds[branch.path]).register_forward_hook(branch_done))
        try:
            logits = _logits(call(self.model, batch))
        finally:
            for handle in handles:
                handle.remove()
        for branch in self.branches:
            stream, plus = given[branch.block].double(), added[branch.path].double()
            self._sum(branch.path, stream.reshape(plus.shape), plus)
        for block, output in after.items():
            stream = given[block].double()
            self._sum(block, stream, (output if isinstance(output, torch.Tensor) else output[0]).double() - stream)
        self._after.append(after)
        return logits.float().log_softmax(-1)

    def _sum(self, path: str, stream: torch.Tensor, plus: torch.Tensor) -> None:
        then = stream + plus
        found = [float((stream * then).sum()), float(stream.square().sum()), float(then.square().sum())]
        found.append(float(plus.square().sum()))
        held = self._stream.setdefault(path, [0.0] * 4)
        self._stream[path] = [a + b for a, b in zip(held, found, strict=True)]

    def added(self, path: str) -> tuple[float, float]:
        """Cosine of the stream before and after, and the relative length of what is added."""
        dot, before, after, plus = self._stream[path]
        size = math.sqrt(before * after)
        return (dot / size if size else math.nan), (math.sqrt(plus / before) if before else math.inf)

    def share(self, branches: Sequence[Branch]) -> float:
        names = [path for branch in branches for path in branch.members]
        gone = sum(p.numel() for name in names for p in self.model.get_submodule(name).parameters())
        return gone / max(self._parameters, 1)

    def heads(self, branch: Branch) -> int:
        module = self.model.get_submodule(branch.path)
        config = getattr(module, "config", None) or getattr(self.model, "config", None)
        count = getattr(module, "num_heads", None) or getattr(config, "num_attention_heads", None)
        if not isinstance(count, int):
            raise BadArgument(tr("knockout.no_heads", path=branch.path))
        return count

    def without(self, branches: Sequence[Branch], head: int | None = None) -> dict[str, float]:
        """KL with its interval, top-1 agreement and perplexity without these branches, or without one head."""
        divergences: list[torch.Tensor] = []
        agreed = counted = 0
        losses = []
        first = min(branches, key=lambda branch: branch.layer).block
        with _evaluating(self.model):
            for batch, whole, after in zip(self.batches, self._whole, self._after, strict=True):
                with ExitStack() as stack:
                    stack.enter_context(_replayed(self.model, self._before(first), after))
                    if head is None:
                        stack.enter_context(Pruning(self.model, Plan(branches=tuple(branches)), self._chosen(branches)))
                    else:
                        stack.enter_context(self._silenced(branches[0], head))
                    logits = _logits(call(self.model, batch)).float().log_softmax(-1)
                keep = _counted(batch, whole)
                divergence = (whole.exp() * (whole - logits)).sum(-1).double()
                divergences += [row[mask] for row, mask in zip(_rows(divergence), _rows(keep), strict=True)]
                agreed += int(((whole.argmax(-1) == logits.argmax(-1)) & keep).sum())
                counted += int(keep.sum())
                losses.append(_losses(batch, logits))
        low, mean, high = _interval(divergences)
        known = {"kl": mean, "kl_low": low, "kl_high": high}
        return {**known, "top1": agreed / max(counted, 1), "perplexity": _perplexity(losses)}

    def _chosen(self, branches: Sequence[Branch]) -> dict[str, Any]:
        return {path: self._skips[path] for branch in branches for path in branch.members}

    def _before(self, first: str) -> list[str]:
        blocks = list(dict.fromkeys(branch.block for branch in self.branches))
        return blocks[: blocks.index(first)]

    @contextmanager
    def _silenced(self, branch: Branch, head: int) -> Iterator[None]:
        """One head adds nothing: its part of what the output projection reads is zero."""
        module = self.model.get_submodule(branch.path)
        projection = next((child for name, child in module.named_children() if name in _PROJECTIONS), None)
        if projection is None:
            raise BadArgument(tr("knockout.no_projection", path=branch.path, names=", ".join(_PROJECTIONS)))
        count = self.heads(branch)

        def silence(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            values = args[0].clone()
            values.unflatten(-1, (count, -1))[..., head, :] = 0
            return (values, *args[1:])

        handle = projection.register_forward_pre_hook(silence)
        try:
            yield
        finally:
            handle.remove()

    def greedy(self, order: Sequence[str], size: float, progress: Progress | None) -> Joint:
        by_path = {branch.path: branch for branch in self.branches}
        left = [by_path[path] for path in order if path in by_path]
        taken: list[Branch] = []
        effect: dict[str, float] = {}
        while left and 1 - self.share(taken) > size:
            tried = [(self.without([*taken, branch]), branch) for branch in left[:TRIED]]
            effect, best = min(tried, key=lambda pair: pair[0]["kl"])
            taken.append(best)
            left.remove(best)
            if progress is not None:
                progress(min(int(100 * self.share(taken)), int(100 * (1 - size))), int(100 * (1 - size)))
        if 1 - self.share(taken) > size:
            raise BadArgument(tr("knockout.left", count=len(taken), share=1 - self.share(taken)))
        ordered = tuple(branch for branch in self.branches if branch in taken)
        return Joint(plan=Plan(branches=ordered), size=1 - self.share(taken), **effect)


@contextmanager
def _replayed(model: nn.Module, blocks: Sequence[str], after: Mapping[str, Any]) -> Iterator[None]:
    """The blocks return what they returned in the whole model, and compute nothing."""
    modules = [(model.get_submodule(path), after[path]) for path in blocks]
    own = [module.__dict__.get("forward") for module, _ in modules]
    for module, output in modules:
        module.__dict__["forward"] = lambda *args, _output=output, **kwargs: _output
    try:
        yield
    finally:
        for (module, _), forward in zip(modules, own, strict=True):
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    mode = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(mode)


def _logits(output: Any) -> torch.Tensor:
    found = output.logits if hasattr(output, "logits") else next(iter(outputs(output)), None)
    if not isinstance(found, torch.Tensor) or found.ndim < 2:
        raise BadArgument(tr("knockout.no_logits"))
    return found


def _ids(batch: Any) -> torch.Tensor | None:
    found = batch.get("input_ids") if isinstance(batch, Mapping) else batch[0] if isinstance(batch, tuple) else batch
    return found if isinstance(found, torch.Tensor) and not found.is_floating_point() and found.ndim == 2 else None


def _counted(batch: Any, logits: torch.Tensor) -> torch.Tensor:
    """Which places count: padding does not."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, torch.Tensor) and mask.shape == logits.shape[:-1]:
        return mask.bool()
    return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)


def _losses(batch: Any, log_probabilities: torch.Tensor) -> torch.Tensor:
    """Of each next token that counts."""
    ids = _ids(batch)
    if ids is None or log_probabilities.ndim != 3 or ids.shape != log_probabilities.shape[:2]:
        return torch.empty(0)
    found = -log_probabilities[:, :-1].gather(-1, ids[:, 1:, None].long())[..., 0]
    return found[_counted(batch, log_probabilities)[:, 1:]].double()


def _perplexity(losses: Sequence[torch.Tensor]) -> float:
    joined = torch.cat(list(losses))
    return math.exp(min(float(joined.mean()), 700.0)) if len(joined) else math.nan


def _rows(values: torch.Tensor) -> list[torch.Tensor]:
    return list(values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[None])


def _interval(divergences: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """Mean and its 95 % interval: over sequences where there are enough, since tokens of one are not independent."""
    tokens = torch.cat(list(divergences))
    mean = float(tokens.mean())
    means = torch.stack([row.mean() for row in divergences if len(row)])
    samples = means if len(means) >= 8 else tokens
    margin = NORMAL * float(samples.std()) / math.sqrt(len(samples)) if len(samples) > 1 else math.nan
    return max(mean - margin, 0.0), mean, mean + margin
