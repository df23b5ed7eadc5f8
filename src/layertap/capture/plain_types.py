"""What tap.c has, in Python: the same members, and no short way (`take` says no). tap.c says what each is."""

from __future__ import annotations

import os
from typing import Any


class TapCounts:
    """The counts behind a line of the receipt."""

    def __init__(self) -> None:
        self.fired = self.tensors = self.direct = self.recomputed = self.dropped = 0


class CallNumbers:
    """The numbers of calls that are taken of one site: a second backward pass gives a call a second gradient.

    >>> numbers = CallNumbers()
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


class SlotBase:
    """One role and leaf of one module, for tensors of one shape, dtype and device."""

    shape: Any
    dtype: Any
    device: Any
    numbers: CallNumbers
    plans: Any
    kernel: KernelLaunch | None
    number: int
    nbytes: int
    itemsize: int
    arena_bytes: int
    index: int
    count: int
    kind: int
    table: int
    kept: bool
    gathers: bool
    on_device: bool
    large: bool


class KernelLaunch:
    """The compiled kernel that measures a slot's tensors, and how many programs it takes."""


class PartBase:
    """The part of a batch that is on one device, in the order of one stream."""

    address: int
    stream: int
    index: int
    begin: int
    end: int
    slab: int
    last_slab: int
    slab_bytes: int
    scratch: int
    scratch_bytes: int
    waiting: int
    together: int
    segments: list[list[int]]
    rows: list[int]

    def close_segment(self) -> None:
        """Notes where the arena was filled since the last time; only tap.c fills it."""


class BatchBase:
    """The batch that is being filled."""

    address: int
    row_bytes: int
    arena_address: int
    arena_size: int
    opened: float
    moment: Any
    part: Any
    count: int
    capacity: int
    used: int
    credit: int
    moment_number: int

    def claim(self) -> int:
        """The next row, which is the caller's; -1 if there is none."""
        if self.count >= self.capacity:
            return -1
        self.count += 1
        return self.count - 1


class GatheringBase:
    """What holds the open batch."""

    open: Any
    plans: Any
    taken: int
    age: float
    look: int
    crowded: bool


class RecordingBase:
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


class TapBase:
    """The calls of one module."""

    recording: Any = None
    counts: Any = None
    slot: Any = None
    step = total = forwards = eval_calls = train_calls = 0
    idle = early = plain = False

    def enter(self: Any, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]:
        """Sees a call begin."""
        if self.idle:
            self.total += 1
            return args, kwargs, None
        begun: tuple[Any, Any, Any] = self.begin_call(args, kwargs, direct)
        return begun

    def leave(self: Any, token: Any, output: Any) -> Any:
        """Sees the call end; returns its output."""
        return output if token is None else self.end_call(token, output)


class UnderWayBase:
    """The calls that are under way in a thread."""

    modules: set[int]
    waiting: dict[int, Any]
    unseen: bool


def take(recording: Any, slot: Any, tensor: Any, moment: Any, counts: Any) -> bool:
    """Takes nothing."""
    return False
