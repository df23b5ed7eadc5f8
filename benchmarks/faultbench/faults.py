"""What a fault is, and how one is put into a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_CAUSES = """weights config skipped scale offset sign permutation transpose shift mask clipping quantization precision
nonfinite structure cache unknown"""
CAUSES = frozenset(_CAUSES.split())
"""The closed list of the design."""

LISTED = "listed"
"""The role of faults that are planted by name only: no module has it, so draws leave them out."""

Plant = Callable[[nn.Module, str, float, torch.Generator], None]
"""(model, path, size, generator): change that module of the model in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault; `role` says which modules it can strike."""

    kind: str
    role: str
    causes: frozenset[str]
    """The causes that a careful person would accept."""
    plant: Plant
    size: float = 0.3
    """How large it is in the list of cases, in units of its own."""
    sizes: tuple[float, float] = (0.3, 0.3)
    """The range that draws choose from, by logarithm."""
    parent: bool = False
    """Whether the parent is as good an answer: a child exchanged by it, or one that it reads without calling."""

    def culprits(self, path: str) -> frozenset[str]:
        return frozenset({path, path.rpartition(".")[0]} if self.parent else {path})


def fault(kind: str, role: str, causes: str, plant: Plant, **more: Any) -> Fault:
    names = frozenset(causes.split())
    assert names <= CAUSES, names - CAUSES
    return Fault(kind=kind, role=role, causes=names, plant=plant, **more)


Around = Callable[..., Any]
"""(module, forward, *args, **kwargs) -> output, where `forward` is what the module did before."""


def rewrite(module: nn.Module, around: Around) -> None:
    """Give this one instance another forward.

    By its class, not by an attribute: a closure in `module.forward` would still run on the old module after a deepcopy.
    The class keeps its name, as a port that went wrong does.
    """
    base = type(module)

    @functools.wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(self, functools.partial(base.forward, self), *args, **kwargs)

    names = {"forward": forward, "__module__": base.__module__, "__qualname__": base.__qualname__}
    module.__class__ = type(base.__name__, (base,), names)


def on_output(change: Callable[[torch.Tensor, float, torch.Generator], torch.Tensor]) -> Plant:
    """A fault in what a module returns: its first tensor goes through `change`."""

    def plant(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
        seed = _seed(generator)

        def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            return map_first(output, lambda value: change(value, size, torch.Generator().manual_seed(seed)))

        rewrite(model.get_submodule(path), around)

    return plant


def map_first(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(output, tuple):
        return (change(output[0]), *output[1:])
    return change(output)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` inside, and what it was afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator))
