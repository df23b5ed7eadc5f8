"""What does not change between the calls of a module, worked out once for each signature of a tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from layertap.capture import short_way
from layertap.capture.gathering import LARGE, MIDDLE, SMALL
from layertap.measure import native
from layertap.store.plans import Plans, RecordPlan


class CallNumbers(short_way.Numbers):
    """The numbers of calls that are taken of one site: a second backward pass gives a call a second gradient.

    >>> numbers = CallNumbers()
    >>> [numbers.take(0, "eval", call) for call in (0, 1, 1, 5, 0)]
    [0, 1, 2, 5, 6]
    >>> numbers.take(1, "eval", 0), numbers.take(1, "eval", 0), numbers.take(0, "eval", 0)
    (0, 1, 7)
    """

    def __init__(self) -> None:
        # `end`: the number after all that are taken. `others`: those that are, where some below the end are free.
        self.step, self.phase, self.end, self.others = -1, "", 0, None
        self._before: tuple[_Numbered, ...] = ()
        """Of the moments before: what arrives of an older one is numbered anew."""
        self._newest = -1

    def take(self, step: int, phase: str, call: int) -> int:
        """The number itself if it is free in this step and phase, else one after all that are taken."""
        if step != self.step or phase != self.phase:
            self._turn(step, phase)
        end = self.end
        if call == end and self.others is None:
            self.end = end + 1
            return call
        if self.others is None:
            self.others = set(range(end))
        if call in self.others:
            call = end
        self.others.add(call)
        self.end = max(end, call + 1)
        return call

    def _turn(self, step: int, phase: str) -> None:
        before = self._before
        self._before = ((self.step, self.phase, self.end, self.others), *before[:2])
        self.step, self.phase, self.end, self.others = step, phase, 0, None
        if step > self._newest:
            self._newest = step
            return
        for moment in before:
            if moment[0] == step and moment[1] == phase:
                self.end, self.others = moment[2:]


_Numbered = tuple[int, str, int, "set[int] | None"]
"""Step, phase, and the numbers that are taken in it."""


class Slot(short_way.Slot):
    """One role and leaf of one module, for tensors of one shape, dtype and device."""

    def __init__(
        self, plan: RecordPlan, shape: torch.Size, dtype: torch.dtype, device: torch.device, numbers: CallNumbers
    ) -> None:
        self.plan, self.numbers = plan, numbers
        self.shape, self.dtype, self.device = shape, dtype, device
        self.kept = plan.kept != "stats"
        self.itemsize = dtype.itemsize
        self.nbytes = nbytes = shape.numel() * dtype.itemsize
        """Of the tensor, kept or not."""
        self.index = device.index if device.type == "cuda" else -1
        """The number of a CUDA device."""
        self.on_device = on_device = device.type == "cuda"
        self.gathers = nbytes <= (MIDDLE if on_device and self.kept else SMALL) and (on_device or self.kept)
        """Whether its bytes are gathered, and measured by the writer's thread."""
        self.arena_bytes = -(-nbytes // 64) * 64 if self.gathers else 0
        self.large = not self.gathers and (on_device or plan.count > LARGE)
        """Whether it is measured by a kernel, or on several threads."""
        self.task = np.zeros(0 if on_device else 1, native.TASK)
        if not on_device:
            self.task["count"] = plan.count
            self.task["kind"], self.task["table"] = native.kind_of(dtype)
        self.task_address = int(self.task.ctypes.data)
        self.plans: Plans | None = None
        """Those in which `number` is this plan's."""
        self.number = -1
        self._other: Slot | None = None

    def without_tensor(self) -> Slot:
        """The same for a tensor that is not kept after all."""
        if self._other is None:
            plan = replace(self.plan, kept="stats", kept_shape=(), kept_dtype="", nbytes=0)
            self._other = Slot(plan, self.shape, self.dtype, self.device, self.numbers)
        return self._other
