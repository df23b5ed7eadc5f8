"""The nouns of a replay: the reference's trace, and what a run against it showed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from layertap.fault.tensor_cache import CachedTensor, TensorCache
from layertap.fault.value_layouts import ValueLayouts, masklike, maybe_mask
from layertap.measure.dense import closed, dense
from layertap.measure.pair.difference import Difference
from layertap.site import Site

ModuleCall = tuple[str, int]
"""A module's path in the reference, and which call of it."""
CallEnd = tuple[str, int, str]
"""The same, and a role: what goes in, what comes out, or a gradient of either."""


def call_of(site: Site) -> ModuleCall:
    return site.path, site.call


def end_of(site: Site) -> CallEnd:
    return site.path, site.call, site.role


@dataclass(slots=True)
class ReferenceTrace:
    """All that went in and out of the reference's modules, forward and back."""

    cache: TensorCache
    slots: dict[Site, CachedTensor] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    parameters: set[tuple[str, str]] = field(default_factory=set)
    """The reference's, each by its module's path and its name."""
    casts: dict[str, torch.dtype | None] = field(default_factory=dict)
    """The dtype of autocast when a module was entered."""
    output: Any = None
    void: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)
    """By batch and length, the tokens that see no key: a softmax over nothing has no right value."""

    layouts: ValueLayouts = field(default_factory=ValueLayouts)
    """How values of the reference lie in the candidate, where that was found."""
    _leaves: dict[CallEnd, list[str]] = field(default_factory=dict)
    _sites: dict[tuple[str, int, str, str], Site] = field(default_factory=dict)
    _masks: dict[ModuleCall, dict[str, CachedTensor]] = field(default_factory=dict)

    def site(self, path: str, call: int, role: str, leaf: str) -> Site:
        """The site of a value: all runs have the same object, as each meets some hundreds."""
        key = path, call, role, leaf
        known = self._sites.get(key)
        if known is None:
            known = self._sites[key] = Site(path=path, call=call, role=role, leaf=leaf)
        return known

    def leaves(self, path: str, call: int, end: str) -> list[str]:
        """The leaves that one end of one call has."""
        if not self._leaves:
            for key in self.slots:
                self._leaves.setdefault(end_of(key), []).append(key.leaf)
        return self._leaves.get((path, call, end), [])

    def masks_at(self, path: str, call: int) -> dict[str, torch.Tensor]:
        """The masks that a call is given, by leaf: they are looked for once."""
        known = self._masks.get((path, call))
        if known is None:
            slots = {
                leaf: self.slots[Site(path=path, call=call, role="input", leaf=leaf)]
                for leaf in self.leaves(path, call, "input")
            }
            slots = {leaf: slot for leaf, slot in slots.items() if maybe_mask(leaf, slot)}
            known = {leaf: slot for leaf, slot in slots.items() if dense(one := slot.get()) is one and masklike(one)}
            self._masks[path, call] = known
        return {leaf: slot.get() for leaf, slot in known.items()}

    def void_in(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Where such tokens lie in a tensor of that batch and length; None where there are none."""
        plain = self.void and tensor.ndim > 2 and not tensor.is_nested
        void = self.void.get(tuple(tensor.shape[:2])) if plain else None
        return None if void is None else void.to(tensor.device).reshape(*void.shape, *[1] * (tensor.ndim - 2))

    def close_masks(self) -> int:
        """Looks for tokens that see no key in the masks that were written down, and counts them."""
        given = {id(slot): slot for site, slot in self.slots.items() if site.role == "input" and slot.ndim == 4}
        for slot in given.values():
            mask = slot.get()
            if masklike(mask):
                blind = (~mask if mask.dtype == torch.bool else closed(mask)).all(-1).all(1)
                if blind.any():
                    shape = tuple(blind.shape)
                    self.void[shape] = self.void.get(shape, torch.zeros_like(blind)) | blind
        return max((int(void.sum()) for void in self.void.values()), default=0)

    def at(self, path: str, call: int, end: str) -> dict[str, torch.Tensor]:
        """The tensors of one end of one call, by leaf."""
        return {key.leaf: slot.get() for key, slot in self.slots.items() if end_of(key) == (path, call, end)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One measurement of a run against the trace."""

    site: Site
    caller: ModuleCall | None
    """The call of a module that this one was made from; None for the user's own."""
    found: Difference
    by_rank: tuple[tuple[int, float], ...] = ()
    """The error of each rank's part, where the candidate runs on several."""
    beside: Difference | None = None
    """The same value against the reference's in the candidate's dtype, where that was kept: what is no rounding of
    that dtype. Equal arithmetic on equal weights gives equal bits."""

    @property
    def owner(self) -> ModuleCall | None:
        """Whose doing it is: a value that arrives is the caller's, one that leaves is the module's own."""
        return self.caller if self.site.role in ("input", "grad_output") else call_of(self.site)


@dataclass(slots=True)
class ReplayResult:
    """A run against the trace: what was measured, and what could not be."""

    output: Any = None
    """What the model returned; it is let go when it has been measured."""
    apart: float | None = None
    """How far that is from what the reference returned, where it has been measured."""
    events: list[Event] = field(default_factory=list)
    unforced: list[Site] = field(default_factory=list)
    """Values that differ in form: not forced, not judged."""
    calls: Counter[str] = field(default_factory=Counter)
    casts: dict[str, torch.dtype | None] = field(default_factory=dict)
    masks: dict[ModuleCall, tuple[ModuleCall, str]] = field(default_factory=dict)
    """Calls of attention whose mask says something else than the reference's, with its maker, and how much."""
    kept: dict[Site, torch.Tensor] = field(default_factory=dict)
    """The run's own tensors at the places that were asked for."""
    held: dict[tuple[Site, int], torch.Tensor] = field(default_factory=dict)
    """The same by rank."""
    arguments: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What the modules that were asked for were called with, after forcing."""
