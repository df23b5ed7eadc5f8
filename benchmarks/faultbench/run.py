"""Score find_fault and the rules in use elsewhere on pairs with known culprits.

python -m benchmarks.faultbench                     # the list, and pairs that are written or stored otherwise
python -m benchmarks.faultbench --draws 300         # and 300 random pairs
python -m benchmarks.faultbench --cases none --no-rules --draws 300 --seed 12345 --workers 16
python -m benchmarks.faultbench --cases 'llama-*' -v --rules-only
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.faultbench.cases import CASES
from benchmarks.faultbench.score import Scored, Total, score, total
from benchmarks.faultbench.workers import LISTS, Job, answers

TARGETS = {
    "list": (0.97, 0.90, 0.0),
    "ports": (0.97, 0.90, 0.0),
    "others": (0.97, 0.90, 0.0),
    "draws": (0.97, 0.90, 0.0),
}
"""Exact module, cause, and false alarms as a share of the clean pairs."""
FINDER = "layertap.fault:find_fault"
COLUMNS = ("exact", "cause", "several", "wrong", "missed", "alarms", "raised", "forwards")


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # transformers and torchao report which kernels this machine does not have
    try:
        return _main(options)
    finally:
        logging.disable(before)


def _main(options: argparse.Namespace) -> int:
    finder = None if options.rules_only else options.finder
    judged = None if finder is None else finder.partition(":")[2]
    missed, screens = False, {}
    for title, jobs in _groups(options):
        began = time.perf_counter()
        results: dict[str, list[Scored]] = {}
        for case, said in answers(jobs, finder, not options.no_rules, options.workers):
            for name, answer in said.items():
                results.setdefault(name, []).append(score(case, answer))
                if options.verbose and not options.json:
                    print(_line(name, results[name][-1]), flush=True)
        totals = {name: total(scored) for name, scored in results.items()}
        misses = [] if judged is None else _misses(title, totals[judged])
        missed |= bool(misses)
        screens[title] = _as_dict(results, totals, misses)
        if not options.json:
            print(_table(title, totals, time.perf_counter() - began))
            print("".join(f"target missed: {miss}\n" for miss in misses), end="")
    if options.json:
        print(json.dumps(screens, indent=2, ensure_ascii=False))
    return int(missed)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faultbench", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="names to run; 'none' for draws alone")
    parser.add_argument("--draws", type=int, default=0, metavar="N", help="also N random pairs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; each has one thread")
    parser.add_argument("--finder", default=FINDER, metavar="MODULE:NAME")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--rules-only", action="store_true", help="leave the finder out")
    only.add_argument("--no-rules", action="store_true", help="leave the rules out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line a pair and finder")
    return parser.parse_args(arguments)


def _groups(options: argparse.Namespace) -> Iterator[tuple[str, list[Job]]]:
    chosen = {
        title: [(title, number) for number, case in enumerate(cases) if fnmatch.fnmatch(case.name, options.cases)]
        for title, cases in LISTS.items()
    }
    if not any(chosen.values()) and not options.draws:
        raise SystemExit(f"no case is called {options.cases!r}; the first of {len(CASES)} is {CASES[0].name!r}")
    yield from ((title, jobs) for title, jobs in chosen.items() if jobs)
    if options.draws:
        yield "draws", [("draws", seed) for seed in range(options.seed, options.seed + options.draws)]


def _line(name: str, one: Scored) -> str:
    truth = " then ".join(" or ".join(sorted(culprit)) for culprit in one.case.culprits) or "clean"
    said = one.answer.error or " ".join(filter(None, (one.answer.verdict, one.answer.site, one.answer.cause)))
    mark = (
        ""
        if one.cause or one.case.clean or one.outcome != "exact"
        else " (cause: " + "|".join(sorted(one.case.causes[0])) + ")"
    )
    tiny = " tiny" if one.case.tiny else ""
    return f"{one.outcome:6} {name[:12]:12} {one.case.name}{tiny}: {said}{mark} [{truth}]"


def _misses(title: str, score: Total) -> list[str]:
    exact, cause, alarms = TARGETS[title]
    found = []
    if score.faults and score.exact < exact:
        found.append(f"exact module {score.exact:.1%} < {exact:.0%}")
    right = 0.0 if math.isnan(score.cause) else score.cause  # a finder that never names a cause is never right
    if score.faults and right < cause:
        found.append(f"cause {right:.1%} < {cause:.0%}")
    if score.alarms > alarms * score.clean:
        found.append(f"{score.alarms} false alarms on {score.clean} clean pairs")
    return found


def _table(title: str, totals: dict[str, Total], seconds: float) -> str:
    any_total = next(iter(totals.values()))
    head = f"{title}: {any_total.faults} faults, {any_total.tiny} tiny, {any_total.clean} clean, {seconds:.0f} s"
    lines = [head, f"{'':26}" + "".join(f"{column:>10}" for column in COLUMNS)]
    for name, one in totals.items():
        cells = [_percent(one.exact), _percent(one.cause), _percent(one.complete)]
        cells += [str(count) for count in (one.wrong, one.missed, one.alarms, one.raised)]
        cells.append("–" if math.isnan(one.forwards) else f"{one.forwards:g}")
        lines.append(f"{name:26}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"


def _as_dict(results: dict[str, list[Scored]], totals: dict[str, Total], misses: list[str]) -> dict[str, Any]:
    return {
        "totals": {name: {k: _plain(v) for k, v in dataclasses.asdict(one).items()} for name, one in totals.items()},
        "missed_targets": misses,
        "pairs": [
            {
                "name": one.case.name,
                "finder": name,
                "outcome": one.outcome,
                "cause_right": one.cause,
                "tiny": one.case.tiny,
                "culprits": [sorted(culprit) for culprit in one.case.culprits],
                "answer": {k: _plain(v) for k, v in dataclasses.asdict(one.answer).items()},
            }
            for name, scored in results.items()
            for one in scored
        ],
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    raise SystemExit(main())
