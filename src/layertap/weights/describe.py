"""What was found of a tensor, in words and numbers: the rule by which it was made, or how it differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from layertap.messages import tr
from layertap.result import Note
from layertap.select.collapse import collapse
from layertap.weights.compose import Composition
from layertap.weights.differences import Differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.hashes import Hashes

OTHER = 0.5
"""A relative error above which two tensors are other weights, and not the same ones changed."""


def rule_of(entry: Entry, made: Composition, other: Weights) -> tuple[str, str]:
    runs, owners = made.runs, made.owners
    if len(owners) == 1 and len(runs) == 1:
        run = runs[0]
        if not run.whole:
            part = tr("audit.part", start=run.start, end=run.start + run.length - 1, total=run.total)
            return "shard", Note("audit.columns" if run.across else "audit.rows", part=part)
        if made.transposed:
            return "transposed", ""
        same = other.entries[owners[0]].shape == entry.shape
        return ("same" if owners[0] == entry.name else "renamed", "") if same else ("reshaped", "")
    turned = tr("audit.and_transposed") if made.transposed else ""
    whole = all(run.whole for run in runs)
    if whole and len(entry.shape) > 2:
        return "stacked", Note("audit.tensors", count=len(owners), turned=turned)
    if whole:
        return "concatenated", Note("audit.tensors", count=len(owners), turned=turned)
    if len(owners) == 1:
        return "rows permuted", Note("audit.runs_of_rows", count=len(runs))
    return "interleaved", Note("audit.runs_of_tensors", count=len(runs), count2=len(owners), turned=turned)


def common_dtype(left: Iterable[Entry], right: Iterable[Entry]) -> torch.dtype | None:
    """The coarsest floating dtype of either side; None where all have one."""
    dtypes = {entry.dtype for entry in (*left, *right) if entry.dtype.is_floating_point and entry.dtype.itemsize > 1}
    order = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
    return next((dtype for dtype in order if dtype in dtypes), None) if len(dtypes) > 1 else None


def tied_names(model: Weights) -> list[tuple[str, str]]:
    """(Tied tensor, its source) by what the class and its configuration say."""
    found = getattr(model.model, "_tied_weights_keys", None)
    if not model.config.get("tie_word_embeddings") or not isinstance(found, dict):
        return []
    return [(str(one), str(two)) for one, two in found.items()]


def reordered(here: Any, there: Any, config: dict[str, Any]) -> tuple[bool, str] | None:
    """(Whether it is a rope layout, how) where both have the same rows in another order."""
    if len(here) != len(there) or len(here) < 2 or not np.array_equal(np.sort(here), np.sort(there)):
        return None
    if len(np.unique(here)) == len(here):
        sizes = {config.get("head_dim")} | {2**power for power in range(2, 9)}
        for size in sorted(s for s in sizes if isinstance(s, int) and s > 2 and not s % 2 and not len(here) % s):
            rows: Any = np.arange(len(here)).reshape(-1, size // 2, 2).transpose(0, 2, 1).reshape(-1)
            if np.array_equal(here, there[rows]) or np.array_equal(here[rows], there):
                return True, Note("audit.rope", size=size)
    moved = np.flatnonzero(here != there)
    return False, Note("audit.rows_moved", count=len(moved), count2=len(here), value=int(moved[0]))


def changed(apart: Differences, own: Hashes, there: Hashes, here: Any) -> tuple[str, str]:
    """(Rule, evidence) for values that no rule explains."""
    if here.zero == here.count:
        return "", Note("audit.zeros")
    if apart.unexplained < 1e-3 and abs(apart.slope - 1) > 1e-2:
        return "scaled", Note("audit.scaled", slope=apart.slope)
    text = [Note("audit.relative_error", error=apart.error)]
    rows: Any = np.flatnonzero(own.rows != there.rows) if len(own.rows) == len(there.rows) else []
    if 0 < len(rows) < len(own.rows):
        span = (
            tr("audit.first_row", rows=rows[0])
            if len(rows) < rows[-1] - rows[0] + 1 or len(rows) == 1
            else tr("audit.rows_span", rows=rows[0], rows2=rows[-1])
        )
        text.append(Note("audit.rows_differ", count=len(rows), count2=len(own.rows), span=span))
    return ("unrelated" if apart.error > OTHER and len(rows) == len(own.rows) else ""), text[0] if len(
        text
    ) == 1 else Note("audit.and", first=text[0], second=text[1])


def initialised(model: Any, entry: Entry, here: Any) -> str:
    """What a tensor that nobody loaded looks like."""
    std = getattr(getattr(model, "config", None), "initializer_range", None)
    if isinstance(std, float) and here.count > 64 and abs(here.std / std - 1) < 0.2 and abs(here.mean) < 0.1 * std:
        return Note("audit.init_normal", std=here.std, std2=std)
    bound = 1 / (entry.shape[-1] ** 0.5) if len(entry.shape) > 1 else 0.0
    if bound and here.count > 64 and abs(here.abs_max / bound - 1) < 0.1 and abs(here.std * 3**0.5 / bound - 1) < 0.1:
        return Note("audit.init_uniform", bound=bound)
    return Note("audit.mean_std", mean=here.mean, std=here.std)


def constant(value: float) -> str:
    return Note("audit.constant", value=value)


def masking(entry: Entry, here: Any) -> bool:
    """A mask holds -inf by design."""
    return not entry.parameter and not here.nan and not here.pos_inf


def shown(names: tuple[str, ...]) -> str:
    return " + ".join(collapse(names))


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
