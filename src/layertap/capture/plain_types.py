"""What tap.c has, in Python: the same members, and no short way (`take` says no)."""

from __future__ import annotations

import os
from typing import Any


class Counts:
    """The counts behind a line of the receipt."""

    def __init__(self) -> None:
        self.fired = self.tensors = self.direct = self.recomputed = self.dropped = 0


class Numbers:
    """The numbers of calls that are taken of one site."""

    step = end = 0
    phase: Any = None
    others: Any = None


class Slot:
    """One role and leaf of one module."""


class Part:
    """The part of a batch that is on one device."""

    def close_segment(self) -> None: ...


class Batch:
    """The batch that is being filled."""

    count = capacity = used = credit = moment_number = 0
    moment: Any = None
    part: Any = None

    def claim(self) -> int:
        """The next row, which is the caller's; -1 if there is none."""
        if self.count >= self.capacity:
            return -1
        self.count += 1
        return self.count - 1


class Gathering:
    """What holds the open batch."""

    open: Any = None
    plans: Any = None
    taken = 0
    crowded = False


class Recording:
    """Where a recording is."""

    epoch: Any = None
    batch: Any = None
    flags: Any = None
    gathering: Any = None
    step_number = last_step = order = 0
    overhead = 0.0
    attached = simple = strict = False
    _process = 0

    def next_order(self) -> int:
        """The next place in the step's order of execution."""
        self.order += 1
        return self.order - 1

    def begin_in_process(self) -> None:
        """Says that this is the process that records."""
        self._process = os.getpid()

    def of_this_process(self) -> bool:
        """Whether it is, and not a child that was forked from it."""
        return self._process == os.getpid()


class Tap:
    """The calls of one module."""

    recording: Any = None
    counts: Any = None
    slot: Any = None
    step = total = forwards = eval_calls = train_calls = 0
    idle = early = plain = False

    def enter(self, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]:
        """Sees a call begin."""
        if self.idle:
            self.total += 1
            return args, kwargs, None
        begun: tuple[Any, Any, Any] = self.begin_call(args, kwargs, direct)
        return begun

    def leave(self, token: Any, output: Any) -> Any:
        """Sees the call end; returns its output."""
        return output if token is None else self.end_call(token, output)

    def begin_call(self, args: Any, kwargs: Any, direct: bool) -> Any:
        """Sees any call begin."""
        raise NotImplementedError

    def end_call(self, token: Any, output: Any) -> Any:
        """Sees any call end."""
        raise NotImplementedError


class UnderWay:
    """The calls that are under way in a thread."""

    modules: set[int]
    waiting: dict[int, Any]
    unseen = False


def take(recording: Any, slot: Any, tensor: Any, moment: Any, counts: Any) -> bool:
    """Takes nothing."""
    return False
