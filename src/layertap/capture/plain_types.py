"""What tap.c has, in Python: the same members, and no short way (`take` says no)."""

from __future__ import annotations

import os
from typing import Any


class Counts:
    """The counts behind a line of the receipt."""

    def __init__(self) -> None:
        self.fired = self.tensors = self.direct = self.recomputed = self.dropped = 0


class Numbers:
    """The numbers of calls that are taken of one site: a second backward pass gives a call a second gradient.

    >>> numbers = Numbers()
    >>> [numbers.take(0, "eval", call) for call in (0, 1, 1, 5, 0)]
    [0, 1, 2, 5, 6]
    >>> numbers.take(1, "eval", 0), numbers.take(1, "eval", 0), numbers.take(0, "eval", 0)
    (0, 1, 7)
    """

    def __init__(self) -> None:
        # `end`: the number after all that are taken. `others`: those that are, where some below the end are free.
        self.step, self.phase, self.end = -1, "", 0
        self.others: set[int] | None = None
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


class Slot:
    """One role and leaf of one module."""


class Kernel:
    """The compiled kernel that measures a slot's tensors."""


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
