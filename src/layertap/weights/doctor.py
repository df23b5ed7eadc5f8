"""Why a changed model talks garbage: its code, the loading, the cache, or the idea itself.

The questions are asked in an order in which each answer rules out the ones before it: are the weights those of the
reference; did the change run at all; is decoding with a cache what it is without one; does the rest compute what the
reference computes, once the known cuts are made there too; and only then, what the cuts themselves cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from layertap.errors import BadArgument
from layertap.fault import find_fault
from layertap.messages import tr
from layertap.result import Note, Result
from layertap.select.collapse import collapse
from layertap.weights.audit import audit
from layertap.weights.branches import Branch, call, confirm, find_branches
from layertap.weights.knockout import KnockoutRow, knockout
from layertap.weights.plan import Plan, read_plan
from layertap.weights.pruning import PLAN_KEY, outputs, skips_of, without
from layertap.weights.result import Audit
from layertap.weights.skip import SkippedBranch, is_bypassed
from layertap.weights.sources import open_weights

Answer = Literal["healthy", "code", "loading", "cache", "idea", "inconclusive"]
EXIT_CODES: Mapping[str, int] = {"healthy": 0, "code": 1, "loading": 1, "cache": 1, "idea": 1, "inconclusive": 3}

STEPS = 6
"""Tokens that are decoded one by one to compare a cache with none."""
GAP = 10.0
"""How many times the reference's own difference between the two a candidate's may be."""
ROUNDING = 1e-2
"""A relative difference of logits that rounding may make in low precision."""
SAME_TOP1, SAME_PERPLEXITY = 0.9, 1.1
"""A cut model with at least this share of the reference's next tokens, and at most this many times its perplexity, is
as good as the reference."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosis(Result):
    """One answer, and what it rests on."""

    answer: Answer
    sentence: str
    evidence: tuple[str, ...]
    """One line for each question that was asked, in order."""
    audit: Audit
    cuts: tuple[str, ...] = ()
    """The branches that the candidate really does without."""
    harm: tuple[KnockoutRow, ...] = ()
    """Of each cut by itself, the worst first; for `idea`."""
    site: str = ""
    """The module that goes wrong; for `code` and `loading`, where one was found."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.answer]

    def __str__(self) -> str:
        return "\n".join(
            [
                tr("doctor.sentence", answer=tr(f"doctor.answer_{self.answer}"), sentence=self.sentence),
                *(f"- {line}" for line in self.evidence),
            ]
        )


def doctor(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Any,
    *,
    plan: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Says whether it is the code, the loading, the cache or the idea; `plan` is what was meant to be cut, if anything.

    Without a plan it is what the candidate's configuration says, and what the candidate turns out to do without.
    """
    say = progress or (lambda _: None)
    with _evaluating(reference, candidate):
        return _Doctor(reference, candidate, inputs, plan, say).run()


@contextmanager
def _evaluating(*models: nn.Module) -> Iterator[None]:
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


