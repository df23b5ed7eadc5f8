"""Who is inside whom while a model runs, and how often each module was called."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import torch

from layertap.fault.model_runner import seed
from layertap.fault.reference_trace import ModuleCall


class CallStack:
    """Who is inside whom, and how often each was called."""

    def __init__(self, seeded: bool) -> None:
        self.inside: list[ModuleCall] = []
        self.calls: Counter[str] = Counter()
        self.log: Any = None
        """A dispatch mode that is to see what some calls compute, and says by `wants(place)` which."""
        self._measuring = False
        self._again: Counter[str] = Counter()
        self._seeded = seeded

    def enter(self, path: str) -> tuple[int, bool]:
        """Which call this is, and whether it is one made again on the way back, by activation checkpointing."""
        again = torch._C._current_graph_task_id() != -1
        counter = self._again if again else self.calls
        call = counter[path]
        counter[path] += 1
        self.inside.append((path, call))
        if self._seeded:
            _reseed(path, call, 0)
        return call, again

    def leave(self, path: str, call: int) -> None:
        self.inside.pop()
        if self._seeded:
            _reseed(path, call, 1)

    @property
    def measuring(self) -> bool:
        """Whether what is computed now is ours, and not the model's."""
        return self._measuring

    @measuring.setter
    def measuring(self, ours: bool) -> None:
        self._measuring = ours
        if self.log is not None:
            self.log.listen(not ours and bool(self.inside) and self.log.wants(self.inside[-1]))

    @property
    def caller(self) -> ModuleCall | None:
        return self.inside[-2] if len(self.inside) > 1 else None


def _reseed(path: str, call: int, end: int) -> None:
    """Where a model draws random numbers, both sides begin each module, and go on after it, with the same seed."""
    seed(zlib.crc32(f"{path}@{call}/{end}".encode()))
