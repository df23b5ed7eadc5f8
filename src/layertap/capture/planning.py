"""What a recording would take, before it takes anything: one run of the model in which only shapes are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, leaves, parts
from layertap.select import Selection, select
from layertap.site import Site


def plan(
    model: nn.Module, call: Callable[[], Any], *, sites: Any = None, exclude: Any = None, what: Any = ("output",)
) -> Selection:
    """The selection with the bytes that each site would keep, found by one `call()` of the model.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3))
    >>> print(plan(model, lambda: model(torch.ones(1, 2)), sites="0"))
    1 of 2 modules of Sequential
    0      Linear  output  12 B
    total                  12 B
    """
    selection = select(model, sites, exclude=exclude, what=what)
    found: dict[str, int] = {}
    modules = dict(model.named_modules())
    watchers = {modules[choice.path]: _Sizes(selection, choice.path, found) for choice in selection}
    taps.attach(watchers)
    try:
        call()
    finally:
        taps.detach(watchers)
    return selection.with_bytes(found)


class _Sizes:
    """A tap that reads sizes and touches no data."""

    def __init__(self, selection: Selection, path: str, found: dict[str, int]) -> None:
        self._selection, self._path, self._found = selection, path, found
        self._calls = 0

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, int]:
        self._add("input", call_leaves(args, kwargs), self._calls)
        self._calls += 1
        return args, kwargs, self._calls - 1

    def leave(self, token: int, output: Any) -> Any:
        self._add("output", leaves(output), token)
        return output

    def _add(self, role: str, found: Iterator[Leaf], call: int) -> None:
        for leaf in found:
            if leaf.tensor is None or not self._selection.wants(self._path, role, leaf.path):
                continue
            nbytes = sum(part.tensor.numel() * part.tensor.element_size() for part in parts(leaf.tensor, wait=False))
            self._found[str(Site(path=self._path, role=role, leaf=leaf.path, call=call))] = nbytes