class _Doctor:
    def __init__(
        self, reference: nn.Module, candidate: nn.Module, inputs: Any, plan: Any, say: Callable[[str], None]
    ) -> None:
        self.reference, self.candidate, self.inputs, self.say = reference, candidate, inputs, say
        self.lines: list[str] = []
        try:
            self.branches = find_branches(reference)
        except BadArgument:
            self.branches = []
        self.meant = self._meant(plan)

    def run(self) -> Diagnosis:
        """The questions in order."""
        self.say(tr("doctor.step_weights"))
        self.found = audit(self.candidate, self.reference)
        self.say(tr("doctor.step_run"))
        ours, calls = self._run(self.reference)
        theirs, their_calls = self._run(self.candidate)
        self.cut = [branch for branch in self.branches if self._is_cut(branch, calls, their_calls)]
        return self._weights() or self._ran(ours, theirs) or self._cache() or self._rest() or self._worth(ours, theirs)

    def _answer(self, answer: Answer, sentence: str, **known: Any) -> Diagnosis:
        cuts = tuple(branch.path for branch in self.cut)
        return Diagnosis(
            answer=answer, sentence=sentence, evidence=tuple(self.lines), audit=self.found, cuts=cuts, **known
        )

    # What is known of the change.

    def _meant(self, plan: Any) -> set[str]:
        """The branches that were meant to be cut."""
        if plan is not None:
            return set(read_plan(plan, self.branches).paths)
        config = open_weights(self.candidate).config
        saved = config.get(PLAN_KEY)
        if isinstance(saved, Mapping):
            return {branch.path for branch in self.branches if branch.path in saved}
        wishes = config.get("per_layer_config")
        if not isinstance(wishes, Mapping):
            return set()
        meant = set()
        for branch in self.branches:
            wish = wishes.get(str(branch.layer), wishes.get(branch.layer))
            skips = wish.get("skip", ()) if isinstance(wish, Mapping) else ()
            if branch.kind in skips or branch.path.rpartition(".")[2] in skips:
                meant.add(branch.path)
        return meant

    def _run(self, model: nn.Module) -> tuple[list[torch.Tensor], set[str]]:
        """The outputs, and which branches were called."""
        modules = dict(model.named_modules())
        called: set[str] = set()
        handles = [
            modules[b.path].register_forward_hook(lambda *_, path=b.path: called.add(path))
            for b in self.branches
            if b.path in modules
        ]
        try:
            return outputs(call(model, self.inputs)), called
        finally:
            for handle in handles:
                handle.remove()

    def _is_cut(self, branch: Branch, ours: set[str], theirs: set[str]) -> bool:
        try:
            module = self.candidate.get_submodule(branch.path)
        except AttributeError:
            return True
        if isinstance(module, SkippedBranch) or is_bypassed(module):
            return True
        if not any(True for _ in module.parameters()) and any(
            True for _ in self.reference.get_submodule(branch.path).parameters()
        ):
            return True  # whatever stands there now, it holds nothing
        return branch.path in ours and branch.path not in theirs

    # The questions.

    def _weights(self) -> Diagnosis | None:
        gone = [path for branch in self.cut for path in branch.members]
        loud = [
            row
            for row in self.found.rows
            if row.weighs == "fault" and not (row.status == "unexpected" and _below(row.other, gone))
        ]
        built = [row for row in loud if _below(row.name, self.meant - {branch.path for branch in self.cut})]
        counts = ", ".join(f"{count} {tr(f'audit.status_{status}')}" for status, count in self.found.by_status.items())
        if not loud:
            cut = tr("doctor.and_cut", count=len(self.cut)) if self.cut else ""
            self.lines.append(Note("doctor.weights", counts=counts, cut=cut))
            return None
        shown = "; ".join(
            f"{row.name or row.other}: {tr(f'audit.status_{row.status}')}, {row.detail}" for row in loud[:3]
        )
        more = tr("doctor.and_more", value=len(loud) - 3) if len(loud) > 3 else ""
        self.lines.append(Note("doctor.weights_shown", counts=counts, shown=shown, more=more))
        if len(built) == len(loud):
            paths = ", ".join(
                collapse(sorted({path for path in self.meant if any(_below(r.name, [path]) for r in built)}))
            )
            return self._answer(
                "code",
                Note("doctor.class_lost", name=type(self.candidate).__name__, paths=paths),
                site=built[0].name.rpartition(".")[0],
            )
        first = loud[0]
        name = first.name or first.other
        return self._answer(
            "loading",
            Note(
                "doctor.tensors_differ",
                count=len(loud),
                name=name,
                status=tr(f"audit.status_{first.status}"),
                detail=first.detail,
            ),
            site=name.rpartition(".")[0],
        )

    def _ran(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> Diagnosis | None:
        kept = self.meant - {branch.path for branch in self.cut}
        same = len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        if kept:
            self.lines.append(Note("doctor.plan_ran", count=len(kept), count2=len(self.meant)))
            paths = ", ".join(collapse(sorted(kept)))
            bits = tr("doctor.placebo") if same else tr("doctor.called")
            return self._answer(
                "code",
                Note("doctor.plan_skips", paths=paths, name=type(self.candidate).__name__, bits=bits),
                site=min(kept),
            )
        if same and self.cut:
            self.lines.append(Note("doctor.cut_same"))
            return self._answer("inconclusive", Note("doctor.cut_no_change"))
        told = tr("doctor.not_run", count=len(self.cut), value=", ".join(collapse(b.path for b in self.cut)))
        self.lines.append(Note("doctor.change", told=told) if self.cut else Note("doctor.all_run"))
        return None

    def _cache(self) -> Diagnosis | None:
        ids = self._ids()
        if ids is None:
            self.lines.append(Note("doctor.cache_no_ids"))
            return None
        self.say(tr("doctor.step_cache"))
        ours, theirs = _decoding_gap(self.reference, ids), _decoding_gap(self.candidate, ids)
        if ours is None or theirs is None:
            self.lines.append(Note("doctor.cache_no_decoding"))
            return None
        text = tr("doctor.cache_gap", error=theirs.error, error2=ours.error)
        counted = (
            ""
            if theirs.length == theirs.tokens
            else tr("doctor.cache_counts", length=theirs.length, tokens=theirs.tokens)
        )
        self.lines.append(Note("doctor.cache", text=text, counted=counted))
        if theirs.error > max(GAP * ours.error, ROUNDING) or counted:
            return self._answer(
                "cache",
                Note(
                    "doctor.cache_wrong", text=text, counted=counted, hint=tr("doctor.cache_update") if counted else ""
                ),
            )
        return None

    def _rest(self) -> Diagnosis | None:
        """The reference with the same cuts against the candidate."""
        self.say(tr("doctor.step_rest"))
        expected = self.reference
        if self.cut:
            plan = Plan(branches=tuple(self.cut))
            confirmed = confirm(self.reference, list(plan.branches), self.inputs)
            expected = without(self.reference, plan, skips_of(self.reference, plan, confirmed))
        finding = find_fault(expected, self.candidate, self.inputs)
        self.finding = finding
        cuts = tr("doctor.reference_cut") if self.cut else tr("doctor.reference")
        verdict = tr(f"result.{finding.verdict}")
        if finding.verdict == "fault":
            where = finding.site or tr("doctor.model_itself")
            self.lines.append(Note("doctor.rest_at", cuts=cuts, verdict=verdict, where=where))
        else:
            self.lines.append(Note("doctor.rest", cuts=cuts, verdict=verdict))
        if finding.verdict == "fault":
            told = finding.evidence[0] if finding.evidence else ""
            return self._answer(
                "loading" if finding.cause == "weights" else "code",
                Note(
                    "doctor.site_differs",
                    site=finding.site or tr("doctor.model_itself"),
                    cuts=cuts,
                    cause=finding.cause,
                    told=told,
                ),
                site=finding.site,
            )
        if finding.verdict == "inconclusive":
            return self._answer("inconclusive", Note("doctor.rest_unknown", value=next(iter(finding.notes), "")))
        return None

    def _worth(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> Diagnosis:
        """What the cuts themselves cost."""
        if not self.cut:
            return self._answer("healthy", Note("doctor.same"))
        self.say(tr("doctor.step_cost"))
        before, after = _quality(self.reference, self.inputs), _quality(self.candidate, self.inputs)
        top1 = float((ours[0].argmax(-1) == theirs[0].argmax(-1)).double().mean())
        ratio = after / before if before and not math.isnan(before) else math.nan
        cost = tr("doctor.top1", top1=top1) + ("" if math.isnan(ratio) else tr("doctor.perplexity", ratio=ratio))
        self.lines.append(Note("doctor.cost", cost=cost))
        if top1 >= SAME_TOP1 and not ratio > SAME_PERPLEXITY:
            return self._answer("healthy", Note("doctor.cheap", cost=cost))
        paths = {branch.path for branch in self.cut}
        rows = [row for row in knockout(self.reference, self.inputs, blocks=False).rows if row.site in paths]
        rows.sort(key=lambda row: -row.kl)
        worst = ", ".join(f"{row.site} (KL {row.kl:.3g})" for row in rows[:3])
        self.lines.append(Note("doctor.worst", worst=worst))
        return self._answer(
            "idea",
            Note("doctor.idea", cost=cost, site=rows[0].site),
            harm=tuple(rows),
        )

    def _ids(self) -> torch.Tensor | None:
        found = self.inputs.get("input_ids") if isinstance(self.inputs, Mapping) else None
        if isinstance(found, torch.Tensor) and found.ndim == 2 and found.shape[1] >= 4:
            return found
        return None


def _below(name: str, paths: Any) -> bool:
    return bool(name) and any(name == path or name.startswith(f"{path}.") for path in paths)


def _quality(model: nn.Module, inputs: Any) -> float:
    """Perplexity on the inputs; NaN where they hold no ids."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    logits = outputs(call(model, inputs))[0]
    if not isinstance(ids, torch.Tensor) or logits.ndim != 3:
        return math.nan
    found = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])
    return math.exp(min(-float(found.mean()), 700.0))


@dataclass(frozen=True, slots=True)
class _CacheGap:
    error: float
    length: int
    """How many tokens the cache says that it holds at the end."""
    tokens: int


def _decoding_gap(model: nn.Module, ids: torch.Tensor) -> _CacheGap | None:
    """Logits of the last tokens, decoded one by one with a cache, against those of one pass; None without a cache."""
    steps = min(STEPS, ids.shape[1] - 2)
    given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    with torch.no_grad():
        try:
            whole = model(**given).logits[:, -steps:]
            state = model(input_ids=ids[:, :-steps], use_cache=True)
            found = []
            for place in range(ids.shape[1] - steps, ids.shape[1]):
                cache = state.past_key_values
                state = model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
                found.append(state.logits[:, -1])
        except (TypeError, AttributeError):
            return None
    apart = torch.stack(found, 1).double() - whole.double()
    error = float(apart.norm() / whole.double().norm().clamp_min(1e-300))
    length = getattr(state.past_key_values, "get_seq_length", lambda: ids.shape[1])()
    return _CacheGap(error if math.isfinite(error) else math.inf, int(length), ids.shape[1])
