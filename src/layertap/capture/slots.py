"""What does not change between the calls of a module, worked out once for each signature of a tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from layertap.capture.gathering import LARGE, SMALL
from layertap.measure import native
from layertap.store.plans import Plans, RecordPlan


class CallNumbers:
    """The numbers of calls that are taken: a second backward pass gives a call a second gradient.

    >>> numbers = CallNumbers()
    >>> [numbers.take(call) for call in (0, 1, 1, 5, 0)]
    [0, 1, 2, 5, 6]
    """

    __slots__ = ("_all_below", "_others")

    def __init__(self) -> None:
        self._all_below = 0
        self._others: set[int] = set()

    def take(self, call: int) -> int:
        """The number itself if it is free, else one after all that are taken."""
        if call < self._all_below or call in self._others:
            call = max(self._all_below, *(other + 1 for other in self._others)) if self._others else self._all_below
        if call == self._all_below:
            self._all_below += 1
            while self._all_below in self._others:
                self._others.remove(self._all_below)
                self._all_below += 1
        else:
            self._others.add(call)
        return call


class Slot:
    """One role and leaf of one module, for tensors of one shape, dtype and device."""

    __slots__ = (
        *(
            "_other",
            "arena_bytes",
            "device",
            "dtype",
            "gathers",
            "kept",
            "large",
            "nbytes",
            "number",
            "numbers",
            "on_device",
        ),
        *("phase", "plan", "plans", "step", "take", "task", "task_address"),
    )

    def __init__(self, plan: RecordPlan, dtype: torch.dtype, nbytes: int, device: int | None) -> None:
        self.plan, self.dtype = plan, dtype
        self.kept = plan.kept != "stats"
        self.nbytes = nbytes
        """Of the tensor, kept or not."""
        self.device = device
        """The number of a CUDA device; None in the host's memory."""
        self.on_device = on_device = device is not None
        self.gathers = nbytes <= SMALL and (on_device or self.kept)
        """Whether its bytes are gathered, and measured by the writer's thread."""
        self.arena_bytes = -(-nbytes // 64) * 64 if self.gathers else 0
        self.large = not self.gathers and not on_device and plan.count > LARGE
        self.take = native.taker()
        self.task = np.zeros(1, native.TASK)
        self.task["count"] = plan.count
        self.task["kind"], self.task["table"] = native.kind_of(dtype)
        self.task_address = int(self.task.ctypes.data)
        self.plans: Plans | None = None
        """Those in which `number` is this plan's."""
        self.number = -1
        self.numbers = CallNumbers()
        self.step, self.phase = -1, ""
        """Of which `numbers` are."""
        self._other: Slot | None = None

    def without_tensor(self) -> Slot:
        """The same for a tensor that is not kept after all."""
        if self._other is None:
            plan = replace(self.plan, kept="stats", kept_shape=(), kept_dtype="", nbytes=0)
            self._other = Slot(plan, self.dtype, self.nbytes, self.device)
        return self._other
