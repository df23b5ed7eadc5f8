"""Every metric of a pair against a slow and plain numpy reference, by both implementations."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layertap.errors import BadArgument
from layertap.measure.fingerprint import fingerprint
from layertap.measure.pair import Array, compare
from layertap.measure.pair import lines as pair_lines
from layertap.measure.pair import native as pair_native
from layertap.measure.pair import plain as pair_plain
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import Difference
from layertap.result import as_dict, equal
from measure.dtypes import COMPLEX, REAL, every_bit, some

WAYS = ["native", "plain"] if pair_native.available() else ["plain"]
TIGHT = {"rel": 1e-10, "abs": 1e-13}
LOOSE = {"rel": 2e-6}  # relative errors of narrow types are divided in float32


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Which implementation `compare` finds."""
    if request.param == "plain":
        monkeypatch.setattr(pair_native, "available", lambda: False)
    return request.param


def name(dtype):
    return str(dtype).removeprefix("torch.")


def array(x) -> Array:
    if isinstance(x, np.ndarray):
        return Array.of(x)
    raw = x.contiguous().reshape(-1).view(torch.uint8).numpy() if x.numel() else np.empty(0, np.uint8)
    return Array(raw=raw, dtype=name(x.dtype), shape=tuple(x.shape))


def doubles(x) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    if x.dtype in COMPLEX:
        x = torch.view_as_real(x)
    if x.dtype.is_floating_point and x.element_size() == 1:
        x = x.float()
    return x.numpy().astype(np.float64) if x.dtype is torch.uint64 else x.double().numpy()


STEPS = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}
STEPS |= {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}


def step(dtype, size):
    """The spacing of `dtype` at `size`."""
    if not dtype.is_floating_point:
        return 1.0
    bits, least = STEPS[name(dtype)]
    return 2.0 ** (max(math.frexp(size)[1] - 1 if size else least, least) - bits)


def check(a, b, found: Difference, rtol=1e-3, atol=1e-3, eps=1e-8) -> None:
    """The definitions, written down as plainly as possible."""
    x, y = doubles(a), doubles(b)
    shape = x.shape
    keep = np.isfinite(x) & np.isfinite(y)
    only_nan = np.isnan(x) != np.isnan(y)
    alike = ~keep & ((x == y) | (np.isnan(x) & np.isnan(y)))
    assert (found.count, found.finite) == (x.size, keep.sum())
    assert (found.nan_mismatch, found.nonfinite) == (only_nan.sum(), alike.sum())
    assert found.inf_mismatch == (~keep & ~only_nan & ~alike).sum()
    x0, y0 = np.where(keep, x, 0), np.where(keep, y, 0)
    x, y = x[keep], y[keep]
    if not x.size:
        return
    d, size = np.abs(x - y), np.abs(x)
    r = d / (size + eps)
    assert found.max_abs == pytest.approx(d.max(), **TIGHT)
    assert found.mean_abs == pytest.approx(d.mean(), **TIGHT)
    assert found.mse == pytest.approx((d * d).mean(), **TIGHT)
    assert found.reference_square == pytest.approx((x * x).mean(), **TIGHT)
    assert found.reference_abs == pytest.approx(size.mean(), **TIGHT)
    assert found.close == (d <= rtol * size + atol).mean()
    assert found.max_relative == pytest.approx(r.max(), **LOOSE)
    assert found.mean_relative == pytest.approx(r.mean(), **LOOSE)
    assert found.median_relative == pytest.approx(np.median(r), rel=0.01, abs=1e-40)
    assert found.percentiles == pytest.approx(np.percentile(d, [50, 90, 95, 99]), rel=0.01, abs=1e-40)
    if (x * x).sum() and (y * y).sum():
        assert found.cosine == pytest.approx(float(x @ y) / math.sqrt(float(x @ x) * float(y @ y)), abs=1e-12)
    if not isinstance(a, np.ndarray) and a.dtype not in COMPLEX and x.size < 5000:
        ulps = [e / max(step(a.dtype, s), step(b.dtype, s)) for e, s in zip(d.tolist(), size.tolist(), strict=True)]
        assert found.max_ulp == pytest.approx(max(ulps), **LOOSE)
    if len(shape) == 2 and min(shape) > 1:
        for part, typical, axis in (
            (found.row, found.row_typical, 1),
            (found.column, found.column_typical, 0),
        ):
            error, own = ((x0 - y0) ** 2).sum(axis), (x0 * x0).sum(axis)
            if not own.sum():
                continue
            relative = np.sqrt(error / np.maximum(own, own.mean()))
            assert part.relative == pytest.approx(relative.max(), **TIGHT)
            assert relative[part.index[0]] == pytest.approx(relative.max(), **TIGHT)
            assert part.share == pytest.approx(error[part.index[0]] / error.sum() if error.sum() else 0, **TIGHT)
            assert typical == pytest.approx(np.median(relative), **TIGHT)


