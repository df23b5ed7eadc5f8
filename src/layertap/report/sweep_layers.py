"""The parts of a sweep's text that are about language, single layers, and the author's own questions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from layertap.messages import tr
from layertap.report.table import Column, Lines
from layertap.report.values import number
from layertap.sweeping.result import Answer, Sensitivity, Sweep

TOP = 10
"""So many layers of a ranking are shown."""


def token_view(sweep: Sweep) -> Iterator[Any]:
    """The block that is quoted for a quantised model: a line for each mode."""
    titles, rows = token_cells(sweep)
    if not rows:
        return
    said = [mode.tokens for mode in sweep.modes.values() if mode.tokens is not None]
    yield Text("")
    yield Text(tr("sweep.tokens_title", reference=sweep.reference, positions=said[0].positions), style="bold")
    table = Lines(
        [Column(title=title, left=not place, spare=_SPARE.get(place, 0)) for place, title in enumerate(titles)]
    )
    for row in rows:
        table.add(row)
    yield table
    for name, mode in sweep.modes.items():
        if mode.tokens is not None and mode.tokens.not_finite:
            line = tr("sweep.tokens_nan", mode=name, count=mode.tokens.not_finite, positions=mode.tokens.positions)
            yield Text(line, style="bold red")
    covered = min((one.covered for one in said if not one.not_finite), default=1.0)
    if covered < 1 - 1e-6:
        yield Text(tr("sweep.tokens_bound", top=said[0].top, covered=f"{covered:.4f}"), style="dim")


_SPARE = {2: 2, 3: 1, 5: 4, 6: 5, 10: 3}


def token_cells(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """The titles, and the cells of each mode that is a language model."""
    names = ("mode", "kl", "kl_max", "kl_999", "kl_99", "kl_95", "kl_90", "kl_50", "delta", "same", "ppl", "ratio_ppl")
    rows = []
    for name, mode in sweep.modes.items():
        found = mode.tokens
        if found is None:
            continue
        kl = [
            number(found.kl_percentiles.get(place, math.nan), 3)
            for place in ("max", "99.9", "99", "95", "90", "median")
        ]
        delta = "" if math.isnan(found.rms_delta_p) else f"{found.rms_delta_p:.3%}"
        ppl, ratio = "", ""
        if not math.isnan(found.perplexity):
            ppl = number(found.perplexity, 5)
            ratio = f"{found.perplexity_ratio:.5f} ± {found.perplexity_ratio_error:.1g}"
        same = f"{found.same_top:.2%} ± {found.same_top_error:.2%}"
        rows.append([name, f"{found.kl:.4g} ± {found.kl_error:.1g}", *kl, delta, same, ppl, ratio])
    return [tr(f"sweep.col_{one}") for one in names], rows


def layer_lines(sweep: Sweep, *, verbose: bool) -> Iterator[str]:
    """The layers of each ranked mode, worst first, and the list of those to leave as they are."""
    for name, mode in sweep.modes.items():
        ranked = mode.sensitivity
        if ranked is None or not ranked.rows:
            continue
        yield ""
        yield tr(
            "sweep.ranked", mode=name, output="KL" if ranked.output == "kl" else "error", total=number(ranked.total, 3)
        )
        rows = [row for row in ranked.rows if row.score > 0]
        for row in rows if verbose else rows[:TOP]:
            values = {key: number(getattr(row, key), 3) for key in ("weights", "activations", "cache")}
            line = tr(
                "sweep.ranked_row", path=row.path, share=f"{row.share:.1%}", own=number(row.own_error, 3), **values
            )
            if not math.isnan(row.confirmed):
                line = tr(f"sweep.ranked_{ranked.graft}", row=line, confirmed=f"{row.confirmed:.1%}")
            yield f"  {line}"
        yield from ignore_lines(name, ranked)


def ignore_lines(name: str, ranked: Sensitivity) -> Iterator[str]:
    """The list in the words of torchao and of llm-compressor."""
    names = ranked.ignore() if ranked.quantised else ()
    if not names:
        return
    listed = json.dumps(list(names))
    yield tr("sweep.ignore", mode=name)
    yield f"  ignore = {listed}"
    chosen = f"lambda m, name: isinstance(m, nn.Linear) and name not in {listed}"
    yield f"  torchao: quantize_(model, config, filter_fn={chosen})"
    yield f'  llm-compressor: QuantizationModifier(targets="Linear", ignore={listed}, scheme=…)'


def answer_lines(sweep: Sweep) -> Iterator[str]:
    """The author's questions, each answered in a line."""
    if sweep.answers:
        yield ""
    for answer in sweep.answers:
        yield answer_line(answer)


def answer_line(answer: Answer) -> str:
    """One question's answer."""
    if answer.note is not None:
        return f"{answer.question}: {answer.note}"
    sides = {"question": answer.question, "candidate": answer.candidate, "reference": answer.reference}
    if answer.error == 0 or not answer.site:
        return tr("sweep.answer_identical", **sides)
    line = tr(
        "sweep.answer",
        **sides,
        site=answer.site,
        error=number(answer.error, 3),
        first_site=answer.first_site,
        first_error=number(answer.first_error, 3),
        before=number(answer.before, 3),
        after=number(answer.after, 3),
    )
    return line if math.isnan(answer.kl) else tr("sweep.answer_kl", answer=line, kl=number(answer.kl, 3))
