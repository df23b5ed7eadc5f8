"""Masks that differ in form, as bool, as numbers, as none at all: what they say, and who made them.

Such a mask is neither forced nor judged. But an attention that is out of line and had another mask is not the
cause: the module that made its mask is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from layertap.fault.reference_trace import ModuleCall
from layertap.measure.dense import closed
from layertap.result import Note


@dataclass(slots=True)
class Masks:
    """The masks of one run that differ in form from the reference's."""

    given: dict[ModuleCall, ModuleCall | None] = field(default_factory=dict)
    """By call, the caller."""
    other: dict[ModuleCall, tuple[ModuleCall, str]] = field(default_factory=dict)
    """Calls whose mask says something else, with its maker, and how much it is."""

    def meet(
        self,
        place: ModuleCall,
        caller: ModuleCall | None,
        leaf: str,
        right: torch.Tensor | None,
        found: torch.Tensor | None,
        module: nn.Module,
    ) -> None:
        """Looks at a mask that arrives at a module, beside the reference's."""
        given = found if right is None else right
        if given is None or (right is not None and found is not None and _alike(right, found)):
            return
        self.given[place] = caller
        causal = getattr(module, "is_causal", None)
        if causal is None and (right is None or found is None) and _causal_at_most(given):
            return  # only attention says whether it looks ahead without a mask
        written_out = getattr(getattr(module, "config", None), "_attn_implementation", "") == "eager"
        ours = _closed(right, given, bool(causal))
        theirs = _closed(found, given, bool(causal) and not written_out)
        try:
            apart = (ours != theirs).double().mean().item()
        except RuntimeError:  # of shapes that do not go together
            return
        while caller is not None and caller in self.given:
            caller = self.given[caller]
        if apart and caller is not None:
            self.other[place] = caller, Note("cause.mask_share", apart=apart, leaf=leaf)


def _causal_at_most(mask: torch.Tensor) -> bool:
    """Whether a mask closes nothing but what comes later: that a module may do by itself where it is given none."""
    if mask.shape[-1] != mask.shape[-2]:
        return False
    return not bool(_closed(mask, mask, False).tril().any())


def _alike(right: torch.Tensor, found: torch.Tensor) -> bool:
    return right.shape == found.shape and right.is_floating_point() == found.is_floating_point()


def _closed(mask: torch.Tensor | None, like: torch.Tensor, causal: bool) -> torch.Tensor:
    """Which keys each query does not see."""
    if mask is None:
        none = torch.zeros(like.shape[-2:], dtype=torch.bool)
        return ~none.logical_not().tril() if causal and none.shape[0] == none.shape[1] else none
    if mask.is_floating_point():
        return closed(mask).cpu()
    return (mask == 0).cpu()
