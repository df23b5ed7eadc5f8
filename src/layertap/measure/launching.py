"""A compiled Triton kernel, launched by the driver: what its arguments look like is found out once."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

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
