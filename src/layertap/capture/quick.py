"""What the short way (tap.c) needs of a module's tensors: worked out at the first call, only checked at the next ones.

It takes plain dense tensors that lie in memory as they are. Everything else (subclasses, sparse layouts, tensors inside
`torch.func`, results of a collective that is still under way) goes the long way (`Recorder.take`), which takes
them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from layertap.capture import short_way, slots
from layertap.capture.gathering import MIDDLE, SMALL
from layertap.capture.keep import STATS, TENSOR, Level
from layertap.capture.pending_record import with_kept
from layertap.capture.site_counts import SiteCounts
from layertap.capture.slots import Slot
from layertap.measure import kernel, supported
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.capture.module_tap import CallMoment, ModuleTap
    from layertap.capture.recorder import Recorder


class QuickWay:
    """The slots of one module."""

    __slots__ = ("_latest", "_recorder", "_slots", "_tap")

    def __init__(self, recorder: Recorder, tap: ModuleTap) -> None:
        self._recorder, self._tap = recorder, tap
        self._slots: dict[Any, Slot | None] = {}
        self._latest: dict[tuple[str, str, bool], Slot] = {}
        """By role, leaf and whether it was asked for: mostly the next tensor is like the last one."""

    def take(
        self, role: str, leaf: str, tensor: torch.Tensor, moment: CallMoment, counts: SiteCounts, asked: bool
    ) -> bool:
        """Takes a tensor; False, and nothing done, where it must go the long way."""
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.layout is not torch.strided:
            return False
        recorder = self._recorder
        try:
            slot = self._latest.get((role, leaf, asked))
            if slot is None or not short_way.take(recorder, slot, tensor, moment, counts):
                slot = self._slot(role, leaf, tensor, asked)
                if slot is None or slot is _UNWANTED:
                    return slot is not None
                if not short_way.take(recorder, slot, tensor, moment, counts):
                    return False
        except Exception as error:  # noqa: BLE001 - as on the long way
            recorder.skipped(self._tap.path, counts, error)
            return True
        if not asked:
            recorder.on_model_input(self._tap, tensor, moment)
        return True

    def _slot(self, role: str, leaf: str, tensor: torch.Tensor, asked: bool) -> Any:
        """What is known of such tensors; None where they must go the long way."""
        key = (role, leaf, tensor.dtype, tensor.shape, tensor.device, asked)
        found = self._slots.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            if len(self._slots) >= MOST:
                self._slots.clear()
            like = self._latest.get((role, leaf, asked))
            if like is not None and like.dtype is tensor.dtype and like.device == tensor.device:
                found = self._resized(like, tensor)
            if found is _UNKNOWN:
                found = self._new(role, leaf, tensor, asked)
            self._slots[key] = found
        if isinstance(found, Slot):
            self._latest[role, leaf, asked] = found
            if role == "output" and not leaf:
                self._tap.slot = found
        return found

    def _resized(self, like: Slot, tensor: torch.Tensor) -> Any:
        """What is known of a tensor from one of another shape: a cache has a new shape at every step."""
        plan, shape = like.plan, tensor.shape
        count = shape.numel()
        level = self._recorder.level(plan, tensor)
        if level.name != plan.kept or not _fits_short_way(tensor, count * tensor.element_size(), level):
            return _UNKNOWN
        changed = plan.resized(tuple(shape), count, count * tensor.element_size())
        return Slot(changed, shape, like.dtype, like.device, like.numbers)

    def _new(self, role: str, leaf: str, tensor: torch.Tensor, asked: bool) -> Any:
        recorder, tap = self._recorder, self._tap
        if asked and not recorder.selection.wants(tap.path, role, leaf):
            return _UNWANTED
        device, nbytes = tensor.device, tensor.numel() * tensor.element_size()
        plan = recorder.record_plan(tap, role, leaf, tensor, asked=asked)
        level = recorder.level(plan, tensor)
        if (
            tap.region is not None
            or (
                recorder.stated is not None
                and recorder.stated.of(Site(path=tap.path, role=role, leaf=leaf)) is not None
            )
            or supported(tensor)
            or tensor.is_complex()
            or device.type not in ("cpu", "cuda")
            or not short_way.available()
            or not _fits_short_way(tensor, nbytes, level)
        ):
            return None
        numbers = recorder.numbers(tap.path, role, leaf)
        return Slot(with_kept(plan, level, tensor), tensor.shape, tensor.dtype, device, numbers)


def _fits_short_way(tensor: torch.Tensor, nbytes: int, level: Level) -> bool:
    """Whether a tensor of so many bytes can go the short way."""
    if not nbytes or level not in (STATS, TENSOR):
        return False
    if slots.is_of_devices(tensor.device):
        if not short_way.copies_on_devices():
            return False
        return nbytes <= (MIDDLE if level is TENSOR else SMALL) or (level is STATS and _has_kernel(tensor))
    return nbytes <= SMALL or level is STATS


def _has_kernel(tensor: torch.Tensor) -> bool:
    return kernel.available(tensor.device) and kernel.supported(tensor.dtype)


MOST = 4096
"""Signatures that a module's slots are kept for: shapes may change at every call."""
_UNKNOWN: Any = object()
_UNWANTED: Any = object()
