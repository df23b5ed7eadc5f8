"""Histograms of fixed bins: each value in the bin that numpy finds from its magnitude, and parts that add up."""

import numpy as np
import pytest
import torch

from layertap.measure import histogram, real_view
from layertap.store.dtype import to_numpy
from measure.dtypes import COMPLEX, REAL, every_bit, some


def expected(tensor):
    """The counts by numpy's searchsorted, from the values and not from their bits."""
    real = real_view(tensor).contiguous()
    name = str(real.dtype).removeprefix("torch.")
    raw = real.reshape(-1).view(torch.uint8).numpy() if real.numel() else np.zeros(0, np.uint8)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = to_numpy(raw, name, (real.numel(),)).astype(np.float64)
    inner = 2.0 ** np.arange(-40, 41)
    finite = values[np.isfinite(values)]
    counts = np.zeros(168, np.int64)
    sides = np.searchsorted(inner, np.abs(finite), side="right")
    np.add.at(counts, 84 + sides[finite > 0], 1)
    np.add.at(counts, 82 - sides[finite < 0], 1)
    counts[83] = (finite == 0).sum()
    counts[[0, 166, 167]] = (values == -np.inf).sum(), (values == np.inf).sum(), np.isnan(values).sum()
    return counts


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize("make", [some, every_bit])
def test_counts_are_those_of_numpy(make, dtype):
    tensor = make(dtype, 4096, 3)
    found = histogram.reduce(tensor)
    assert found.dtype is torch.int64
    assert found.sum() == tensor.numel() * (2 if dtype.is_complex else 1)
    np.testing.assert_array_equal(found.numpy(), expected(tensor))
    assert histogram.reduce(tensor[:0]).tolist() == [0] * histogram.BINS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_edge_and_each_special_value_has_its_bin(dtype):
    powers = [2.0**k for k in range(-40, 41)]
    before = [float(torch.nextafter(torch.tensor(p, dtype=dtype), torch.tensor(0.0, dtype=dtype))) for p in powers]
    values = torch.tensor([*powers, *before], dtype=dtype)
    places = [*range(85, 166), *range(84, 165)]
    for value, place in zip(values, places, strict=True):
        assert histogram.reduce(value).nonzero().item() == place
        assert histogram.reduce(-value).nonzero().item() == 166 - place
    tiny = torch.tensor([1e-45 if dtype is torch.float32 else 5e-324], dtype=dtype)
    for value, place in ((0.0, 83), (-0.0, 83), (np.inf, 166), (-np.inf, 0), (np.nan, 167), (-np.nan, 167)):
        assert histogram.reduce(torch.tensor(value, dtype=dtype)).nonzero().item() == place, value
    assert histogram.reduce(tiny).nonzero().item() == 84
    assert histogram.reduce(torch.tensor([2**63 - 1, -(2**63), 2**40 - 1])).nonzero().flatten().tolist() == [
        1,
        164,
        165,
    ]


def test_edges_are_where_the_bins_end():
    edges, counts = histogram.edges(), histogram.reduce(torch.tensor([-3.0, 0.75]))
    assert len(edges) == histogram.BINS + 1
    low, high = counts.nonzero().flatten().tolist()
    assert edges[low : low + 2].tolist() == [-4, -2]
    assert edges[high : high + 2].tolist() == [0.5, 1]
    assert edges[83:85].tolist() == [0, 0]
    assert edges[[0, 1, 166, 167]].tolist() == [-np.inf, -np.inf, np.inf, np.inf]
    assert np.isnan(edges[168])


def test_parts_add_up_and_no_copy_is_larger_than_a_block(monkeypatch):
    tensor = some(torch.float32, 6000).reshape(20, 30, 10)
    whole = histogram.reduce(tensor)
    assert torch.equal(whole, sum(histogram.reduce(part) for part in tensor.split(7)))
    monkeypatch.setattr(histogram, "BLOCK", 64)
    seen = []
    bits = histogram._bits
    monkeypatch.setattr(histogram, "_bits", lambda values, form: seen.append(values.numel()) or bits(values, form))
    for view in (tensor, tensor.permute(2, 0, 1), tensor.flip(1)[:, ::1]):
        assert torch.equal(histogram.reduce(view), whole)
    half = tensor[:, ::2, 1:]
    assert torch.equal(histogram.reduce(half), torch.from_numpy(expected(half)))
    assert max(seen) == 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_way_of_devices_and_graphs_gives_the_same(monkeypatch, dtype):
    tensor = every_bit(dtype, 5000)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch, "bincount", None)
    np.testing.assert_array_equal(histogram.reduce(tensor).numpy(), expected(tensor))
    assert histogram.reduce(tensor[:0]).tolist() == [0] * histogram.BINS