PAIRS = [
    *((torch.float32, other) for other in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn)),
    *((other, torch.float32) for other in (torch.float8_e5m2, torch.float64, torch.bfloat16)),
    *((torch.float16, torch.bfloat16), (torch.float32, torch.int8), (torch.int32, torch.float32)),
    *((dtype, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool)),
    *((dtype, dtype) for dtype in (torch.int64, torch.uint8, torch.int8, torch.int16, torch.int32)),
]


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=name)
@pytest.mark.parametrize("shape", [(3, 1500), (61, 37), (700, 3), (2, 3)])
def test_every_pair_of_dtypes(way, one, two, shape):
    count = math.prod(shape)
    a, b = some(one, count, seed=1), some(two, count, seed=2)
    if one.is_floating_point and two.is_floating_point:
        b = (some(torch.float32, count, seed=1) * 1.01 + some(torch.float32, count, seed=2) * 0.01).to(two)
    check(a.view(shape), b.view(shape), compare(array(a.view(shape)), array(b.view(shape))))


@pytest.mark.parametrize("dtype", REAL, ids=name)
def test_every_bit_pattern(way, dtype):
    if dtype is torch.float64:
        pytest.skip("random exponents: the sums are infinite")
    a, b = every_bit(dtype, 4096, seed=1).view(8, 512), every_bit(dtype, 4096, seed=2).view(8, 512)
    found = compare(array(a), array(b))
    x, y = doubles(a), doubles(b)
    keep = np.isfinite(x) & np.isfinite(y)
    d = np.abs(x - y)[keep]
    assert found.finite == keep.sum()
    assert found.max_abs == d.max()
    assert found.mse == pytest.approx(float((d * d).mean()), rel=1e-10)
    assert found.max_relative == pytest.approx(float((d / (np.abs(x[keep]) + 1e-8)).max()), rel=1e-5)
    assert found.nan_mismatch == (np.isnan(x) != np.isnan(y)).sum()
    assert math.isfinite(found.cosine)


