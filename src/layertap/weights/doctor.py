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
from layertap.weights.branches import ATTENTION, Branch, call, confirm, find_branches
from layertap.weights.decoding import decoding_gap, perplexity, relative_error
from layertap.weights.knockout import KnockoutRow, knockout
from layertap.weights.plan import Plan, read_plan
from layertap.weights.pruning import PLAN_KEY, outputs, skips_of, without
from layertap.weights.result import Audit, AuditRow
from layertap.weights.skip import SkippedBranch, is_bypassed
from layertap.weights.sources import open_weights

Answer = Literal["healthy", "code", "loading", "cache", "idea", "inconclusive"]
EXIT_CODES: Mapping[str, int] = {"healthy": 0, "code": 1, "loading": 1, "cache": 1, "idea": 1, "inconclusive": 3}

GAP = 10.0
"""How many times the reference's own difference between the two a candidate's may be."""
ROUNDING = 1e-2
"""A relative difference of logits that rounding may make in low precision."""
REPEATED = 1e-4
"""By how much two runs on the same inputs may differ: sums in another order."""
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
        head = tr("doctor.head", answer=tr(f"doctor.{self.answer}"), sentence=self.sentence)
        return "\n".join([head, *(f"- {line}" for line in self.evidence)])


def doctor(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Any,
    *,
    plan: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Says whether it is the code, the loading, the cache or the idea; `plan` is what was meant to be cut, if anything.

    Without a plan it is what the candidate's configuration states, and what the candidate turns out to do without.
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
        self.modules = getattr(candidate, "_orig_mod", candidate)
        """The candidate under its own names, also where it is compiled."""
        self.compiled = self.modules is not candidate
        self.lines: list[Note] = []
        try:
            self.branches = find_branches(reference)
        except BadArgument:
            self.branches = []
        self.meant = self._meant(plan)
        self.restless: nn.Module = candidate
        """The model whose output changes by itself, where one does."""
        self._cut_reference: nn.Module | None = None

    def run(self) -> Diagnosis:
        """The questions in order."""
        self.say(tr("doctor.comparing"))
        self.found = audit(self.candidate, self.reference)
        self.say(tr("doctor.running"))
        ours, calls = self._run(self.reference)
        theirs, their_calls = self._run(self.candidate)
        self.cut = [branch for branch in self.branches if self._is_cut(branch, calls, their_calls)]
        known = self._weights() or self._ran(ours, theirs)
        if known is not None:
            return known
        steady = self._repeats(self.reference, ours) and self._repeats(self.candidate, theirs)
        cache = self._cache(steady)
        if cache is not None and self._right_without_cache(theirs):
            return cache
        return self._rest(steady) or cache or self._worth(ours, theirs)

    def _answer(self, answer: Answer, sentence: Note, **known: Any) -> Diagnosis:
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
            module = self.modules.get_submodule(branch.path)
        except AttributeError:
            return True
        if isinstance(module, SkippedBranch) or is_bypassed(module):
            return True
        if not any(True for _ in module.parameters()) and any(
            True for _ in self.reference.get_submodule(branch.path).parameters()
        ):
            return True  # whatever is there now, it contains nothing
        # Hooks that were set after compiling are not in the graph.
        return not self.compiled and branch.path in ours and branch.path not in theirs

    # The questions.

    def _weights(self) -> Diagnosis | None:
        gone = [path for branch in self.cut for path in branch.members]
        gone += [path for path in {branch.block for branch in self.cut} if not self._has(path)]
        loud = [
            row
            for row in self.found.rows
            if row.weighs == "fault" and not (row.status == "unexpected" and _below(row.other, gone))
        ]
        built = [row for row in loud if _below(row.name, self.meant - {branch.path for branch in self.cut})]
        counts = ", ".join(f"{count} {tr(f'audit.status_{status}')}" for status, count in self.found.by_status.items())
        if not loud:
            code = "doctor.weights_cut" if self.cut else "doctor.weights"
            self.lines.append(Note(code, counts=counts, cut=len(self.cut)))
            return None
        shown = Note("doctor.weights_wrong", counts=counts, rows="; ".join(_row(row) for row in loud[:3]))
        more = len(loud) - 3
        self.lines.append(Note("doctor.and_more", first=shown, count=more) if more > 0 else shown)
        if len(built) == len(loud):
            paths = sorted({path for path in self.meant if any(_below(r.name, [path]) for r in built)})
            values = {"built": type(self.candidate).__name__, "paths": ", ".join(collapse(paths))}
            return self._answer("code", Note("doctor.class_lost", **values), site=built[0].name.rpartition(".")[0])
        row = loud[0]
        sentence = Note("doctor.tensors" if more > -2 else "doctor.tensor", count=len(loud), row=_row(row))
        return self._answer("loading", sentence, site=(row.name or row.other).rpartition(".")[0])

    def _has(self, path: str) -> bool:
        return any(name == path for name, _ in self.modules.named_modules())

    def _ran(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> Diagnosis | None:
        kept = self.meant - {branch.path for branch in self.cut}
        same = len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        if kept:
            self.lines.append(Note("doctor.ran_all_the_same", count=len(kept), total=len(self.meant)))
            values = {"paths": ", ".join(collapse(sorted(kept))), "built": type(self.modules).__name__}
            return self._answer(
                "code", Note("doctor.placebo" if same else "doctor.not_skipped", **values), site=min(kept)
            )
        if same and self.cut:
            self.lines.append(Note("doctor.no_effect"))
            return self._answer("inconclusive", Note("doctor.no_change"))
        paths = ", ".join(collapse(branch.path for branch in self.cut))
        code = "doctor.not_run" if self.cut else "doctor.compiled" if self.compiled else "doctor.all_run"
        self.lines.append(Note(code, count=len(self.cut), paths=paths))
        return None

    def _repeats(self, model: nn.Module, before: list[torch.Tensor]) -> bool:
        """Whether a second run gives the same output, but for rounding."""
        error = relative_error(outputs(call(model, self.inputs)), before)
        if error <= REPEATED:
            return True
        self.lines.append(Note("doctor.not_repeatable", model=self._name(model), error=error))
        self.restless = model
        return False

    def _name(self, model: nn.Module) -> Note:
        return Note("doctor.the_reference" if model is self.reference else "doctor.the_candidate")

    def _cache(self, steady: bool) -> Diagnosis | None:
        ids = self._ids()
        if ids is None or not steady:
            self.lines.append(Note("doctor.no_ids" if ids is None else "doctor.not_comparable"))
            return None
        self.say(tr("doctor.decoding"))
        ours, theirs = decoding_gap(self.reference, ids), decoding_gap(self.candidate, ids)
        if ours is None or theirs is None:
            self.lines.append(Note("doctor.no_decoding"))
            return None
        gap, lost = Note("doctor.gap", theirs=theirs.error, ours=ours.error), theirs.length != theirs.tokens
        if lost:
            gap = Note("doctor.gap_counted", gap=gap, length=theirs.length, tokens=theirs.tokens)
        self.lines.append(Note("doctor.cache_line", gap=gap))
        if theirs.error > max(GAP * ours.error, ROUNDING) or lost:
            if lost and any(branch.kind == ATTENTION for branch in self.cut):
                gap = Note("doctor.gap_not_updated", gap=gap)
            return self._answer("cache", Note("doctor.cache_wrong", gap=gap))
        return None

    def _right_without_cache(self, theirs: list[torch.Tensor]) -> bool:
        error = relative_error(theirs, outputs(call(self._expected(), self.inputs)))
        if error <= ROUNDING:
            return True
        self.lines.append(Note("doctor.without_cache", error=error))
        return False

    def _expected(self) -> nn.Module:
        """The reference with the same cuts."""
        if self._cut_reference is None:
            plan = Plan(branches=tuple(self.cut))
            confirmed = confirm(self.reference, list(plan.branches), self.inputs) if self.cut else {}
            skips = skips_of(self.reference, plan, confirmed)
            self._cut_reference = without(self.reference, plan, skips) if self.cut else self.reference
        return self._cut_reference

    def _rest(self, steady: bool) -> Diagnosis | None:
        """The reference with the same cuts against the candidate."""
        self.say(tr("doctor.finding"))
        finding = find_fault(self._expected(), self.candidate, self.inputs)
        against = Note("doctor.the_cut_reference" if self.cut else "doctor.the_reference")
        site = finding.site or Note("doctor.the_model")
        verdict = tr(f"result.{finding.verdict}")
        found = finding.verdict == "fault"
        code = "doctor.rest_at" if found else "doctor.rest"
        self.lines.append(Note(code, against=against, verdict=verdict, site=site))
        if found:
            values = {"site": site, "against": against, "cause": finding.cause}
            evidence = next(iter(finding.evidence), "")
            code = "doctor.computes_else" if evidence else "doctor.computes_else_bare"
            answer: Answer = "loading" if finding.cause == "weights" else "code"
            return self._answer(answer, Note(code, **values, evidence=evidence), site=finding.site)
        if not steady:
            return self._answer("inconclusive", Note("doctor.unrepeatable", model=self._name(self.restless)))
        if finding.verdict == "inconclusive":
            return self._answer("inconclusive", Note("doctor.unknown", why=next(iter(finding.notes), "")))
        return None

    def _worth(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> Diagnosis:
        """What the cuts themselves cost."""
        if not self.cut:
            return self._answer("healthy", Note("doctor.same"))
        self.say(tr("doctor.measuring"))
        before, after = perplexity(self.reference, self.inputs), perplexity(self.candidate, self.inputs)
        top1 = float((ours[0].argmax(-1) == theirs[0].argmax(-1)).double().mean())
        ratio = after / before if before and not math.isnan(before) else math.nan
        cost = Note("doctor.top1" if math.isnan(ratio) else "doctor.top1_perplexity", top1=top1, ratio=ratio)
        self.lines.append(Note("doctor.cost", cost=cost))
        if top1 >= SAME_TOP1 and not ratio > SAME_PERPLEXITY:
            return self._answer("healthy", Note("doctor.cheap", cost=cost))
        paths = {branch.path for branch in self.cut}
        rows = [row for row in knockout(self.reference, self.inputs, blocks=False).rows if row.site in paths]
        rows.sort(key=lambda row: -row.kl)
        worst = ", ".join(tr("doctor.harm", site=row.site, kl=row.kl) for row in rows[:3])
        self.lines.append(Note("doctor.each", worst=worst))
        return self._answer("idea", Note("doctor.idea_wrong", cost=cost, site=rows[0].site), harm=tuple(rows))

    def _ids(self) -> torch.Tensor | None:
        found = self.inputs.get("input_ids") if isinstance(self.inputs, Mapping) else None
        if isinstance(found, torch.Tensor) and found.ndim == 2 and found.shape[1] >= 4:
            return found
        return None


def _row(row: AuditRow) -> Note:
    values = {"name": row.name or row.other, "status": tr(f"audit.status_{row.status}"), "detail": row.detail}
    return Note("doctor.row" if row.detail else "doctor.row_bare", **values)


def _below(name: str, paths: Any) -> bool:
    return bool(name) and any(name == path or name.startswith(f"{path}.") for path in paths)
