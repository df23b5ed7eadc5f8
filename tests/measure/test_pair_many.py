"""Many pairs read at once say what float64 says of each, by triton's interpreter on CPU tensors."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layertap.measure import launching
from layertap.measure.pair import kernel

SHAPES = [(70, 96), (2, 9, 136), (17, 64), (5, 64), (5, 8456)]


def main() -> None:
    from layertap.measure.pair.deferred import _measure, _measure_lines
    from layertap.measure.pair.many import read_pairs
    from layertap.measure.pair.massive import judged, on_grid, without_massive

    kernel._CHUNK = 1
    found = []
    pairs = []
    for number, shape in enumerate(SHAPES):
        make = torch.Generator().manual_seed(number)
        a = torch.randn(shape, generator=make) + number
        b = 1.25 * a + 0.003 * torch.randn(shape, generator=make) + 0.01
        b.view(-1, shape[-1])[4] = 0
        b.view(-1)[7] = float("nan") if number == 1 else 0.5
        pairs += [(a.to(one), b.to(two)) for one in (torch.float32, torch.bfloat16) for two in (torch.bfloat16,)]
    massive, grid = (a.clone() for a in pairs[1])
    massive[3] *= 200
    grid = grid.to(torch.float8_e4m3fn).to(grid.dtype)
    pairs += [(massive, grid), (grid.repeat(20, 9), grid.repeat(20, 9))]
    pairs.append((pairs[1][0], pairs[1][0].clone()))
    rows = [kernel.launch_pair(a, b) for a, b in pairs]
    read, judgements = read_pairs(rows), judged(rows)
    samples = [
        torch.equal(row.lines[:SAMPLE].view(torch.int32), sampled(b).view(torch.int32))
        for row, (_, b) in zip(rows, pairs, strict=True)
    ]
    expected = [
        (without_massive(*_measure_lines(a, b)[1])[0].item(), on_grid(b.reshape(1, -1))[0].item()) for a, b in pairs
    ]
    for (a, b), numbers in zip(pairs, read, strict=True):
        found.append([list(numbers), _measure(a, b).tolist()])
    print(json.dumps([found, judgements, expected, samples, masks()]))


SAMPLE = 1024


def sampled(values):
    """Values from all over a tensor, in float32; zeros where it has too few."""
    values = values.float().flatten()
    if len(values) < SAMPLE:
        return torch.nn.functional.pad(values, (0, SAMPLE - len(values)))
    return values[:: (len(values) // SAMPLE - 1) | 1][:SAMPLE]


def masks():
    """Two masks that close the same places, each by its own number, and a third that closes one more; with launches."""
    from layertap.measure.pair.deferred import _measure, by_kernel, settle

    scores = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(9)).bfloat16()
    closed = torch.ones(64, 64, dtype=torch.bool).triu(1)
    one, other = scores.masked_fill(closed, -math.inf), scores.masked_fill(closed, torch.finfo(torch.bfloat16).min)
    further = other.clone()
    further[0, 0, 5, 3] = -math.inf
    found = []
    for right in (one, other):
        for mine in (other, further):
            read = settle([by_kernel(right, mine)])[0]
            found.append([read.relative_l2, read.inf_mismatch, _measure(right, mine)[-1].item(), read.equal])
    return found, operations(by_kernel, one, other)


def operations(begin, a, b):
    """What torch is asked to compute, beside the pair kernels, when a pair is begun; views and room are none of it."""
    met = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            met.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    before, kernel._launch_slowly = kernel._launch_slowly, lambda *given: met.append("launched")
    try:
        with Operations():
            begin(a, b)
    finally:
        kernel._launch_slowly = before
    return [name for name in met if name != "empty"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_many_pairs_are_read_at_once_as_float64_measures_each() -> None:
    from measure.interpreter import interpreted

    found, judgements, expected, samples, (closing, besides) = interpreted(__file__)
    assert len(found) == 2 * len(SHAPES) + 3
    for ours, theirs in found[:-1]:
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-2)
        assert ours[8:] == theirs[8:], "what is not finite"
        assert (ours[5], ours[7]) == (theirs[5], theirs[7]), "the worst row and column"
    for ours, theirs in zip(judgements, expected, strict=True):
        assert ours == [pytest.approx(theirs[0], rel=1e-4), theirs[1]]
    assert [error > 0 for error, _ in expected].count(True) == 1, "one pair has a massive row"
    assert [grid for _, grid in expected].count(True) == 2, "one candidate went through float8, whole and repeated"
    assert samples == [True] * len(found), "the values of the sample, and zeros where there are too few"
    assert [one[1] for one in closing] == [one[2] for one in closing] == [0, 1, 0, 1], "closed is closed, by any number"
    assert [one[0] for one in closing] == [0.0] * 4
    assert [one[3] for one in closing] == [True, False, True, False]
    assert besides == ["threshold", "threshold", "launched"], "one pass over each side, and the kernels"
    assert found[-1][0][:4] == [0.0, found[-1][0][1], 0.0, 0.0], "equal tensors are exactly equal"


class Driver:
    """In the place of the driver and of triton: what is launched, by whom, with which programs and arguments."""

    def __init__(self, refuses=()):
        self.launched, self.by_triton, self.refuses = [], [], refuses
        self.launch = ctypes.CFUNCTYPE(ctypes.c_int, *KINDS)(self._launch)

    def _launch(self, function, programs, *given):
        places = ctypes.cast(given[-2], ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
        _, count = KERNELS[function - 1]
        self.launched.append((KERNELS[function - 1][0], programs, [places[i][0] for i in range(count)], given[-3]))
        return int(function in self.refuses)

    def kernel(self, number):
        def launch(*given, stream=None, **constants):
            values = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in given]
            self.by_triton.append((KERNELS[number][0], values[: KERNELS[number][1]]))
            return compiled

        compiled = Compiled(number + 1, launch)
        return {(programs,): launch for programs in range(1, 100)}


KINDS = [ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
KERNELS = [("compare_pair", 11), ("mend_pair", 11), ("fold_lines", 16)]


class Compiled:
    """What triton makes of a kernel."""

    def __init__(self, function, launch):
        self.function, self._launch, self.metadata = function, launch, SimpleNamespace(num_warps=2, shared=0)

    def _init_handles(self):
        pass

    def __getitem__(self, grid):
        return self._launch


@pytest.fixture
def driver(monkeypatch):
    def put_in(**how):
        found = Driver(**how)
        monkeypatch.setattr(launching, "_driver_launch", lambda: found.launch)
        for number, (name, _) in enumerate(KERNELS):
            monkeypatch.setattr(kernel, name, found.kernel(number))
        return found

    kernel._plan.cache_clear()
    yield put_in
    kernel._plan.cache_clear()


def pair_of(shape):
    return torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", [(70, 96), (5, 8456), (1003,)])
def test_the_driver_is_given_what_triton_was_given(shape, driver) -> None:
    driver, (a, b) = driver(), pair_of(shape)
    first = kernel.launch_pair(a, b)
    assert [name for name, _ in driver.by_triton] == [name for name, _ in KERNELS][: 1 + len(shape)]
    assert not driver.launched, "triton compiles, and launches for once"
    later = [kernel.launch_pair(a, b) for _ in range(2)]
    assert [(row.block, row.number) for row in later] == [(first.block, 1), (first.block, 2)]
    moved = {
        row.numpy().ctypes.data: other.numpy().ctypes.data
        for row, other in zip(parts(first), parts(later[1]), strict=True)
    }
    wanted = [(name, [moved.get(value, value) for value in values]) for name, values in driver.by_triton]
    assert [(name, values) for name, _, values, _ in driver.launched[len(wanted) :]] == wanted
    assert len(driver.by_triton) == 1 + len(shape), "triton is not asked again"


def parts(row):
    """The slab, the sample and the norms of lines."""
    return row.slab, row.lines, row.lines[1024:]


def test_a_pair_takes_three_launches_and_a_block_is_allocated_for_many(driver) -> None:
    driver, (a, b) = driver(), pair_of((70, 96))
    met = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            met.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    rows = [kernel.launch_pair(a, b)]
    with Operations():
        rows += [kernel.launch_pair(a, b) for _ in range(len(rows[0].block.slabs) - 1)]
    assert met == [], "neither room nor views: all of it was there"
    assert len(driver.launched) == 3 * (len(rows) - 1)
    assert len({id(row.block) for row in rows}) == 1
    assert len(rows) == 4 * 2**20 // (102_400 + 4 * (1024 + 2 * (70 + 96))), "a block is 4 MiB"
    with Operations():
        rows.append(kernel.launch_pair(a, b))
    assert met == ["empty"] * 3, "numbers, lines, and what the kernels of a pair leave for each other"
    assert rows[-1].block is not rows[0].block
    assert rows[-1].number == 0


def test_another_stream_has_a_block_of_its_own(driver, monkeypatch) -> None:
    driver, (a, b) = driver(), pair_of((70, 96))
    rows = []
    for stream in (0, 1 << 40, 0):
        monkeypatch.setattr(kernel, "stream_of", lambda device, stream=stream: stream)
        rows.append(kernel.launch_pair(a, b))
    assert len({id(row.block) for row in rows}) == 3
    assert [stream for *_, stream in driver.launched] == [1 << 40] * 3 + [None] * 3


def test_a_block_nobody_waits_for_is_given_back(driver) -> None:
    driver()
    block = weakref.ref(kernel.launch_pair(*pair_of((70, 96))).block)
    assert block() is None


def test_what_the_driver_refuses_is_launched_by_triton(driver) -> None:
    driver, (a, b) = driver(refuses=(2,)), pair_of((70, 96))
    kernel.launch_pair(a, b)
    kernel.launch_pair(a, b)
    again = [name for name, _ in driver.by_triton][3:]
    assert again == ["mend_pair"], "the others are launched by the driver"


if __name__ == "__main__":
    main()