@pytest.mark.parametrize("dtype", [dtype for dtype in REAL if str(dtype)[-3:] in ("nuz", "fnu")], ids=name)
def test_the_rarer_fp8_types_are_read_as_torch_reads_them(way, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    found = compare(array(codes.float()), array(codes))
    assert (found.max_abs, found.nan_mismatch, found.inf_mismatch) == (0, 0, 0)
    assert found.finite == int(torch.isfinite(codes.float()).sum())


@pytest.mark.parametrize("dtype", COMPLEX, ids=name)
def test_complex_numbers_go_part_by_part(way, dtype):
    a, b = some(dtype, 600, seed=1).view(20, 30), some(dtype, 600, seed=1).view(20, 30).clone()
    b[7, 12] *= 3
    found = compare(array(a), array(b))
    check(a, b, found)
    assert (found.count, found.row.index, found.column.index) == (1200, (7,), (12,))
    assert found.column.share == 1.0


@pytest.mark.parametrize("shape", [(40, 50), (2000,), (3, 7)])
@pytest.mark.parametrize(("one", "two"), [("f4", "f4"), ("f8", "f8"), ("f2", "f8"), ("f4", "f2")])
def test_nan_and_inf_are_counted_and_left_out(way, shape, one, two):
    rng, inf, nan = np.random.default_rng(0), math.inf, math.nan
    a, b = rng.standard_normal((2, math.prod(shape)))
    a, b = a.astype(one), b.astype(two)
    a[[0, 1, 2, 3, 4, 5, 6]] = [nan, nan, inf, inf, -inf, inf, 1]
    b[[0, 1, 2, 3, 4, 5, 6]] = [nan, 1.0, inf, -inf, 2.0, nan, -inf]
    found = compare(Array.of(a.reshape(shape)), Array.of(b.reshape(shape)))
    assert (found.nan_mismatch, found.inf_mismatch, found.nonfinite) == (2, 3, 2)
    assert found.finite == a.size - 7
    check(a.reshape(shape), b.reshape(shape), found)


def test_a_masked_attention_has_its_infinities_alike(way):
    scores = np.random.default_rng(0).standard_normal((8, 300, 300)).astype(np.float32)
    scores[:, np.triu_indices(300, 1)[0], np.triu_indices(300, 1)[1]] = -np.inf
    found = compare(Array.of(scores), Array.of(scores * np.float32(1.5)))
    assert found.nonfinite == 8 * 300 * 299 // 2
    assert found.nan_mismatch == found.inf_mismatch == 0
    assert found.relative_l2 == pytest.approx(0.5)
    assert found.pearson == pytest.approx(1)
    check(scores, scores * np.float32(1.5), found)


def test_nothing_finite(way):
    nothing = np.full((4, 5), np.nan, np.float32)
    found = compare(Array.of(nothing), Array.of(nothing))
    assert (found.finite, found.nonfinite) == (0, 20)
    known = (found.max_abs, found.mse, found.cosine, found.relative_l2, found.sqnr, found.pearson)
    assert all(map(math.isnan, known)), "of values that are not there, nothing is known"
    assert found.allclose
    assert not compare(Array.of(nothing), Array.of(np.ones((4, 5), np.float32))).allclose


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_zeros(way, dtype):
    zeros, ones = Array.of(np.zeros((9, 9), dtype)), Array.of(np.ones((9, 9), dtype))
    assert compare(zeros, zeros).cosine == compare(zeros, zeros).pearson == 1
    assert compare(zeros, ones).cosine == compare(ones, zeros).cosine == 0
    assert compare(zeros, zeros).row.share == 0
    assert compare(zeros, ones).row.relative == math.inf
    assert compare(ones, zeros).row.relative == compare(ones, zeros).row_typical == 1
    assert compare(ones, zeros).column.share == pytest.approx(1 / 9)
    assert (compare(zeros, ones).max_relative, compare(zeros, zeros).max_ulp) == (pytest.approx(1e8), 0)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_empty(way, shape):
    found = compare(Array.of(np.zeros(shape, np.float32)), Array.of(np.zeros(shape, np.float16)))
    assert (found.count, found.max_abs, found.close, found.cosine, found.row, found.column) == (0, 0, 1, 1, None, None)
    assert found.allclose


def test_axes_with_one_member_have_no_part(way):
    def parts(*shape):
        found = compare(Array.of(np.ones(shape)), Array.of(np.full(shape, 2.0)))
        return found.row is not None, found.column is not None

    assert parts() == parts(1) == parts(1, 1) == (False, False)
    assert parts(7) == parts(1, 7) == parts(1, 1, 7) == (False, True)
    assert parts(7, 1) == parts(7, 2, 1) == (True, False)


@pytest.mark.parametrize("size", [1e37, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
def test_values_near_the_end_of_the_range(way, dtype, size):
    a = ((some(torch.float32, 3000, seed=1) + 0.1).sign() * size).to(dtype).view(30, 100)
    b = -a
    b[::2] = a[::2]
    found = compare(array(a), array(b))
    check(a, b, found)
    assert found.max_abs == pytest.approx(2 * float(a.double().abs().max()))
    assert found.relative_l2 == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e170, 1e307])
def test_float64_whose_squares_leave_the_range(way, size):
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, (50, 60))
    b = a.copy()
    b[3] = 0
    found, expected = compare(Array.of(a * size), Array.of(b * size), eps=1e-30), compare(Array.of(a), Array.of(b))
    assert found.cosine == pytest.approx(expected.cosine, rel=1e-12)
    assert found.pearson == pytest.approx(expected.pearson, rel=1e-12)
    assert found.row.index == (3,)
    assert found.row.relative == pytest.approx(expected.row.relative)
    assert found.max_abs == pytest.approx(expected.max_abs * size, rel=1e-12)
    assert found.percentiles == pytest.approx([p * size for p in expected.percentiles], rel=0.01)
    assert found.max_ulp == pytest.approx(2.0**53, rel=0.5)


@pytest.mark.parametrize(("mean", "dtype"), [(1e4, np.float32), (1e8, np.float64), (-1e6, np.float64)])
def test_pearson_where_the_mean_is_far_larger_than_the_spread(way, mean, dtype):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 200_000))
    a, b = (x + mean).astype(dtype), (0.5 * x + y - mean).astype(dtype)
    found = compare(Array.of(a), Array.of(b))
    exact = np.corrcoef(a.astype(np.longdouble) - mean, b.astype(np.longdouble) + mean)[0, 1]
    assert found.pearson == pytest.approx(float(exact), abs=1e-10)


