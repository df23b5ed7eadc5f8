"""From two sketches alone: how far apart two tensors are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layertap.errors import BadArgument
from layertap.measure import measure
from layertap.measure.definition import LANES
from layertap.measure.sketch import cosine, relative_l2
from measure.reference import weights

# Not multiples of 251: there a channel keeps to few buckets, which is why BUCKETS is a prime that no model uses.
WIDTHS = (64, 100, 768, 1000, 1536, 4096, 5120)


def activations(width: int, seed: int) -> torch.Tensor:
    """As in a language model: a few channels are a hundred times as large as the rest, and one token is an outlier."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(512, width, generator=generator)
    x[:, torch.randint(width, (3,), generator=generator)] *= 100
    x[0] *= 30
    return x


def noise(x: torch.Tensor) -> torch.Tensor:
    return x + 0.01 * x.abs() * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


def dead_token(x: torch.Tensor) -> torch.Tensor:
    return x.index_fill(0, torch.tensor([17]), 0)


def channel_off(x: torch.Tensor) -> torch.Tensor:
    return x.index_fill(1, torch.tensor([17]), 3.0)


FAULTS = {
    "noise": noise,
    "dead token": dead_token,
    "one channel off": channel_off,
    "constant offset": lambda x: x + 0.1,
    "scale": lambda x: 1.03 * x,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fault", FAULTS)
def test_relative_l2_within_15_percent(fault, width):
    for seed in range(3):
        x = activations(width, seed)
        y = FAULTS[fault](x)
        true = float((y - x).double().norm() / x.double().norm())
        one, two = measure(x), measure(y)
        assert relative_l2(one.sketch, two.sketch, one.statistics.l2) == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize("width", WIDTHS)
def test_cosine(width):
    x, other = activations(width, 0), activations(width, 1)
    for y in (x, -x, x + other, other):
        true = float(torch.nn.functional.cosine_similarity(x.double().flatten(), y.double().flatten(), dim=0))
        assert cosine(measure(x).sketch, measure(y).sketch) == pytest.approx(true, abs=0.2)


def test_nothing_to_compare():
    zero, one = measure(torch.zeros(9)).sketch, measure(torch.ones(9)).sketch
    assert relative_l2(zero, zero, 0.0) == 0.0
    assert relative_l2(zero, one, 0.0) == math.inf
    assert math.isnan(cosine(zero, one))
    with pytest.raises(BadArgument, match="1004 bytes, got 0; was the tensor measured without one"):
        relative_l2(b"", one, 1.0)


def test_values_that_are_not_finite_add_nothing():
    x = torch.ones(9000)
    y = x.clone()
    y[::7] = math.nan
    y[1::7] = -math.inf
    clean = torch.where(torch.isfinite(y), y, 0)
    assert measure(y).sketch == measure(clean).sketch


def test_a_sketch_of_large_values_does_not_overflow_on_the_way():
    # The upper rows' terms are all positive, the lower rows' negative: they cancel, if nothing overflows first.
    signs = np.where(weights(np.arange(8 * LANES)) >> np.uint64(31), -1.0, 1.0)
    signs[4 * LANES :] *= -1
    x = torch.from_numpy((3e38 * signs).astype(np.float32))
    assert not np.frombuffer(measure(x).sketch, "<f4").any()
