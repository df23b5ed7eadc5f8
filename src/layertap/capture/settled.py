"""A tap that hands values on complete: where layertap itself runs the model, nothing need stay in flight."""

from __future__ import annotations

from typing import Any

import torch

from layertap.capture import collectives, taps
from layertap.capture.leaves import leaves, map_tensors


class Settled:
    """Stands before a tap that exchanges values: what a collective still writes becomes a plain tensor first."""

    def __init__(self, tap: taps.Tap) -> None:
        self._tap = tap

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        args, kwargs = settled((args, kwargs))
        return self._tap.enter(args, kwargs, direct)

    def leave(self, token: Any, output: Any) -> Any:
        return self._tap.leave(token, settled(output))


def settled(value: Any) -> Any:
    """The value with every tensor in it complete; the very same value where none is in flight."""
    if any(leaf.tensor is not None and collectives.in_flight(type(leaf.tensor)) for leaf in leaves(value)):
        return map_tensors(value, _complete)
    return value


def _complete(tensor: torch.Tensor) -> torch.Tensor:
    # An operation, and not the tensor inside: that one has no gradient.
    return tensor.clone() if collectives.in_flight(type(tensor)) else tensor