@pytest.mark.parametrize("scale", [1e-20, 1e-9, 1e9])
def test_pearson_and_cosine_do_not_care_for_scale(way, scale):
    x, y = np.random.default_rng(0).standard_normal((2, 10_000))
    found = compare(Array.of(x), Array.of((x + y) * scale))
    assert found.cosine == pytest.approx(x @ (x + y) / np.linalg.norm(x) / np.linalg.norm(x + y), abs=1e-12)
    assert found.pearson == pytest.approx(np.corrcoef(x, x + y)[0, 1], abs=1e-12)


def test_cosine_of_sixteen_million_is_never_above_one(way):
    x = Array.of(np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32))
    found = compare(x, x)
    assert 1 - 1e-12 <= found.cosine <= 1
    assert 1 - 1e-12 <= found.pearson <= 1
    assert (found.max_abs, found.mse, found.percentiles) == (0, 0, (0, 0, 0, 0))


@pytest.mark.parametrize("spread", ["normal", "lognormal", "mostly zero", "two values"])
def test_percentiles(way, spread):
    rng = np.random.default_rng(0)
    d = rng.standard_normal(300_000)
    if spread == "lognormal":
        d = np.exp(4 * d)
    if spread == "mostly zero":
        d[rng.random(len(d)) < 0.92] = 0
    if spread == "two values":
        d = np.where(d > 1.5, 3.0, 0.25)
    a = rng.standard_normal(len(d))
    found = compare(Array.of(a), Array.of(a + d))
    check(a, a + d, found)
    assert found.median_abs == pytest.approx(np.median(np.abs(d)), rel=0.02)


def test_a_dead_token_row_and_a_dead_channel(way):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, 1024, 96)).astype(np.float32)
    noisy = a + np.float32(1e-4) * rng.standard_normal(a.shape).astype(np.float32)
    b = noisy.copy()
    b[2, 345] = 0
    found = compare(Array.of(a), Array.of(b))
    assert found.relative_l2 < 0.02
    assert found.row.index == (2, 345)
    assert found.row.relative == pytest.approx(1, rel=0.1)
    assert found.row.share > 0.99
    assert found.row_typical == pytest.approx(1e-4, rel=0.2)
    b = noisy.copy()
    b[..., 17] = 0
    found = compare(Array.of(a), Array.of(b))
    assert found.column.index == (17,)
    assert found.column.relative == pytest.approx(1, rel=0.01)
    assert found.column.share > 0.99
    assert found.column_typical == pytest.approx(1e-4, rel=0.2)


def test_a_quiet_row_is_not_judged_by_its_own_silence(way):
    a = np.ones((100, 50), np.float32)
    a[5] = 0
    b = a.copy()
    b[5] = 1e-3
    assert compare(Array.of(a), Array.of(b)).row.relative == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("shape", [(700_001, 2), (2, 700_001), (1_400_003,), (300_000, 1)])
def test_more_rows_or_columns_than_are_kept_apart(way, shape):
    a = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    b = a * np.float32(1.0001)
    place = tuple(size // 2 + 1 if size > 2 else 0 for size in shape)
    b[place] = 50
    found = compare(Array.of(a), Array.of(b))
    if shape[-1] > 2:
        assert found.column.index == place[-1:]
        assert found.column.share > 0.9
        assert found.column.relative > 10
    if shape[0] > 2 and len(shape) > 1:
        assert found.row.index == place[:1]
        assert found.row.share > 0.9
    assert found.max_abs > 40


@pytest.mark.skipif("native" not in WAYS, reason="nothing was compiled")
@pytest.mark.parametrize("shape", [(3000, 300), (2, 700_000), (1_000_000,), (130_000, 7), (3, 2, 150_001)])
def test_the_number_of_threads_changes_no_bit(monkeypatch, shape):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, *shape)).astype(np.float32)
    a.reshape(-1)[::1001] = np.nan
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(pair_native, "threads", lambda threads=threads: threads)
        found += [compare(Array.of(a), Array.of(b)) for _ in range(3)]
    assert all(one == found[0] for one in found)


