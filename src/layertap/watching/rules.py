"""Rules about single sites, and the user's own: what they look at, and which of them a step breaks."""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from torch import nn

from layertap.capture.compiled import Uncompiled
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note
from layertap.select import select
from layertap.site import ROLES, Record
from layertap.watching.actions import check_action
from layertap.watching.trigger import LOSS, UPDATE, Reason, Step

Judge = Callable[[Step, Sequence[Record]], "dict[str, str]"]
"""What a rule finds in a step: site → what is wrong there; the empty site for what is nowhere in particular."""

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUMBERS = ("mean", "std", "min", "max", "abs_mean", "abs_max", "l2", "rms", "zeros", "nonfinite")
_WHEN = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*([-+0-9.eE]+)\s*")
_KEYS = ("rule", "sites", "steps", "below", "above", "when", "action")


class _Makes(Protocol):
    def __call__(self, rule: SiteRule) -> Judge: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRule:
    """One rule. It fires when a site breaks it in `steps` recorded steps on end, and again only after it was kept."""

    name: str
    sites: str = "**"
    """The modules that it is about, as in docs/recording.md."""
    steps: int = 1
    below: float = 0.0
    above: float = math.inf
    when: str = ""
    """For a rule of one's own: a statistic, a comparison, a number: `abs_max > 1e4`."""
    function: Callable[[Step, Sequence[Record]], str | None] | None = None
    actions: tuple[str, ...] = ()
    paths: frozenset[str] | None = None
    """The modules that `sites` means in this model; None: all."""

    def __str__(self) -> str:
        about = "" if self.sites == "**" else f" in {self.sites}"
        lasting = Note("rules.in_a_row", steps=self.steps) if self.steps > 1 else ""
        return f"{self.name}{about}{f': {self.when}' if self.when else ''}{lasting}"

    def covers(self, record: Record) -> bool:
        return self.paths is None or record.site.path in self.paths

    def on(self, model: nn.Module) -> SiteRule:
        """The rule for a model: its patterns are read, and reported now if they match nothing."""
        if self.sites == "**":
            return self
        return replace(self, paths=frozenset(select(Uncompiled(model), self.sites, what=ROLES).paths))


def number_of(record: Record, name: str) -> float:
    """A statistic of a record by name; `rms` and `zeros` (their share) besides those of `Statistics`."""
    values = record.statistics
    if name == "rms":
        return values.l2 / math.sqrt(values.count) if values.count else 0.0
    if name == "zeros":
        return values.zero / values.count if values.count else 0.0
    return float(getattr(values, name))


class SiteRules:
    """Checks one step after the other against the rules."""

    def __init__(self, rules: Sequence[SiteRule]) -> None:
        self._judges = [(rule, _judge_of(rule)) for rule in rules]
        self._broken: dict[tuple[str, str], int] = {}

    def judge(self, step: Step, records: Sequence[Record]) -> list[Reason]:
        """The rules that are broken now and were not before."""
        training = [record for record in records if record.phase == "train"]
        reasons = []
        for rule, judge in self._judges:
            found = judge(step, training)
            for key in [key for key in self._broken if key[0] == str(rule) and key[1] not in found]:
                del self._broken[key]
            for site, text in found.items():
                count = self._broken[str(rule), site] = self._broken.get((str(rule), site), 0) + 1
                if count == rule.steps:
                    reasons.append(Reason(rule=rule.name, text=text, site=site, actions=rule.actions))
        return reasons


def _vanishing(rule: SiteRule) -> Judge:
    share = rule.below or 1e-5

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        gradients = [(r, number_of(r, "rms")) for r in records if "grad" in r.site.role]
        median = statistics.median([rms for _, rms in gradients]) if gradients else 0.0
        return {
            str(r.site): Note("rules.vanished", site=r.site, rms=f"{rms:.3g}", share=f"{rms / median:.2g}")
            for r, rms in gradients
            if median and rms < share * median and rule.covers(r)
        }

    return judge


def _dead(rule: SiteRule) -> Judge:
    share = rule.above if math.isfinite(rule.above) else 0.95

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        return {
            str(r.site): Note("rules.zeros", site=r.site, zeros=f"{number_of(r, 'zeros'):.1%}")
            for r in records
            if r.site.role == "output" and r.site.path != LOSS and number_of(r, "zeros") > share and rule.covers(r)
        }

    return judge


