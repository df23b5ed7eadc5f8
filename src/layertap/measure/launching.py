"""Compiled Triton kernels, launched by the driver: what their arguments look like is found out once."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

SPARE = 3
"""Pointers behind a kernel's own arguments, for scratch memory that triton may have given it: ours need none."""


class Prepared:
    """One kernel of one device.

    Triton's own way looks at every argument again (10 us and more); the driver's takes an array of addresses, which
    stays as it is, so a launch writes numbers into place and calls. What the driver refuses goes triton's way.
    """

    def __init__(self, compiled: Any, constants: Sequence[Any], arguments: int) -> None:
        self._compiled, self._constants = compiled, tuple(constants)
        self._values = (ctypes.c_int64 * (arguments + SPARE))()
        self._write = struct.Struct(f"={arguments}q").pack_into
        size = ctypes.sizeof(ctypes.c_int64)
        start = ctypes.addressof(self._values)
        self._places = (ctypes.c_void_p * (arguments + SPARE))(*(start + i * size for i in range(arguments + SPARE)))
        self._launch = _driver_launch() if _plain(compiled) else None
        if self._launch is not None:
            compiled._init_handles()
            threads, shared = 32 * compiled.metadata.num_warps, compiled.metadata.shared
            self._fixed = (ctypes.c_void_p(compiled.function), threads, shared)

    @property
    def driver(self) -> tuple[int, int, int] | None:
        """The driver's function, threads of a program and bytes they share; None where triton itself must launch it."""
        if self._launch is None:
            return None
        function, threads, shared = self._fixed
        return int(function.value or 0), threads, shared

    def __call__(self, programs: int, stream: int, *arguments: int) -> None:
        """Enqueues it with so many programs."""
        launch = self._launch
        if launch is not None:
            self._write(self._values, 0, *arguments)
            function, threads, shared = self._fixed
            if not launch(function, programs, 1, 1, threads, 1, 1, shared, _pointer(stream), self._places, None):
                return
        self._compiled[(programs, 1, 1)](*arguments, *self._constants, stream=stream)


_pointer = ctypes.c_void_p


class SeriesStep(NamedTuple):
    """One kernel of a series."""

    prepared: Prepared
    programs: int
    given: tuple[int, ...]
    """Which of the addresses that the series is given it takes first, in this order."""
    sizes: tuple[int, ...]
    """Its further arguments, which stay the same."""


class Series:
    """Kernels that are launched one after the other on one device, on addresses in common.

    All arguments but the addresses, and what the driver is called with, are put into place once: launching then takes
    little more than the driver's own time.
    """

    def __init__(self, addresses: int, steps: Sequence[SeriesStep]) -> None:
        self._steps = steps
        sizes = [size for step in steps for size in step.sizes]
        values = (ctypes.c_int64 * (addresses + len(sizes) + SPARE))(*[0] * addresses, *sizes)
        self._values, self._write = values, struct.Struct(f"={addresses}q").pack_into
        start, wide, after = ctypes.addressof(values), ctypes.sizeof(ctypes.c_int64), addresses
        self._places: list[Any] = []
        """Of each kernel the addresses of its arguments."""
        for step in steps:
            mine = [*step.given, *range(after, after + len(step.sizes)), *range(len(values) - SPARE, len(values))]
            self._places.append((ctypes.c_void_p * len(mine))(*(start + wide * place for place in mine)))
            after += len(step.sizes)
        self._launch = _driver_launch() if all(step.prepared.driver for step in steps) else None
        self._stream, self._calls = -1, list[tuple[Any, ...]]()

    def __len__(self) -> int:
        return len(self._steps)

    def __call__(self, stream: int, *addresses: int) -> None:
        """Enqueues all of them."""
        launch, launched = self._launch, 0
        if launch is not None:
            if stream != self._stream:
                self._stream, self._calls = stream, [*self._calls_on(stream)]
            self._write(self._values, 0, *addresses)
            for call in self._calls:
                if launch(*call):
                    break
                launched += 1
        for prepared, programs, given, sizes in self._steps[launched:]:
            prepared(programs, stream, *(addresses[place] for place in given), *sizes)

    def _calls_on(self, stream: int) -> Iterator[tuple[Any, ...]]:
        """What the driver is called with for each kernel."""
        for step, places in zip(self._steps, self._places, strict=True):
            function, threads, shared = step.prepared.driver or (0, 0, 0)
            yield _pointer(function), step.programs, 1, 1, threads, 1, 1, shared, _pointer(stream), places, None


def _plain(compiled: Any) -> bool:
    """Whether it needs nothing at a launch but its arguments."""
    metadata = compiled.metadata
    needs = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
    return not any(getattr(metadata, name, 0) for name in needs) and getattr(metadata, "num_ctas", 1) == 1


@lru_cache(maxsize=1)
def _driver_launch() -> Any:
    """`cuLaunchKernel`; None where it cannot be found. It keeps Python's lock: it returns at once."""
    try:
        function = ctypes.PyDLL("libcuda.so.1").cuLaunchKernel
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int  # and no argtypes: looking at each argument takes as long as the call
    return function
