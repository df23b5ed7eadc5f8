"""The numbers themselves, where they are easy to get wrong; and what must not change them."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from layertap.errors import BadArgument
from layertap.measure import Measurement, measure, merge, native, plain, supported
from measure.dtypes import assert_agree, some
from measure.reference import reference

WAYS = {"native": native.measure, "plain": lambda x: plain.finish(plain.start(x))}
if not native.available():
    del WAYS["native"]
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@ways
def test_nan_and_inf_are_counted_and_left_out(way):
    x = some(torch.float32, 30000)
    clean = x.clone()
    x[[5, 4100, 29999]] = math.nan
    x[[6, 7]] = math.inf
    x[12345] = -math.inf
    found = way(x).statistics
    assert (found.count, found.nan, found.pos_inf, found.neg_inf, found.finite) == (30000, 3, 2, 1, 29994)
    kept = clean[torch.isfinite(x)].double()
    assert found.mean == pytest.approx(float(kept.mean()), rel=1e-12)
    assert found.std == pytest.approx(float(kept.std(correction=0)), rel=1e-12)
    assert (found.min, found.max) == (float(kept.min()), float(kept.max()))
    assert math.isnan(found.first[5])
    assert found.first[6] == math.inf


@ways
def test_nothing_finite(way):
    found = way(torch.full((5000,), math.nan)).statistics
    assert (found.finite, found.nan, found.l2) == (0, 5000, 0.0)
    assert all(math.isnan(x) for x in (found.mean, found.std, found.min, found.max, found.abs_mean))


@ways
@pytest.mark.parametrize(("mean", "dtype"), [(1e4, torch.float32), (-1e6, torch.float32), (1e9, torch.float64)])
def test_a_mean_far_larger_than_the_spread(way, mean, dtype):
    x = (torch.randn(300_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + mean).to(dtype)
    found = way(x).statistics
    exact = reference(x).statistics
    assert found.std == pytest.approx(exact.std, rel=1e-9)
    assert found.mean == pytest.approx(exact.mean, rel=1e-14)


@ways
def test_a_constant_has_no_spread(way):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for value, count in ((0.1, 50_001), (0.1, 7), (0.3, 11), (0.7, 1000)):
            found = way(torch.full((count,), value, dtype=dtype)).statistics
            assert (found.std, found.mean) == (0.0, found.min)
    assert way(torch.full((9,), 1e200, dtype=torch.float64)).statistics.std == 0.0  # though its squares overflow


@ways
def test_int64_extremes(way):
    info = torch.iinfo(torch.int64)
    found = way(torch.tensor([info.min, info.max, 0, -1, 1])).statistics
    assert (found.min, found.max, found.zero) == (float(info.min), float(info.max), 1)
    assert found.std == pytest.approx(math.sqrt(2 / 5) * 2.0**63, rel=1e-12)
    assert way(torch.tensor([2**64 - 1, 0], dtype=torch.uint64)).statistics.max == 2.0**64


@ways
def test_doubles_near_the_end_of_their_range(way):
    found = way(torch.tensor([1.7e308, 1.7e308, -1.7e308, 1.0], dtype=torch.float64)).statistics
    assert (found.min, found.max, found.std) == (-1.7e308, 1.7e308, math.inf)
    assert way(torch.tensor([1e200, 3e200], dtype=torch.float64)).statistics.std == math.inf  # not 0, and not NaN


def test_parts_near_the_end_of_the_range_merge():
    large = torch.tensor([1.7e308, -1.7e308, 1.7e308, 1.7e308], dtype=torch.float64)
    found = merge([measure(large[i : i + 1], offset=i) for i in range(4)]).statistics
    assert found.mean == pytest.approx(0.85e308)
    assert (found.std, found.abs_mean) == (math.inf, math.inf)


@ways
def test_booleans(way):
    found = way(torch.tensor([True, False, True, True])).statistics
    assert (found.mean, found.min, found.max, found.zero, found.first) == (0.75, 0.0, 1.0, 1, (1.0, 0.0, 1.0, 1.0))


@ways
def test_no_elements(way):
    found = way(torch.empty(0))
    assert (found.statistics.count, found.statistics.first, found.fingerprint) == (0, (), 0)
    assert found.sketch == bytes(1004)


def test_the_number_of_threads_changes_no_bit():
    x = some(torch.float32, 3_000_000)
    x[1_000_000] = math.nan
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found += [measure(x) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert all(repr(each) == repr(found[0]) for each in found)


def test_flushing_denormals_changes_nothing():
    x = torch.full((400_000,), 1e-40)
    expected = measure(x)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert measure(x) == expected
        assert expected.statistics.zero == 0
    finally:
        torch.set_flush_denormal(False)


def test_merge_needs_parts_that_are_alike():
    one = measure(torch.ones(3))
    assert merge([one]).statistics == one.statistics
    with pytest.raises(BadArgument, match="at least one part"):
        merge([])
    with pytest.raises(BadArgument, match="parts without one"):
        merge([one, measure(torch.ones(3), statistics_only=True)])


def test_an_empty_part_is_no_part():
    x = some(torch.float32, 100)
    assert_agree(merge([measure(x[:0]), measure(x[:3]), measure(x[3:], offset=3)]), reference(x))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.empty(2, device="meta"), "a meta tensor has no values"),
        (lambda: torch.eye(3).to_sparse(), "layout sparse_coo"),
        pytest.param(
            lambda: torch.empty(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            "dtype float4_e2m1fn_x2",
            marks=pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4"),
        ),
        (lambda: torch.empty(4, dtype=torch.uint8).view(torch.bits8), "dtype bits8"),
    ],
)
def test_what_cannot_be_measured_says_why(make, reason):
    tensor = make()
    assert reason in supported(tensor)
    with pytest.raises(BadArgument, match="cannot measure this tensor: " + reason):
        measure(tensor)


def test_reading_needs_no_torch():
    rooms = "layertap.measure, layertap.measure.sketch, layertap.measure.result, layertap.measure.definition"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_forked_child_measures_too():
    code = """
import os, torch
from layertap.measure import measure, native
x = torch.ones(1_000_000)
expected = measure(x)
child = os.fork()
if child == 0:
    os._exit(0 if not native._pool and measure(x) == expected else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=60).returncode == 0


def test_measurement_reads_back_as_float32():
    found = measure(some(torch.float32, 1000))
    assert isinstance(found, Measurement)
    assert np.frombuffer(found.sketch, "<f4").shape == (251,)