def _update_ratio(rule: SiteRule) -> Judge:
    low, high = rule.below or 1e-7, rule.above if math.isfinite(rule.above) else 0.1

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        weights = {(r.site.path, r.site.leaf): r.statistics.l2 for r in records if r.site.role == "param"}
        found: dict[str, str] = {}
        for record in records:
            if not record.kind.endswith(f" {UPDATE}") or not rule.covers(record):
                continue
            leaf = record.site.leaf.removesuffix(f".{UPDATE}")
            weight = weights.get((record.site.path, leaf))
            ratio = record.statistics.l2 / weight if weight else None
            if ratio is not None and not low <= ratio <= high:
                found[str(record.site)] = Note(
                    "rules.update", site=record.site, ratio=f"{ratio:.3g}", low=f"{low:g}", high=f"{high:g}"
                )
        return found

    return judge


def _loss_plateau(rule: SiteRule) -> Judge:
    length = max(rule.steps, 2) if rule.steps > 1 else 1000
    losses: deque[float] = deque(maxlen=length)
    best = [math.inf]

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        now = [r.statistics.mean for r in records if r.site.path == LOSS and math.isfinite(r.statistics.mean)]
        if not now:
            return {}
        if len(losses) == length:
            best[0] = min(best[0], losses[0])
        losses.append(statistics.fmean(now))
        lowest = min(losses)
        if len(losses) < length or lowest < best[0]:
            return {}
        return {"": Note("rules.plateau", count=length, now=f"{lowest:.6g}", best=f"{best[0]:.6g}")}

    return judge


def _compared(rule: SiteRule) -> Judge:
    match = _WHEN.fullmatch(rule.when)
    assert match is not None, "rules.checked"
    name, compare, limit = match[1], _OPERATORS[match[2]], float(match[3])

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        return {
            str(r.site): f"{r.site}: {name} = {number_of(r, name):.4g}, {rule.when.strip()}"
            for r in records
            if rule.covers(r) and compare(number_of(r, name), limit)
        }

    return judge


def _own(rule: SiteRule) -> Judge:
    function = rule.function
    assert function is not None

    def judge(step: Step, records: Sequence[Record]) -> dict[str, str]:
        text = function(step, [record for record in records if rule.covers(record)])
        return {"": str(text)} if text else {}

    return judge


KNOWN: dict[str, _Makes] = {
    "vanishing_gradient": _vanishing,
    "dead_units": _dead,
    "update_ratio": _update_ratio,
    "loss_plateau": _loss_plateau,
}


def _judge_of(rule: SiteRule) -> Judge:
    if rule.function is not None:
        return _own(rule)
    return _compared(rule) if rule.when else KNOWN[rule.name](rule)


def parse_rules(given: Any) -> tuple[SiteRule, ...]:
    """Reads rules: names, mappings, functions of `(step, records)`, or a list of these.

    >>> print(*parse_rules(["dead_units", {"rule": "large", "when": "abs_max > 1e4", "steps": 3}]), sep="; ")
    dead_units; large: abs_max > 1e4, 3 steps in a row
    """
    if given is None:
        return ()
    if isinstance(given, (str, Mapping)) or callable(given):
        given = [given]
    return tuple(item if isinstance(item, SiteRule) else _rule(item) for item in given)


def _rule(given: Any) -> SiteRule:
    if not isinstance(given, Mapping):
        given = {"rule": given}
    strange = sorted(map(str, set(given) - set(_KEYS)))
    if strange:
        raise BadArgument(tr("rules.no_option", strange=strange[0], KEYS=", ".join(_KEYS)))
    name, when = given.get("rule", "custom"), str(given.get("when", ""))
    match = _WHEN.fullmatch(when)
    if when and (match is None or match[1] not in _NUMBERS):
        raise BadArgument(tr("rules.when", when=when, NUMBERS=", ".join(_NUMBERS)))
    function = name if callable(name) else _function(str(name)) if ":" in str(name) else None
    if function is None and not when and name not in KNOWN:
        raise BadArgument(tr("rules.no_rule", name=name, KNOWN=", ".join(KNOWN)))
    actions = given.get("action", ())
    actions = (actions,) if isinstance(actions, str) else tuple(actions)
    for action in actions:
        check_action(action)
    try:
        return SiteRule(
            name=getattr(name, "__name__", None) or str(name),
            sites=str(given.get("sites", "**")),
            steps=int(given.get("steps", 1)),
            below=float(given.get("below", 0.0)),
            above=float(given.get("above", math.inf)),
            when=when,
            function=function,
            actions=actions,
        )
    except (TypeError, ValueError) as error:
        raise BadArgument(f"rules: {dict(given)}: {error}") from None


def _function(name: str) -> Callable[[Step, Sequence[Record]], str | None]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadArgument(tr("rules.no_import", name=name, error=error)) from None
    if not callable(found):
        raise BadArgument(tr("rules.no_function", name=name))
    return found  # type: ignore[no-any-return]
