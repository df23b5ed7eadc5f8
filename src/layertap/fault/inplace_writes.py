"""Who wrote into a tensor that was only given to it: what is wrong with it then is not its caller's doing."""

from __future__ import annotations

import weakref

import torch

from layertap.fault.model_runner import version
from layertap.fault.reference_trace import ModuleCall


class InplaceWrites:
    """Tensors that calls of a run were given and wrote into."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, ModuleCall]] = {}

    def note(self, given: list[tuple[torch.Tensor, int]], place: ModuleCall) -> None:
        """`given` are the tensors of a call that is over, each with its version before."""
        for tensor, before in given:
            if version(tensor) != before and self.writer(tensor) is None:  # of calls within calls, the innermost
                self._known[id(tensor)] = weakref.ref(tensor), version(tensor), place

    def writer(self, tensor: torch.Tensor) -> ModuleCall | None:
        """The call that wrote into a tensor last."""
        reference, when, place = self._known.get(id(tensor), (None, 0, None))
        return place if reference is not None and reference() is tensor and when == version(tensor) else None
