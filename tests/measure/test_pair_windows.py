"""A pass over maps that are larger than memory: the same numbers, and every byte is let go of behind it."""

import numpy as np
import pytest

from layertap.measure.pair import Array, compare, native, plain

MIB = 1 << 20
SHAPES = [(3_000_001,), (700, 5001), (3, 700_000), (5, 262_144), (2_000_000, 2), (40, 100, 513), (2_500_000, 1)]


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("pair.c was not compiled")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kinds", [("float32", "float32"), ("float16", "float64"), ("complex64", "complex64")], ids=str)
def test_window_by_window_is_the_same_to_the_last_bit(way, monkeypatch, shape, kinds):
    rng = np.random.default_rng(0)
    one = rng.standard_normal(shape)
    other = one * (1 + 1e-3 * rng.standard_normal(shape))
    one.flat[[7, -1]] = np.nan, np.inf
    sides = [Array.of(value.astype(kind)) for value, kind in zip((one, other), kinds, strict=True)]
    fingerprints, parts = [[], []], [[], []]
    wholes = [
        Array(raw=side.raw, dtype=side.dtype, shape=side.shape, check=found.append)
        for side, found in zip(sides, fingerprints, strict=True)
    ]
    expected = compare(*wholes, argmax=True)
    monkeypatch.setattr(plain, "WINDOW", MIB)
    windowed = [
        Array(
            raw=side.raw,
            dtype=side.dtype,
            shape=side.shape,
            check=found.append,
            release=lambda *part, to=to: to.append(part),
        )
        for side, found, to in zip(sides, fingerprints, parts, strict=True)
    ]
    assert repr(compare(*windowed, argmax=True)) == repr(expected)
    assert all(first == second for first, second in fingerprints)
    for side, found in zip(sides, parts, strict=True):
        ends = {end for _, end in found}
        assert all(begin == 0 or begin in ends for begin, _ in found)  # without a gap
        assert max(ends) == side.raw.size
        assert max(end - begin for begin, end in found) <= 8 * MIB  # some chunks are larger than this small window


def test_what_is_no_map_is_read_in_one_go(monkeypatch):
    monkeypatch.setattr(plain, "WINDOW", MIB)
    monkeypatch.setattr(native, "_chunks", lambda *_: pytest.fail("cut into windows"))
    side = Array.of(np.ones((1000, 1000), np.float32))
    assert compare(side, side).max_abs == 0
