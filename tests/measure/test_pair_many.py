"""Many pairs read at once say what float64 says of each, by triton's interpreter on CPU tensors."""

from __future__ import annotations

import importlib.util
import json
import math
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SHAPES = [(70, 96), (2, 9, 136), (17, 64), (5, 64), (5, 8456)]


def main() -> None:
    from layertap.measure.pair import kernel as pair_kernel
    from layertap.measure.pair import many as pair_many
    from layertap.measure.pair.deferred import _measure, _measure_lines
    from layertap.measure.pair.massive import judged, later, on_grid, without_massive

    pair_kernel._CHUNK = 1
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
    begun = [pair_many.begin_pair(a, b) for a, b in pairs]
    slabs = [slab for slab, _ in begun]
    read = pair_many.read_pairs(slabs, [tuple(a.shape) for a, _ in pairs])
    judgements = list(judged([later(lines, b) for (_, lines), (_, b) in zip(begun, pairs, strict=True)]))
    expected = [
        (without_massive(*_measure_lines(a, b)[1])[0].item(), on_grid(b.reshape(1, -1))[0].item()) for a, b in pairs
    ]
    for (a, b), numbers in zip(pairs, read, strict=True):
        found.append([list(numbers), _measure(a, b).tolist()])
    computed = [launches(lambda a, b: later(pair_many.begin_pair(a, b)[1], b), *pair) for pair in pairs]
    print(json.dumps([found, judgements, expected, computed, masks()]))


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
    return found, launches(by_kernel, one, other)


def launches(begin, a, b):
    """What torch is asked to compute, beside the pair kernel, when a pair is begun."""
    met = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            met.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    pair_kernel, run = sys.modules["layertap.measure.pair.kernel"], []
    before, pair_kernel._run = pair_kernel._run, lambda *given: run.append(given)
    try:
        with Operations():
            begin(a, b)
    finally:
        pair_kernel._run = before
    assert len(run) == 3
    return [name for name in met if name not in ("empty", "view", "slice", "detach", "as_strided", "_unsafe_view")]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_many_pairs_are_read_at_once_as_float64_measures_each() -> None:
    from measure.interpreter import interpreted

    found, judgements, expected, computed, (closing, besides) = interpreted(__file__)
    assert len(found) == 2 * len(SHAPES) + 3
    for ours, theirs in found[:-1]:
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-2)
        assert ours[8:] == theirs[8:], "what is not finite"
        assert (ours[5], ours[7]) == (theirs[5], theirs[7]), "the worst row and column"
    for ours, theirs in zip(judgements, expected, strict=True):
        assert ours == [pytest.approx(theirs[0], rel=1e-4), theirs[1]]
    assert [error > 0 for error, _ in expected].count(True) == 1, "one pair has a massive row"
    assert [grid for _, grid in expected].count(True) == 2, "one candidate went through float8, whole and repeated"
    assert {tuple(names) for names in computed} == {("constant_pad_nd",), ("clone",)}, "one launch besides"
    assert [one[1] for one in closing] == [one[2] for one in closing] == [0, 1, 0, 1], "closed is closed, by any number"
    assert [one[0] for one in closing] == [0.0] * 4
    assert [one[3] for one in closing] == [True, False, True, False]
    assert besides == ["threshold", "threshold", "clone"], "one pass over each side"
    assert found[-1][0][:4] == [0.0, found[-1][0][1], 0.0, 0.0], "equal tensors are exactly equal"


@pytest.mark.parametrize("shape", [(70, 96), (5, 8456), (1003,)])
def test_kernels_that_are_ready_are_given_the_addresses_of_what_triton_was_given(shape) -> None:
    from layertap.measure.pair import kernel

    a = torch.zeros(shape, dtype=torch.bfloat16)
    b, slab = torch.zeros_like(a), torch.zeros(kernel.PAIR_SLAB_BYTES, dtype=torch.uint8)
    plan = kernel._plan(a.shape, a.dtype, b.dtype, 0, 0, torch.device("cpu"))
    given = a, b, slab, torch.zeros(plan.norms + plan.flags)
    assert kernel._addresses(plan, *given) == tuple(one.data_ptr() for one in kernel._tensors(plan, *given))


if __name__ == "__main__":
    main()