@pytest.mark.skipif("native" not in WAYS, reason="nothing was compiled")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_native_and_plain_agree(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=0, max_size=3)))
    dtypes = st.sampled_from(["float32", "float16", "bfloat16", "float64", "int32", "uint8", "float8_e4m3fn"])
    seed, size = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e30]))
    rng, sides = np.random.default_rng(seed), []
    for dtype in (data.draw(dtypes), data.draw(dtypes)):
        values = torch.from_numpy(np.asarray(rng.standard_normal(shape) * (size if dtype[0] != "i" else 1e3)))
        values = values.abs() if dtype == "uint8" else values
        special = torch.from_numpy(np.asarray(rng.choice([0.0, math.nan, math.inf, -math.inf, 1.0], shape)))
        values = torch.where(torch.from_numpy(np.asarray(rng.random(shape) < 0.1)), special, values)
        if not getattr(torch, dtype).is_floating_point:
            values = values.nan_to_num(0, 0, 0).clamp(-200, 200)
        sides.append(array(values.float().to(getattr(torch, dtype))))
    native = compare(*sides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_native, "available", lambda: False)
        plain = compare(*sides)
    for field in ("count", "finite", "close", "nan_mismatch", "inf_mismatch", "nonfinite"):
        assert getattr(native, field) == getattr(plain, field), field
    if not native.finite and native.count:
        assert str(native) == str(plain), "all NaN: nothing is known"
        return
    assert native.max_abs == plain.max_abs
    for field in ("mean_abs", "mse", "reference_square", "reference_abs", "row_typical", "column_typical"):
        assert getattr(native, field) == pytest.approx(getattr(plain, field), rel=1e-10), field
    for field in ("cosine", "pearson"):
        assert getattr(native, field) == pytest.approx(getattr(plain, field), abs=1e-9), field
    for field in ("max_relative", "mean_relative", "max_ulp"):
        # float32 has no room for an ulp count below 1e-19; who asks for one wants to hear that it is nothing
        assert getattr(native, field) == pytest.approx(getattr(plain, field), rel=1e-5, abs=1e-15), field
    assert native.percentiles == pytest.approx(plain.percentiles, rel=0.01, abs=1e-40)
    for one, two in ((native.row, plain.row), (native.column, plain.column)):
        assert (one is None) == (two is None)
        assert one is None or one.relative == pytest.approx(two.relative, rel=1e-10)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40)] * 2), min_size=1, max_size=60),
    st.booleans(),
)
def test_any_values(pairs, grid):
    a, b = np.array(pairs, np.float32).T.copy()
    if grid:
        a, b = np.tile(a, (3, 1)), np.tile(b, (3, 1))
    check(a, b, compare(Array.of(a), Array.of(b)))


def test_argmax_agreement(way):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 500, 64)).astype(np.float32)
    b = a.copy()
    asked = compare(Array.of(a), Array.of(b), argmax=True).argmax
    assert (asked.rows, asked.share, asked.margin, asked.index) == (1000, 1.0, 0.0, None)
    assert compare(Array.of(a), Array.of(b)).argmax is None
    first, second = np.argsort(a[1, 77])[[-1, -2]]
    b[1, 77, second] = a[1, 77, first] + 1
    asked = compare(Array.of(a), Array.of(b), argmax=True).argmax
    lead = (a[1, 77, first] - a[1, 77, second]) / a[1, 77].std()
    assert (asked.share, asked.index) == (0.999, (1, 77))
    assert asked.margin == pytest.approx(lead, rel=1e-5)


def test_argmax_tells_a_tie_from_a_certainty(way):
    a = np.zeros((2, 8), np.float32)
    a[0, 3], a[0, 4], a[1, 5] = 1, 1 - 1e-6, 9
    b = a.copy()
    b[0, 4] = 1.5
    assert compare(Array.of(a), Array.of(b), argmax=True).argmax.margin < 1e-4
    b[1, 0] = 10
    found = compare(Array.of(a), Array.of(b), argmax=True).argmax
    assert (found.share, found.index) == (0, (1,))
    assert found.margin == pytest.approx(9 / a[1].std())
    a[1] = -np.inf
    a[1, 5] = 9
    assert compare(Array.of(a), Array.of(b), argmax=True).argmax.margin == math.inf


def test_argmax_of_integers_or_single_columns_is_nothing():
    for x in (np.ones((3, 4), np.int64), np.ones((3, 1), np.float32), np.float32(1), np.ones((0, 4), np.float32)):
        assert compare(Array.of(np.asarray(x)), Array.of(np.asarray(x)), argmax=True).argmax is None


