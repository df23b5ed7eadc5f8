"""What was found of a tensor, in words and numbers: the rule by which it was made, or how it differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from layertap.result import Note
from layertap.select.collapse import collapse
from layertap.site import Statistics
from layertap.weights.compose import Composition
from layertap.weights.differences import Differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.hashes import Hashes

EXACT, SMALL = 1e-3, 0.05
"""What of a tensor a multiple of another may leave unexplained: rounding, and rounding to eight bits."""
OTHER = 0.5
"""A relative error above which two tensors are other weights, and not the same ones changed."""


def rule_of(entry: Entry, made: Composition, other: Weights) -> tuple[str, str]:
    """(Rule, evidence)."""
    runs, owners = made.runs, made.owners
    if len(owners) == 1 and len(runs) == 1:
        run = runs[0]
        if not run.whole:
            span = {"first": run.start, "last": run.start + run.length - 1, "total": run.total}
            return "shard", Note("audit.columns" if run.across else "audit.rows", **span)
        if made.transposed:
            return "transposed", ""
        same = other.entries[owners[0]].shape == entry.shape
        return ("same" if owners[0] == entry.name else "renamed", "") if same else ("reshaped", "")
    turned = "_turned" if made.transposed else ""
    whole = all(run.whole for run in runs)
    if whole and len(entry.shape) > 2:
        return "stacked", Note(f"audit.parts{turned}", count=len(owners))
    if whole:
        return "concatenated", Note(f"audit.parts{turned}", count=len(owners))
    if len(owners) == 1:
        return "rows permuted", Note("audit.runs", count=len(runs))
    return "interleaved", Note(f"audit.woven{turned}", count=len(runs), parts=len(owners))


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


def head_sizes(config: dict[str, Any]) -> list[int]:
    """How wide an attention head is, by what a configuration states."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    split = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    return [size for size in (config.get("head_dim"), split) if isinstance(size, int)]


def rope_order(count: int, size: int) -> Any:
    """Rows of heads of a size, from one rope layout to the other; None where they are not whole heads."""
    if size <= 2 or size % 2 or count % size:
        return None
    return np.arange(count).reshape(-1, size // 2, 2).transpose(0, 2, 1).reshape(-1)


def reordered(here: Any, there: Any, config: dict[str, Any]) -> tuple[bool, Note] | None:
    """(Whether it is a rope layout, how) where both have the same rows in another order."""
    if len(here) != len(there) or len(here) < 2 or not np.array_equal(np.sort(here), np.sort(there)):
        return None
    if len(np.unique(here)) == len(here):
        for size in sorted({*head_sizes(config), *(2**power for power in range(2, 9))}):
            rows = rope_order(len(here), size)
            if rows is None:
                continue
            if np.array_equal(here, there[rows]) or np.array_equal(here[rows], there):
                return True, Note("audit.rope", size=size)
    moved = np.flatnonzero(here != there)
    return False, Note("audit.rows_moved", count=len(moved), total=len(here), first=int(moved[0]))


def changed(
    entry: Entry, source: Entry, apart: Differences, own: Hashes, there: Hashes, here: Statistics
) -> tuple[str, Note]:
    """(Rule, evidence) for values that no rule explains."""
    if here.zero == here.count:
        return "", Note("audit.zeros")
    small = min(entry.dtype.itemsize, source.dtype.itemsize) == 1
    if apart.unexplained < (SMALL if small else EXACT) and abs(apart.slope - 1) > 1e-2:
        return "scaled", Note("audit.multiplied", by=apart.slope)
    if small and not source.dtype.is_floating_point and entry.dtype.is_floating_point and apart.error > OTHER:
        return "scaled", Note("audit.no_scales")
    alike = len(own.rows) == len(there.rows)
    rows: Any = np.flatnonzero(own.rows != there.rows) if alike else []
    known: dict[str, Any] = {"error": apart.error, "count": len(rows), "total": len(own.rows)}
    if 0 < len(rows) < len(own.rows):
        alone = len(rows) < rows[-1] - rows[0] + 1 or len(rows) == 1
        note = Note(
            "audit.error_first" if alone else "audit.error_rows", **known, first=int(rows[0]), last=int(rows[-1])
        )
    else:
        note = Note("audit.error", error=apart.error)
    return ("unrelated" if apart.error > OTHER and len(rows) == len(own.rows) else ""), note


def initialised(model: Any, entry: Entry, here: Statistics) -> Note:
    """What a tensor that was not loaded looks like."""
    std = getattr(getattr(model, "config", None), "initializer_range", None)
    if isinstance(std, float) and here.count > 64 and abs(here.std / std - 1) < 0.2 and abs(here.mean) < 0.1 * std:
        return Note("audit.fresh_normal", std=here.std, range=std)
    bound = 1 / (entry.shape[-1] ** 0.5) if len(entry.shape) > 1 else 0.0
    if bound and here.count > 64 and abs(here.abs_max / bound - 1) < 0.1 and abs(here.std * 3**0.5 / bound - 1) < 0.1:
        return Note("audit.fresh_uniform", bound=bound)
    if here.count > 1 and here.min == here.max and here.min in (0.0, 1.0):
        return Note("audit.constant", value=here.min)
    return Note("audit.moments", mean=here.mean, std=here.std)


def masking(entry: Entry, here: Any) -> bool:
    """A mask contains -inf by design."""
    return not entry.parameter and not here.nan and not here.pos_inf


def shown(names: tuple[str, ...]) -> str:
    return " + ".join(collapse(names))


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
