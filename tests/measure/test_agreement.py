"""The C code, plain torch and the reference give the same measure, for every dtype and every shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layertap.measure import measure, merge, native, plain
from layertap.measure.definition import LANES
from layertap.measure.result import Measurement
from measure.dtypes import COMPLEX, FLOAT, REAL, assert_agree, every_bit, some
from measure.reference import reference

LENGTHS = (0, 1, 8, 2009, LANES, 3 * LANES + 5, 35 * LANES + 11)  # the last one is more than a chunk of onepass.c
by_name = {"ids": lambda dtype: str(dtype).removeprefix("torch.")}
needs_native = pytest.mark.skipif(not native.available(), reason="built without a C compiler")


def by_plain(tensor: torch.Tensor, offset: int = 0, statistics_only: bool = False) -> Measurement:
    return plain.finish(plain.start(tensor, offset=offset, statistics_only=statistics_only))


def by_native(tensor: torch.Tensor, offset: int = 0, statistics_only: bool = False) -> Measurement:
    return native.measure(tensor, offset=offset, statistics_only=statistics_only)


WAYS = [pytest.param(by_native, marks=needs_native, id="native"), pytest.param(by_plain, id="plain")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", REAL, **by_name)
@pytest.mark.parametrize("make", [some, every_bit])
def test_every_dtype(way, dtype, make):
    for length in LENGTHS:
        tensor = make(dtype, length, seed=length)
        for offset in (0, 5 * LANES - 3) if length < 2 * LANES else (1000,):
            assert_agree(way(tensor, offset), reference(tensor, offset=offset))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64], **by_name)
def test_statistics_only_are_the_same_statistics(way, dtype):
    # Of 16-bit floats sixteen at a time are added up in a float32, when nothing but statistics is wanted.
    rtol = 1e-6 if dtype.itemsize == 2 else 1e-9
    for make in (some, every_bit):
        tensor = make(dtype, 20 * LANES + 3)
        found, expected = way(tensor, statistics_only=True), reference(tensor)
        assert (found.fingerprint, found.sketch) == (0, b"")
        whole = Measurement(statistics=found.statistics, fingerprint=expected.fingerprint, sketch=expected.sketch)
        assert_agree(whole, expected, rtol=rtol)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-6, 1e4, 1e30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], **by_name)
def test_statistics_only_of_tiny_and_huge_16_bit_floats(dtype, scale):
    values = torch.randn(100_003, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale
    tensor = values.to(dtype)
    found, expected = measure(tensor, statistics_only=True).statistics, measure(tensor).statistics
    assert (found.zero, found.pos_inf, found.min, found.max) == pytest.approx(
        (expected.zero, expected.pos_inf, expected.min, expected.max), nan_ok=True
    )
    assert (found.std, found.l2, found.abs_mean) == pytest.approx(
        (expected.std, expected.l2, expected.abs_mean), rel=1e-6, nan_ok=True
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", COMPLEX, **by_name)
def test_complex_is_measured_as_pairs_of_reals(dtype):
    tensor = some(dtype, 5000)
    assert_agree(measure(tensor, offset=37), reference(tensor, offset=37))
    assert measure(tensor).statistics.count == 10000
    if dtype is not torch.complex32:
        assert_agree(measure(tensor.conj()), reference(tensor.conj().resolve_conj()))
        assert_agree(measure(tensor.conj().imag), reference(tensor.conj().imag.resolve_neg()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOAT if dtype.itemsize < 4], **by_name)
def test_every_bit_pattern_of_the_small_floats(way, dtype):
    tensor = torch.arange(256**dtype.itemsize).to(torch.int32).to(torch.uint8 if dtype.itemsize == 1 else torch.uint16)
    assert_agree(way(tensor.view(dtype)), reference(tensor.view(dtype)))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_partition_merges_to_the_whole_in_the_reference(data):
    dtype = data.draw(st.sampled_from(REAL))
    length = data.draw(st.integers(1, 9000))
    tensor = some(dtype, length, seed=length)
    owner = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, data.draw(st.integers(1, 5)), length)
    parts = [reference(tensor, np.flatnonzero(owner == each)) for each in np.unique(owner)]
    whole, merged = reference(tensor), merge(parts)
    assert_agree(with_first_of(merged, whole), whole)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_contiguous_parts_with_their_offsets_merge_to_the_whole(data):
    dtype = data.draw(st.sampled_from(REAL))
    make = data.draw(st.sampled_from([some, every_bit]))
    length = data.draw(st.integers(1, 40000))
    tensor = make(dtype, length, seed=length)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=5)))
    edges = list(zip([0, *cuts], [*cuts, length], strict=True))
    assert_agree(merge([measure(tensor[a:b], offset=a) for a, b in edges]), reference(tensor))


def with_first_of(one: Measurement, other: Measurement) -> Measurement:
    """Parts that interleave cannot know the first values of the whole."""
    from dataclasses import replace

    return replace(one, statistics=replace(one.statistics, first=other.statistics.first))


LAYOUTS = {
    "transposed": lambda: some(torch.float32, 6000).view(60, 100).t(),
    "strided": lambda: some(torch.bfloat16, 6000).view(60, 100)[::2, ::3],
    "expanded": lambda: some(torch.float32, 77).view(1, 77).expand(40, 77),
    "channels last": lambda: some(torch.float16, 2 * 8 * 5 * 5).view(2, 8, 5, 5).to(memory_format=torch.channels_last),
    "0-dim": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(3, 0, 2),
    "parameter": lambda: torch.nn.Parameter(some(torch.float32, 10)),
    "negated lazily": lambda: torch._neg_view(some(torch.float32, 100)),
    "odd storage offset": lambda: some(torch.float16, 4100)[3:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_read_in_c_order(layout):
    tensor = LAYOUTS[layout]()
    assert_agree(measure(tensor), reference(tensor.resolve_neg()))


def test_a_large_tensor_that_is_not_contiguous_goes_slice_by_slice(monkeypatch):
    monkeypatch.setattr("layertap.measure.COPY", 500)
    for shape in ((60, 100), (1, 30, 200), (2, 3, 1000)):
        tensor = some(torch.float32, 6000).view(shape).transpose(-1, -2)
        assert_agree(measure(tensor, offset=11), reference(tensor, offset=11))
