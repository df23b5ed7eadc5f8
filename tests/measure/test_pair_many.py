"""Many pairs read at once say what float64 says of each, by triton's interpreter on CPU tensors."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

SHAPES = [(70, 96), (2, 9, 136), (17, 64)]


def main() -> None:
    from layertap.measure.pair import kernel as pair_kernel
    from layertap.measure.pair import many as pair_many
    from layertap.measure.pair.deferred import _measure

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
    pairs.append((pairs[1][0], pairs[1][0].clone()))
    slabs = [pair_many.begin_pair(a, b) for a, b in pairs]
    read = pair_many.read_pairs(slabs, [tuple(a.shape) for a, _ in pairs])
    for (a, b), numbers in zip(pairs, read, strict=True):
        found.append([list(numbers), _measure(a, b).tolist()])
    print(json.dumps(found))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_many_pairs_are_read_at_once_as_float64_measures_each() -> None:
    from measure.interpreter import interpreted

    found = interpreted(__file__)
    assert len(found) == 2 * len(SHAPES) + 1
    for ours, theirs in found[:-1]:
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-2)
        assert ours[8:] == theirs[8:], "what is not finite"
        assert (ours[5], ours[7]) == (theirs[5], theirs[7]), "the worst row and column"
    assert found[-1][0][:4] == [0.0, found[-1][0][1], 0.0, 0.0], "equal tensors are exactly equal"


if __name__ == "__main__":
    main()
