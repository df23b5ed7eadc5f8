"""One tensor in the place of another, in whatever value it lies, with its gradient passed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from layertap.capture import taps
from layertap.capture.leaves import Leaf, call_leaves, map_tensors
from layertap.fault.tensor_cache import TensorCache

Nudge = Callable[[torch.Tensor], torch.Tensor]
Swaps = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By its identity, a tensor and what replaces it."""


class _Gate(torch.autograd.Function):
    """Hands a value on, or another in its place, and sees its gradient come back."""

    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, passage: _Passage) -> torch.Tensor:
        ctx.passage = passage
        return found.clone() if passage.right is None else passage.right

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return ctx.passage.back(grad), None


@dataclass(frozen=True, slots=True)
class _Passage:
    right: torch.Tensor | None
    back: Nudge


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str})
"""What contains nothing else. Most calls are given nothing but these."""
BACK = {"input": "grad_input", "output": "grad_output"}


def is_plain(args: taps.Args, kwargs: taps.Kwargs) -> bool:
    """Whether a call is given tensors and numbers alone: then they are all there is to look at."""
    return _PLAIN.issuperset(map(type, args)) and (not kwargs or _PLAIN.issuperset(map(type, kwargs.values())))


def arriving(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> list[Leaf]:
    """The tensors of a call under the names of the parameters."""
    given = {names[i] if i < len(names) else str(i): value for i, value in enumerate(args)}
    given |= kwargs
    if is_plain(args, kwargs):
        return [Leaf(name, value) for name, value in given.items() if isinstance(value, torch.Tensor)]
    return [leaf for leaf in call_leaves((), given) if leaf.tensor is not None]


def in_objects(names: tuple[str, ...], args: taps.Args, kwargs: taps.Kwargs) -> list[Leaf]:
    """Of the tensors of a call, those that lie in objects: a module may have written there."""
    if is_plain(args, kwargs):
        return []
    plain = {id(tensor) for tensor in tensors_in(args, kwargs)}
    return [leaf for leaf in arriving(names, args, kwargs) if id(leaf.tensor) not in plain]


def tensors_in(args: taps.Args, kwargs: taps.Kwargs) -> list[torch.Tensor]:
    """The tensors of a call that can be exchanged."""
    found: list[torch.Tensor] = []
    if is_plain(args, kwargs):
        return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]

    def meet(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors((args, kwargs), meet)
    return found


def flows(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def as_given(right: torch.Tensor, found: torch.Tensor, copied: bool = True) -> torch.Tensor | None:
    """The reference's value in the place of another; None where it cannot stand there.

    It is a copy, since the model may write into it, or else the very tensor where its form is right.
    """
    if right.is_nested != found.is_nested or (not right.is_nested and right.shape != found.shape):
        return None
    if found.layout == torch.jagged:  # its rows are known by their offsets, which must stay the same tensor
        return torch.nested.nested_tensor_from_jagged(right.values().to(found.device, found.dtype), found.offsets())  # type: ignore[attr-defined]
    if right.is_nested and not torch.equal(right._nested_tensor_size(), found._nested_tensor_size()):
        return None
    return right.to(found.device, found.dtype, copy=copied)


def gate(found: torch.Tensor, right: torch.Tensor | None, back: Nudge) -> torch.Tensor:
    passed: torch.Tensor = _Gate.apply(found, _Passage(right, back))  # type: ignore[no-untyped-call]
    return passed


def swap(value: Any, swaps: Swaps, cache: TensorCache | None = None) -> Any:
    """The same value with other tensors in it.

    A tensor that is in an object, a cache, cannot be exchanged; with a `cache` it is written into instead.
    """
    if not swaps:
        return value
    met: set[int] = set()

    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        met.add(id(tensor))
        return swaps[id(tensor)][1] if id(tensor) in swaps else tensor

    changed = map_tensors(value, exchange)
    for old, new in (swaps[key] for key in swaps.keys() - met if cache is not None):
        if not flows(old):
            with torch.no_grad():
                old.copy_(new)
            slot = cache.slot_of(new) if cache is not None else None
            if cache is not None and slot is not None:
                cache.remember(old, slot)
    return changed
