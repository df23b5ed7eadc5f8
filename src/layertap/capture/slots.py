"""What does not change between the calls of a module, worked out once for each signature of a tensor."""

from __future__ import annotations

import torch

from layertap.capture import short_way
from layertap.capture.gathering import LARGE, MIDDLE, SMALL
from layertap.capture.pending_record import without_kept
from layertap.measure import kernel, native
from layertap.store.plans import Plans, RecordPlan


class Slot(short_way.SlotBase):
    """One role and leaf of one module, for tensors of one shape, dtype and device."""

    def __init__(
        self,
        plan: RecordPlan,
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        numbers: short_way.CallNumbers,
    ) -> None:
        self.plan, self.numbers = plan, numbers
        self.shape, self.dtype, self.device = shape, dtype, device
        self.kept = plan.kept != "stats"
        self.itemsize = dtype.itemsize
        self.nbytes = nbytes = shape.numel() * dtype.itemsize
        """Of the tensor, kept or not."""
        self.on_device = on_device = is_of_devices(device)
        self.index = device.index or 0 if on_device else -1
        """The number of a CUDA device."""
        self.gathers = nbytes <= (MIDDLE if on_device and self.kept else SMALL) and (on_device or self.kept)
        """Whether its bytes are gathered, and measured by the writer's thread."""
        self.arena_bytes = -(-nbytes // 64) * 64 if self.gathers else 0
        self.large = not self.gathers and (on_device or plan.count > LARGE)
        """Whether it is measured by a kernel, or on several threads."""
        self.count = plan.count
        self.kind, self.table = (0, 0) if on_device else native.kind_of(dtype)
        self.plans: Plans | None = None
        """Those in which `number` is this plan's."""
        self.number = -1
        self.kernel = None
        self.learn_kernel()
        self._other: Slot | None = None

    def learn_kernel(self) -> None:
        """Finds out how its tensors are measured on a device, once one was: the next ones need no Python."""
        if self.on_device and self.kernel is None:
            found = kernel.described(self.device, self.dtype, self.count)
            if found is not None:
                self.kernel = short_way.KernelLaunch()
                for name, value in found.items():
                    setattr(self.kernel, name, value)

    def without_tensor(self) -> Slot:
        """The same for a tensor that is not kept after all."""
        if self._other is None:
            self._other = Slot(without_kept(self.plan), self.shape, self.dtype, self.device, self.numbers)
        return self._other


def is_of_devices(device: torch.device) -> bool:
    """Whether a tensor there is copied in the order of a stream, and brought to the host by the writer's thread."""
    return device.type == "cuda"
