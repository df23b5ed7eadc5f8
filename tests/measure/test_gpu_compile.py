"""The kernels are compiled for real chips, which needs none: triton brings an assembler along.

What `Prepared` writes for the driver, eight bytes an argument and some to spare, must be what a kernel takes.
"""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch

from layertap.measure import kernel
from layertap.measure.launching import SPARE
from layertap.measure.pair import kernel as pair_kernel
from layertap.measure.part import kernel as part_kernel
from layertap.measure.part.place import PartPlace, boxes_of
from layertap.measure.slab import SLAB_BYTES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
_TYPES = {
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


class Compiled:
    """In the place of a kernel: each launch is compiled, for the arguments that it has."""

    def __init__(self, function, capability):
        self.function, self.capability, self.parameters, self.layouts = function, capability, [], set()

    def __getitem__(self, grid):
        assert all(number > 0 for number in grid)
        return self.compile

    def compile(self, *arguments, **named):
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.compiler import compile as compiled

        options = {name: named.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion") if name in named}
        names = self.function.arg_names
        tensors = [isinstance(value, torch.Tensor) for value in arguments]
        types = [_TYPES[x.dtype] if is_tensor else _whole(x) for x, is_tensor in zip(arguments, tensors, strict=True)]
        signature = dict(zip(names, types, strict=False)) | dict.fromkeys(named, "constexpr")
        assert list(signature) == names, "constants come in the order of the parameters"
        aligned = {(at,): [["tt.divisibility", 16]] for at, is_tensor in enumerate(tensors) if is_tensor}
        target = GPUTarget("cuda", self.capability, 32)
        made = compiled(ASTSource(self.function, signature, named, aligned), target=target, options=options)
        self.layouts |= set(_layouts(made.asm["ttgir"]))
        ptx = made.asm["ptx"].split(".entry")[1].split(")")[0]
        found = re.findall(r"\.param \.(\w+)", ptx)
        assert found[: len(types)] == ["u64" if kind[0] == "*" or kind == "i64" else "u32" for kind in types]
        assert set(found[len(types) :]) <= {"u64"}
        assert len(found) <= len(types) + SPARE
        assert not made.metadata.global_scratch_size, "Prepared gives a kernel no memory of its own"
        self.parameters.append(found)


def _layouts(ttgir):
    """How the tensors are laid out that inline assembly makes."""
    named = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.MULTILINE))
    for kinds in re.findall(r"elementwise_inline_asm.*-> (.*)", ttgir):
        for name in re.findall(r"#blocked\w*", kinds):
            yield named[name]


def _whole(number):
    return "i64" if number >= 2**31 else "i32"


def put_in(monkeypatch, module, capability, *names):
    """All kernels of a module compiled for a chip of this capability; returns them."""
    found = [Compiled(getattr(module, name), capability) for name in names]
    for name, one in zip(names, found, strict=True):
        monkeypatch.setattr(module, name, one)
    return found


@pytest.fixture(params=[80, 90], ids=["A100", "H100"])
def capability(request, monkeypatch):
    for module in (kernel, pair_kernel):
        monkeypatch.setattr(module, "_hopper", lambda device: request.param >= 90)
    return request.param


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"]
)
@pytest.mark.parametrize("short", [True, False])
def test_the_kernel_compiles(monkeypatch, capability, dtype, short):
    if not short:
        monkeypatch.setattr(kernel, "SHORT", 0)
    measure, finish = put_in(monkeypatch, kernel, capability, "_measure", "_finish_all")
    x, slabs = torch.zeros(70_000).to(getattr(torch, dtype)), torch.zeros((2, SLAB_BYTES), dtype=torch.uint8)
    kernel.launch(x, slabs[0])
    deferred = kernel.Deferred(torch.device("cpu"))
    deferred.launch(x, slabs, 0)
    deferred.finish()
    assert len(measure.parameters) == 2
    assert len(finish.parameters) == 1
    # Each thread loads its own lanes and asks its warp for hashes, as tests/measure/ptx.py does.
    own = ("sizePerThread = [1], threadsPerWarp = [32], ", "sizePerThread = [1, 2], threadsPerWarp = [32, 1], ")
    assert all(any(words in layout for words in own) for layout in measure.layouts), measure.layouts
    packed = capability >= 90 and dtype != "float32" and not (short and dtype != "float64")
    assert bool(measure.layouts) == packed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize(("cut", "levels"), [((0,), 1), ((3,), 2), ((1, 3), 3), ((1, 2, 3), 4)])
def test_the_kernel_of_a_part_compiles(monkeypatch, capability, dtype, cut, levels):
    [kernel] = put_in(monkeypatch, part_kernel, capability, "_sum_box")
    place = PartPlace(spans=tuple(((0, 6 if axis in cut else 12),) for axis in range(4)), shape=(12,) * 4)
    part_kernel.start(torch.zeros(place.part).to(getattr(torch, dtype)), boxes_of(place))
    assert [len(box.levels) for box in boxes_of(place)] == [levels]
    assert len(kernel.parameters) == 1


@pytest.mark.parametrize(
    ("one", "two", "shape"),
    [
        ("bfloat16", "bfloat16", (512, 256)),
        ("bfloat16", "bfloat16", (5, 77, 130)),
        ("float16", "bfloat16", (333, 96)),
        ("float32", "bfloat16", (300, 256)),
        ("float32", "float32", (1003,)),
        ("bfloat16", "bfloat16", (64, 32_000)),
        ("float32", "bfloat16", (64, 150_001)),
    ],
)
def test_the_pair_kernels_compile(monkeypatch, capability, one, two, shape):
    pair_kernel._plan.cache_clear()
    kernels = put_in(monkeypatch, pair_kernel, capability, "compare_pair", "mend_pair", "fold_lines")
    pair_kernel.launch_pair(
        torch.zeros(shape, dtype=getattr(torch, one)), torch.zeros(shape, dtype=getattr(torch, two))
    )
    pair_kernel._plan.cache_clear()
    assert [len(one.parameters) for one in kernels] == [1, 1, int(len(shape) > 1)]
