"""What two runs of a model return, side by side."""

from __future__ import annotations

import math
from typing import Any

import torch

from layertap.capture.leaves import Leaf, leaves, map_tensors
from layertap.fault.book import Book
from layertap.fault.contrast import Contrast, contrast


@torch.no_grad()
def same(one: Any, other: Any) -> bool:
    """Whether two outputs are equal bit for bit (NaN equals NaN)."""
    ours = {leaf.path: leaf.tensor for leaf in leaves(one) if leaf.tensor is not None}
    theirs = {leaf.path: leaf.tensor for leaf in leaves(other) if leaf.tensor is not None}
    if ours.keys() != theirs.keys():
        return False
    return all(
        tensor.shape == theirs[path].shape and torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(theirs[path]))
        for path, tensor in ours.items()
    )


def output_error(right: Any, found: Any, book: Book | None = None) -> float:
    """The worst of a model's outputs; with the book of a run, but for tokens that have no right value."""
    wanted = {leaf.path: leaf.tensor for leaf in leaves(right) if leaf.tensor is not None}
    worst = 0.0
    for leaf in _results(found):
        if leaf.tensor is None or leaf.path not in wanted:
            continue
        value, void = leaf.tensor, book.void_in(leaf.tensor) if book is not None else None
        if void is not None and value.shape == wanted[leaf.path].shape and value.is_floating_point():
            value = torch.where(void & torch.isfinite(value), wanted[leaf.path].to(value), value)
        measured = contrast(wanted[leaf.path], value)
        worst = max(worst, size_of(measured)) if measured is not None else worst
    return worst


def _results(output: Any) -> list[Leaf]:
    """What a model returns, without what lies in an object beside it: a cache, which the next call may read."""
    plain: set[int] = set()

    def meet(tensor: torch.Tensor) -> torch.Tensor:
        plain.add(id(tensor))
        return tensor

    map_tensors(output, meet)
    found = list(leaves(output))
    return [leaf for leaf in found if id(leaf.tensor) in plain] if plain else found


def size_of(found: Contrast) -> float:
    return math.inf if found.nonfinite else max(found.error, found.mismatched)
