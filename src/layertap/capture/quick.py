"""The short way for a tensor of a module's call: what was found out at the first call is only checked at the next ones.

It takes plain dense tensors that lie in memory as they are. Everything else (subclasses, sparse layouts, tensors inside
`torch.func`, results of a collective that is still under way) goes the long way (`Recorder.take`), which knows
them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from layertap.capture import collectives
from layertap.capture.gathering import SMALL
from layertap.capture.keep import STATS, TENSOR
from layertap.capture.pending_record import Draft, Tally, dtype_name, plan_of
from layertap.capture.sharding import any_marked, marked
from layertap.capture.slots import Slot
from layertap.measure import kernel, native, supported
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.capture.module_tap import CallMoment, ModuleTap
    from layertap.capture.recorder import Recorder

_functorch: Any = torch._C._functorch


class QuickWay:
    """The slots of one module."""

    __slots__ = ("_recorder", "_slots", "_tap")

    def __init__(self, recorder: Recorder, tap: ModuleTap) -> None:
        self._recorder, self._tap = recorder, tap
        self._slots: dict[Any, Slot | None] = {}

    def take(self, role: str, leaf: str, tensor: torch.Tensor, moment: CallMoment, tally: Tally, asked: bool) -> bool:
        """Takes a tensor; False, and nothing done, where it must go the long way."""
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.layout is not torch.strided:
            return False
        key = (role, leaf, tensor.dtype, tensor.shape, tensor.device, asked)
        recorder = self._recorder
        slot = self._slots.get(key, _UNKNOWN)
        if slot is _UNKNOWN:
            slot = self._slot(key, role, leaf, tensor, tally, asked)
        if slot is _UNWANTED:
            return True
        if slot is None or _functorch.peek_interpreter_stack() is not None or collectives.pending():
            return False
        if tensor.is_neg() or (any_marked() and marked(tensor) is not None):
            return False
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        try:
            address = tensor.data_ptr()
            end = tensor.storage_offset() * tensor.element_size() + slot.nbytes
            if not address or end > tensor.untyped_storage().nbytes():
                return False
        except (RuntimeError, NotImplementedError):
            return False
        if recorder.strict:
            recorder.raise_failure()
        call, step, _, _, phase, _ = moment
        if step > recorder.last_step:
            recorder.begin_step(step)
        if slot.step != step or slot.phase != phase:
            slot.numbers = recorder.numbers(self._tap.path, role, leaf, step, phase)
            slot.step, slot.phase = step, phase
        call = slot.numbers.take(call)
        recorder.sink.quick(slot, tensor, address, call, recorder.next_order(), moment[1:5], tally)
        return True

    def _slot(self, key: Any, role: str, leaf: str, tensor: torch.Tensor, tally: Tally, asked: bool) -> Any:
        """What is known of such tensors; None where they must go the long way."""
        if len(self._slots) >= MOST:
            self._slots.clear()
        self._slots[key] = found = self._new(role, leaf, tensor, tally, asked)
        return found

    def _new(self, role: str, leaf: str, tensor: torch.Tensor, tally: Tally, asked: bool) -> Any:
        recorder, tap = self._recorder, self._tap
        if asked and not recorder.selection.wants(tap.path, role, leaf):
            return _UNWANTED
        device, nbytes = tensor.device, tensor.numel() * tensor.element_size()
        level = recorder.level(tap.path, role, leaf, tensor, asked)
        if (
            tap.region is not None
            or supported(tensor)
            or not nbytes
            or tensor.is_complex()
            or level not in (STATS, TENSOR)
            or device.type not in ("cpu", "cuda")
            or not native.available()
            or (nbytes > SMALL and level is TENSOR)
            or (nbytes > SMALL and device.type == "cuda" and not _has_kernel(tensor))
        ):
            return None
        draft = Draft(
            site=Site(path=tap.path, role=role, leaf=leaf),
            kind=tap.kind,
            order=0,
            step=0,
            epoch=None,
            batch=None,
            phase="",
            rank=recorder.rank,
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor.dtype),
            device=str(device),
            sharding=recorder.sharding(tap.path, role, leaf, tuple(tensor.shape)),
            asked=asked,
            tally=tally,
        )
        recorder.parts.add(draft)
        plan = plan_of(draft, level, tensor if level.keeps else None)
        return Slot(plan, tensor.dtype, nbytes, device.index if device.type == "cuda" else None)


def _has_kernel(tensor: torch.Tensor) -> bool:
    return kernel.available(tensor.device) and kernel.supported(tensor.dtype)


MOST = 4096
"""Signatures that a module's slots are kept for: shapes may change at every call."""
_UNKNOWN: Any = object()
_UNWANTED: Any = object()
