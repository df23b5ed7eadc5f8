"""signs.c against the same in torch's operations."""

import math

import pytest
import torch

from layertap.measure.pair import deferred, signs_native

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
pytestmark = pytest.mark.skipif(not signs_native.available(), reason="no compiled library")


@pytest.fixture
def both(monkeypatch):
    def measure(reference, candidate):
        fast = deferred.compare_tensors(reference, candidate)
        with monkeypatch.context() as patched:
            patched.setattr(signs_native, "available", lambda: False)
            slow = deferred.compare_tensors(reference, candidate)
        for name in ("error", "slope", "offset", "row_error", "column_error", "calm"):
            ours, theirs = getattr(fast, name), getattr(slow, name)
            assert math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12), (name, fast, slow)
        for name in ("nan_mismatch", "inf_mismatch", "count", "equal", "grid", "shape", "mismatched"):
            assert getattr(fast, name) == getattr(slow, name), (name, fast, slow)
        assert (fast.row and fast.row.index) == (slow.row and slow.row.index)
        assert (fast.column and fast.column.index) == (slow.column and slow.column.index)
        return fast

    return measure


@pytest.mark.parametrize("there", DTYPES, ids=str)
@pytest.mark.parametrize("here", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 4, 600), (1, 1025), (40, 1)], ids=str)
def test_it_says_what_torch_says(shape, here, there, both):
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(shape, generator=generator)
    found = right * 1.1 + 0.05 * torch.randn(shape, generator=generator)
    assert both(right.to(here), found.to(there)).error > 0.01
    assert both(right.to(here), right.to(here)).equal
    assert both(right.to(here), right.to(here).double()).equal


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_or_closed_is_counted_and_left_out(dtype, both):
    right = torch.randn(6, 700, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = right.clone()
    right[0, 3] = found[0, 3] = math.nan
    right[1, 5], found[1, 5] = torch.finfo(dtype).min, -math.inf  # both close a place
    found[2, 600] = math.inf
    found[4, 2] = math.nan
    found[3, 1] += 5
    fast = both(right, found)
    assert (fast.nan_mismatch, fast.inf_mismatch, fast.equal) == (1, 1, False)
    assert (fast.row.index, fast.column.index) == ((3,), (1,))


def test_massive_lines_and_grids_are_seen(both):
    right = torch.randn(20, 64, generator=torch.Generator().manual_seed(2))
    coarse = right.to(torch.float8_e4m3fn).float()
    assert both(right, coarse).grid
    assert both(coarse, coarse).grid
    right[4] *= 1e5
    found = right.clone()
    found[5] *= 1.1
    fast = both(right, found)
    assert fast.calm > 100 * fast.error
    assert not fast.grid


def test_a_view_is_read_as_it_lies(both):
    right = torch.randn(30, 20, generator=torch.Generator().manual_seed(3))
    assert math.isclose(both(right.t(), right.t() * 1.5).error, 0.5, rel_tol=1e-6)
    assert both(right[::2, 1:], right[1::2, 1:]).error > 1
