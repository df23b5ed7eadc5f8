"""One answer compared with the case, and many added up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.faultbench.case import Case
from benchmarks.faultbench.families import Inputs
from benchmarks.faultbench.rules import Rule
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a finder said about one pair."""

    verdict: str
    site: str = ""
    """The culprit's module path; empty when none is named."""
    cause: str = ""
    others: tuple[str, ...] = ()
    forwards: float | None = None
    error: str = ""
    """The exception, where it raised one; then nothing else counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An answer and what it is worth."""

    case: Case
    answer: Answer
    outcome: str
    """exact, wrong (another module is named), missed (none is), right (a clean pair left alone), alarm, raised."""
    cause: bool
    """Whether the culprit is exact and so is its cause."""
    complete: bool
    """Whether every planted fault was named."""


def ask_rule(rule: Rule) -> Callable[[nn.Module, nn.Module, Inputs], Answer]:
    """A rule as a finder: it names a site or nothing."""

    def ask(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> Answer:
        site = rule(reference, candidate, inputs)
        return Answer(verdict="noise") if site is None else Answer(verdict="fault", site=site)

    return ask


def ask_finder(find: Callable[..., Any]) -> Callable[[nn.Module, nn.Module, Inputs], Answer]:
    """`find_fault`, or a function like it, as a finder."""

    def ask(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> Answer:
        finding = find(reference, candidate, inputs)
        others = tuple(_path(getattr(other, "site", other)) for other in getattr(finding, "others", ()) or ())
        return Answer(
            verdict=str(finding.verdict),
            site=_path(finding.site),
            cause=str(getattr(finding, "cause", "") or ""),
            others=others,
            forwards=_forwards(getattr(finding, "forwards", None)),
        )

    return ask


def score(case: Case, answer: Answer) -> Scored:
    """An answer accuses when its verdict is `fault` and it names a module.

    >>> from benchmarks.faultbench.case import Case
    >>> known = {"culprits": ({"x.y"},), "causes": ({"sign"},)}
    >>> case = Case(name="a", family="cnn", dtype="fp32", kind="sign", build=None, **known)
    >>> score(case, Answer(verdict="fault", site="x.y", cause="sign")).outcome
    'exact'
    >>> score(case, Answer(verdict="fault", site="x", cause="sign")).outcome
    'wrong'
    """
    accused = answer.site if answer.verdict == "fault" else ""
    if answer.error:
        outcome = "raised"
    elif case.clean:
        # A quantised model may be called that, as long as no module is blamed for it.
        systematic = case.dtype == "int8" and not accused and answer.cause in ("quantization", "precision")
        outcome = "alarm" if answer.verdict == "fault" and not systematic else "right"
    elif not accused:
        outcome = "missed"
    else:
        outcome = "exact" if accused in case.culprits[0] else "wrong"
    named = {accused, *answer.others}
    return Scored(
        case=case,
        answer=answer,
        outcome=outcome,
        cause=outcome == "exact" and answer.cause in case.causes[0],
        complete=outcome == "exact" and all(named & set(culprit) for culprit in case.culprits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A finder's score over many pairs. Tiny faults count only where they lead to a wrong culprit."""

    faults: int
    clean: int
    tiny: int
    exact: float
    cause: float
    """NaN for a rule, which gives none."""
    complete: float
    """Of the pairs with several faults, the share in which all were named; NaN without such pairs, and for a rule."""
    wrong: int
    missed: int
    alarms: int
    raised: int
    forwards: float
    """The most that were spent on one pair; NaN where the finder does not say."""


def total(scored: Iterable[Scored]) -> Total:
    scored = list(scored)
    faults = [one for one in scored if not one.case.clean and not one.case.tiny]
    several = [one for one in faults if len(one.case.culprits) > 1]
    explains = any(one.answer.cause for one in scored)
    spent = [one.answer.forwards for one in scored if one.answer.forwards is not None]
    return Total(
        faults=len(faults),
        clean=sum(one.case.clean for one in scored),
        tiny=sum(one.case.tiny for one in scored),
        exact=_share(one.outcome == "exact" for one in faults),
        cause=_share(one.cause for one in faults) if explains else float("nan"),
        complete=_share(one.complete for one in several) if explains else float("nan"),
        wrong=sum(one.outcome == "wrong" for one in scored),
        missed=sum(one.outcome == "missed" for one in faults),
        alarms=sum(one.outcome == "alarm" for one in scored),
        raised=sum(one.outcome == "raised" for one in scored),
        forwards=max(spent, default=float("nan")),
    )


def _share(values: Iterable[bool]) -> float:
    values = [float(value) for value in values]
    return statistics.fmean(values) if values else float("nan")


def _path(site: Any) -> str:
    """The module path of a site: `a.b:output.0@1` is in `a.b`."""
    return str(site or "").partition(":")[0].partition("@")[0]


def _forwards(value: Any) -> float | None:
    if isinstance(value, dict):
        return float(max(value.values(), default=0))
    if isinstance(value, tuple | list):
        return float(max(value, default=0))
    return None if value is None else float(value)
