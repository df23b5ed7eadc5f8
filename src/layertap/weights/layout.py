"""How the values of a tensor lie: which side holds its matrices transposed, and what a square one leaves open.

A square matrix looks the same transposed. Whether it should be is shown by those that are not square: first of the same
module, then of the same kind of module. A transposed square is right only where they are transposed, and a straight one
is wrong where all of them are: an error that import and export both make is found in the model between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations

import torch

from layertap.result import Note
from layertap.weights.compose import Composition, RowRun
from layertap.weights.entries import Entry, Weights
from layertap.weights.hints import kind_of
from layertap.weights.sides import Relation

TRIED = 1 << 26
"""Tensors of more values are not tried in other orders of their axes."""


def square(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and shape[-1] == shape[-2]


def conventions(
    model: Weights, other: Weights, found: Mapping[str, Relation], made: Mapping[str, Composition | None]
) -> Callable[[Entry], str]:
    """What the matrices that are not square show for a tensor: `straight`, `turned`, or nothing."""
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for name, entry in model.entries.items():
        if len(entry.shape) < 2 or square(entry.shape):
            continue
        composed, relation = made.get(name), found.get(name)
        if composed is not None:
            way = "turned" if composed.transposed else "straight"
        elif relation is not None and relation.others and relation.status in ("exact", "cast", "converted"):
            way = "turned" if relation.rule == "transposed" else "straight"
        else:
            continue
        for group in _groups(model, name):
            seen[group].add(way)

    def shown(entry: Entry) -> str:
        for group in _groups(model, entry.name):
            if len(seen[group]) == 1:
                return next(iter(seen[group]))
            if seen[group]:
                return ""  # some are and some are not: nothing follows for this one
        return ""

    return shown


def straight_squares(model: Weights, other: Weights, found: Mapping[str, Relation]) -> dict[str, Note]:
    """Square matrices that are as they were, where all others of their kind are transposed; with the reason."""
    shown = conventions(model, other, found, {})
    wrong = {}
    for name, relation in found.items():
        entry = model.entries[name]
        plain = relation.status in ("exact", "cast") and relation.rule in ("same", "renamed", "cast")
        open_ = plain and square(entry.shape) and entry.parameter and entry.readable
        if open_ and shown(entry) == "turned" and not _symmetric(entry):
            wrong[name] = Note("audit.straight_square")
    return wrong


def partial_shards(
    model: Weights,
    found: Mapping[str, Relation],
    made: Mapping[str, Composition | None],
    zero_rows: Callable[[str, bool, int, int], bool],
) -> dict[str, Relation]:
    """Parts of tensors of which the rest is nowhere: right for one of several ranks, where most matrices are cut."""
    held: defaultdict[str, list[tuple[str, RowRun]]] = defaultdict(list)
    for name, relation in found.items():
        composed = made.get(name)
        if relation.rule == "shard" and relation.status == "converted" and composed is not None:
            held[composed.runs[0].owner].append((name, composed.runs[0]))
    matrices = {kind_of(name) for name, entry in model.entries.items() if len(entry.shape) > 1 and name in found}
    cut = {kind_of(name) for parts in held.values() for name, _ in parts}
    if 2 * len(cut & matrices) >= len(matrices) > 0:
        return {}
    partial = {}
    for owner, parts in held.items():
        if sum(run.length for _, run in parts) >= parts[0][1].total:
            continue  # split among several tensors
        for name, run in parts:
            rest = [(0, run.start), (run.start + run.length, run.total)]
            padding = all(zero_rows(owner, run.across, *span) for span in rest)
            note = Note("audit.unpadded" if padding else "audit.partial", first=found[name].detail)
            partial[name] = replace(found[name], detail=note, partial=not padding)
    return partial


def _groups(model: Weights, name: str) -> list[str]:
    """From the nearest to the widest: the modules around it, then its class, or where there is none, all layers."""
    kind = kind_of(name)
    above = kind.rpartition(".")[0].rpartition(".")[0]
    if model.model is not None:
        try:
            cls = type(model.model.get_submodule(name.rpartition(".")[0])).__name__
        except AttributeError:
            cls = ""
        return [f"{above}|{cls}", f"*|{cls}"]
    return [f"{above}|", f"*|{'#' in kind}"]


def _symmetric(entry: Entry) -> bool:
    values = entry.read()
    return bool(torch.equal(values, values.transpose(-1, -2)))


def refines(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether one shape is the other with axes split: the order of the values then means the same.

    >>> refines((8, 4, 5), (32, 5)), refines((7,), (1, 7, 1)), refines((4, 8), (8, 4))
    (True, True, False)
    """
    a, b = ([size for size in shape if size != 1] for shape in (one, two))
    return _splits(a, b) or _splits(b, a)


def _splits(fine: list[int], coarse: list[int]) -> bool:
    at = 0
    for size in coarse:
        held = 1
        while held < size and at < len(fine):
            held *= fine[at]
            at += 1
        if held != size:
            return False
    return at == len(fine)


def axes_permuted(entry: Entry, source: Entry) -> Note | None:
    """By which order of the other side's axes it becomes this tensor; None where by none."""
    if len(entry.shape) not in (3, 4, 5) or sorted(entry.shape) != sorted(source.shape) or entry.numel > TRIED:
        return None
    if not entry.readable or not source.readable or entry.dtype != source.dtype:
        return None
    here, there = entry.read(), source.read()
    for order in permutations(range(len(entry.shape))):
        if list(order) != sorted(order) and torch.equal(there.permute(order), here):
            return Note("audit.axes", order=str(order), shape=str(source.shape))
    return None
