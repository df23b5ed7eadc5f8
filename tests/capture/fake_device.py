"""Tensors of the CPU go the way of a device's, by a driver that is none (fake_driver.c); for a process of its own."""

import ctypes
import os
import shlex
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch

READY = SimpleNamespace(cuda_event=1)


def load(folder):
    """Compiles the driver and loads it under the name by which tap.c looks for one."""
    library = Path(folder, "libcuda.so.1")
    command = [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-O2", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", library, Path(__file__).with_name("fake_driver.c")], check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def number(driver, name):
    return ctypes.c_long.in_dll(driver, name).value


def install(chunk=1 << 20):
    """Lets layertap take the CPU for a device."""
    from layertap.capture import cuda, module_tap, short_way, slots

    assert short_way.fetch() is not None, "the driver was not found"

    class Part(cuda.DevicePart):
        def __init__(self, device, nbytes, host_copier):
            short_way.PartBase.__init__(self)
            self.index, self.stream = 0, 1
            self.arena = torch.empty(nbytes, dtype=torch.uint8)
            self.address = self.arena.data_ptr()
            self.segments, self.slabs, self.rows, self.kernels = [], [], [], None
            self.queue = SimpleNamespace(record_event=lambda: READY)
            self._host_copier = host_copier

    class Ring(cuda._Ring):
        def __init__(self, device, _):
            self.chunk, self._device, self._fetch = chunk, 0, short_way.fetch()
            self._memory = torch.empty((2, chunk), dtype=torch.uint8)
            self._numbers = (7, 11, 13, self._memory.data_ptr(), chunk)

    cuda.DevicePart, cuda._Ring, torch.cuda.device = Part, Ring, lambda device: nullcontext()
    slots.is_of_devices = lambda device: True
    names = {"moment_type": module_tap.CallMoment, "tap_class": module_tap.ModuleTap, "marks": module_tap.marks}
    own = {"current_device": lambda: 0, "current_stream": lambda index: 1}
    short_way.connect(**names, **module_tap.names_for_calls(), **own)
    return Ring
