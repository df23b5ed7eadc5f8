"""Every kind of fault by its name."""

from __future__ import annotations

from benchmarks.faultbench import attention, code, settings, weights
from benchmarks.faultbench.faults import Fault

FAULTS: dict[str, Fault] = {fault.kind: fault for room in (weights, settings, code, attention) for fault in room.FAULTS}