def test_what_cannot_be_compared_is_said():
    a = Array.of(np.zeros((2, 3), np.float32))
    with pytest.raises(BadArgument, match=r"shapes differ: reference \(2, 3\), candidate \(3, 2\)"):
        compare(a, Array.of(np.zeros((3, 2), np.float32)))
    with pytest.raises(BadArgument, match=r"the candidate's dtype float4 cannot be compared; supported: float64"):
        compare(a, Array(raw=a.raw, dtype="float4", shape=(2, 3)))
    with pytest.raises(BadArgument, match=r"candidate is float32 \(2, 3\): expected 24 raw bytes, got 20 of uint8"):
        compare(a, Array(raw=a.raw[:20], dtype="float32", shape=(2, 3)))
    with pytest.raises(BadArgument, match="one side is complex: reference float32, candidate complex64"):
        compare(a, Array.of(np.zeros((2, 3), np.complex64)))
    with pytest.raises(BadArgument, match="eps of at least 1e-30"):
        compare(a, a, eps=0)


def test_a_memory_map_is_read_in_place_and_torch_stays_out(tmp_path):
    x = np.arange(3_000_000, dtype=np.float32)
    x.tofile(tmp_path / "x")
    script = """
import sys
import numpy as np
from layertap.measure.fingerprint import fingerprint
from layertap.measure.pair import Array, compare
raw = np.memmap(sys.argv[1], np.uint8, "r")
mapped = Array(raw=raw, dtype="float32", shape=(3000, 1000))
found = compare(mapped, mapped)
assert found.max_abs == 0 and found.count == 3_000_000 and found.reference_abs == 1499999.5
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], check=True)


def test_the_kept_lines_and_blocks_are_bounded():
    assert pair_lines.LINES * 16 < 2**24
    assert pair_plain.BLOCK * 8 < 2**24


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize("shape", [(0,), (), (3, 5), (301, 997), (2, 300_000)], ids=str)
def test_the_pass_gives_the_fingerprint_of_both_sides(way, dtype, shape):
    count = int(np.prod(shape))
    pair, found = [], {}
    for seed, side in enumerate(("reference", "candidate")):
        one = array(every_bit(dtype, count, seed))
        check = functools.partial(found.__setitem__, side)
        pair.append(Array(raw=one.raw, dtype=one.dtype, shape=shape, check=check))
    compare(*pair)
    assert found == {
        "reference": fingerprint(pair[0].raw, name(dtype)),
        "candidate": fingerprint(pair[1].raw, name(dtype)),
    }


def test_of_recorded_and_of_live_values_the_same_is_said_in_the_same_words() -> None:
    right = torch.randn(50, 70, generator=torch.Generator().manual_seed(5)).double() + 0.3
    wrong = 1.25 * right + 0.01
    read = compare(Array.of(right.numpy()), Array.of(wrong.numpy()))
    live = compare_tensors(right, wrong)
    for name in ("count", "relative_l2", "slope", "offset", "row_error", "column_error", "equal", "nonfinite_mismatch"):
        assert getattr(read, name) == pytest.approx(getattr(live, name), rel=1e-9), name
    assert (read.row.index, read.column.index) == (live.row.index, live.column.index)
    assert live.slope == pytest.approx(0.25 + 0.01 * right.mean() / right.square().mean())
    assert compare(Array.of(right.numpy()), Array.of(right.numpy())).equal
    assert compare_tensors(right, right.clone()).equal
    wrong[3, 4], wrong[4, 5], right[5, 6] = math.nan, math.inf, math.nan
    read, live = compare(Array.of(right.numpy()), Array.of(wrong.numpy())), compare_tensors(right, wrong)
    assert (read.nan_mismatch, read.inf_mismatch) == (live.nan_mismatch, live.inf_mismatch) == (2, 1)


def test_a_difference_survives_the_forms_in_which_it_is_written_down() -> None:
    right = torch.randn(4, 6, generator=torch.Generator().manual_seed(6))
    live = compare_tensors(right, right * 1.5)
    assert equal(Difference.from_dict(json.loads(json.dumps(live.live_dict()))), live)
    read = compare(Array.of(right.numpy()), Array.of((right * 1.5).numpy()))
    assert equal(Difference.from_dict(as_dict(read)), read)
