"""What is entered in the place of right values to see what rounding does: each value moved a little, once."""

from __future__ import annotations

from typing import NamedTuple

import torch

from layertap.fault.model_runner import version
from layertap.fault.tensor_cache import CachedTensor
from layertap.fault.tensor_swap import Nudge

MOVED = 64 << 20
"""Bytes of moved values that are held for the next module that is given the same."""


class _Moved(NamedTuple):
    """What was entered in the place of a tensor, or of a slot's value, in a form."""

    of: torch.Tensor | CachedTensor
    form: tuple[torch.dtype, torch.device, torch.Size]
    when: int
    tensor: torch.Tensor
    version: int


class MovedValues:
    """The values that were moved lately in one run: modules in and beside each other are given the same one."""

    def __init__(self) -> None:
        self._lately: dict[int, _Moved] = {}

    def of(
        self, given: torch.Tensor, nudge: Nudge, once: bool = True, slot: CachedTensor | None = None
    ) -> torch.Tensor:
        """A value, which is that of a slot if there is one, moved; if that is to be so (`once`), the same tensor as
        before, unless somebody has written into it."""
        if given.is_nested or given.layout != torch.strided:  # a nested one has no shape; `one_ulp` leaves both alone
            return self._anew(given, nudge, slot)
        of: torch.Tensor | CachedTensor = given if slot is None else slot
        form = given.dtype, given.device, given.shape
        once &= slot is None or tuple(given.shape) == slot.shape  # in another shape it may lie in another order
        when = version(given) if slot is None else 0
        known = self._lately.get(id(of)) if once else None
        same = known is not None and known.of is of and known.form == form and known.when == when
        if known is not None and same and known.version == version(known.tensor):
            return known.tensor
        moved = self._anew(given, nudge, slot)
        if once and moved.nbytes <= MOVED and not given.is_inference() and not moved.is_inference():
            self._make_room(moved.nbytes, id(of))
            self._lately[id(of)] = _Moved(of, form, when, moved, version(moved))
        return moved

    @staticmethod
    def _anew(given: torch.Tensor, nudge: Nudge, slot: CachedTensor | None) -> torch.Tensor:
        plain = given.detach()
        moved = nudge(plain)
        return moved.clone() if moved is plain and slot is not None else moved  # the trace's own stays as it is

    def _make_room(self, size: int, instead: int) -> None:
        self._lately.pop(instead, None)
        while self._lately and size + sum(one.tensor.nbytes for one in self._lately.values()) > MOVED:
            del self._lately[next(iter(self._lately))]
