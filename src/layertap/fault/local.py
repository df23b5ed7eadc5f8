"""A tap that hands on this rank's plain tensors: taps that measure and exchange values know nothing of distribution.

What a collective still writes is complete, a DTensor is its local part; what the tap returns in its place goes on as a
DTensor of the same layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from layertap.capture import collectives, taps
from layertap.capture.leaves import leaves, map_tensors
from layertap.fault.places import layout_of

_Wrap = Callable[[torch.Tensor], torch.Tensor]


class Local:
    """Stands before such a tap."""

    def __init__(self, tap: taps.Tap) -> None:
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tap, name)

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        (args, kwargs), wraps = _unwrapped((args, kwargs))
        args, kwargs, token = self._tap.enter(args, kwargs, direct)
        return (*_wrapped((args, kwargs), wraps), token)

    def leave(self, token: Any, output: Any) -> Any:
        output, wraps = _unwrapped(output)
        return _wrapped(self._tap.leave(token, output), wraps)


def _unwrapped(value: Any) -> tuple[Any, list[_Wrap]]:
    """The value with plain tensors, and what makes each of them what it was; as it is where all are plain."""
    met = [leaf.tensor for leaf in leaves(value) if leaf.tensor is not None]
    if not any(collectives.in_flight(type(tensor)) or hasattr(tensor, "placements") for tensor in met):
        return value, []
    wraps: list[_Wrap] = []

    def unwrap(tensor: Any) -> torch.Tensor:
        wraps.append(_wrap_of(tensor))
        return unwrapped(tensor)

    return map_tensors(value, unwrap), wraps


def unwrapped(tensor: Any) -> torch.Tensor:
    """This rank's plain tensor, complete; of a DTensor it knows the layout (`places.layout_of`)."""
    plain: Any = tensor.to_local() if hasattr(tensor, "placements") else tensor
    # An operation, and not the tensor inside: that one has no gradient.
    plain = plain.clone() if collectives.in_flight(type(plain)) else plain
    if hasattr(tensor, "placements"):
        inner = getattr(tensor, "_local_tensor", None)
        plain = inner.view_as(inner) if inner is not None and plain is inner else plain  # the DTensor keeps its own
        plain._layertap_layout = layout_of(tensor)
    found: torch.Tensor = plain
    return found


def _wrapped(value: Any, wraps: list[_Wrap]) -> Any:
    remaining = iter(wraps)

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        return next(remaining)(tensor)  # in the order in which they were met

    return map_tensors(value, wrap) if wraps else value


def _wrap_of(given: Any) -> _Wrap:
    if not hasattr(given, "placements"):
        return lambda tensor: tensor
    mesh, placements, shape, stride = given.device_mesh, given.placements, given.shape, given.stride()
    make = type(given).from_local
    return lambda tensor: make(tensor, mesh, placements, run_check=False, shape=shape, stride=stride)
