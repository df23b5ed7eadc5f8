"""Many pairs at once: each worker is a process of its own, with one thread, so that sums go in one order anywhere."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
from benchmarks.faultbench.case import Case
from benchmarks.faultbench.cases import CASES
from benchmarks.faultbench.draws import draw
from benchmarks.faultbench.others import OTHERS
from benchmarks.faultbench.ported import PORTED
from benchmarks.faultbench.rules import RULES
from benchmarks.faultbench.score import Answer, ask_finder, ask_rule

Finders = dict[str, Callable[..., Answer]]
Job = tuple[str, int]
"""The list that a pair is in, or `draws`, and its place there, or its seed: a case itself does not pickle."""

LISTS = {"list": CASES, "ports": PORTED, "others": OTHERS}


def case_of(job: Job) -> Case:
    group, number = job
    return draw(number) if group == "draws" else LISTS[group][number]


def finders(finder: str | None, rules: bool) -> Finders:
    """`finder` is MODULE:NAME."""
    found: Finders = {}
    if finder is not None:
        module, _, name = finder.partition(":")
        found[name] = ask_finder(getattr(importlib.import_module(module), name))
    return found | ({name: ask_rule(rule) for name, rule in RULES.items()} if rules else {})


def answers(
    jobs: Sequence[Job], finder: str | None, rules: bool, workers: int
) -> Iterator[tuple[Case, dict[str, Answer]]]:
    """Every pair with what each finder says of it, in order."""
    if workers < 2:
        asked = finders(finder, rules)
        yield from ((case, ask(case, asked)) for case in map(case_of, jobs))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (finder, rules)) as pool:
        for job, said in zip(jobs, pool.map(_answer, jobs), strict=True):
            yield case_of(job), said


def ask(case: Case, asked: Finders) -> dict[str, Answer]:
    """Each gets a fresh pair: what one leaves behind in a model must not help or harm the next."""
    said = {}
    for name, one in asked.items():
        reference, candidate, inputs = case.make()
        try:
            said[name] = one(reference, candidate, inputs)
        except Exception as error:  # noqa: BLE001  a finder that raises on one pair is scored on the others
            said[name] = Answer(verdict="inconclusive", error=f"{type(error).__name__}: {error}".splitlines()[0])
    return said


_here: Finders = {}


def _begin(finder: str | None, rules: bool) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    _here.update(finders(finder, rules))


def _answer(job: Job) -> dict[str, Answer]:
    return ask(case_of(job), _here)
