"""Parts of a partition add up to the whole: fingerprints bit for bit, sketches up to rounding, whatever was cut."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))  # triton's interpreter runs this file as a program

from layertap.errors import BadArgument
from layertap.measure import measure, part, plain
from layertap.measure.definition import LANES
from layertap.measure.part import kernel, merge_sums, native, whole_sums
from layertap.measure.part import plain as part_plain
from layertap.measure.part.place import PartPlace, boxes_of
from measure.dtypes import COMPLEX, REAL, every_bit, some


def slices(size, count):
    """As torch.chunk cuts: the last parts may be smaller, or empty."""
    step = -(-size // count)
    return [((min(at * step, size), min((at + 1) * step, size)),) for at in range(count)]


def zigzag(size, count):
    step = size // (2 * count)
    return [
        ((at * step, (at + 1) * step), ((2 * count - 1 - at) * step, (2 * count - at) * step)) for at in range(count)
    ]


def packed(size, count, pieces=3):
    step = size // (pieces * count)
    return [tuple(((p * count + at) * step, (p * count + at + 1) * step) for p in range(pieces)) for at in range(count)]


CUTS = {"slices": slices, "zigzag": zigzag, "packed": packed}


def places(shape, cuts):
    """The parts of a whole that is cut along some axes: {axis: (how, into how many)}."""
    axes = [
        CUTS[cuts[axis][0]](size, cuts[axis][1]) if axis in cuts else [((0, size),)] for axis, size in enumerate(shape)
    ]
    return [PartPlace(spans=spans, shape=tuple(shape)) for spans in itertools.product(*axes)]


def taken(whole, place):
    """The part that lies there."""
    for axis, spans in enumerate(place.spans):
        index = [at for begin, end in spans for at in range(begin, end)]
        whole = whole.index_select(axis, torch.tensor(index, dtype=torch.int64))
    return whole.contiguous()


def bytes_of(dtype, shape):
    """Random bits; index_select knows no unsigned numbers beyond 8 bits and no float8, so cut integers of that size."""
    return every_bit(dtype, math.prod(shape)).reshape(shape)


def cut(whole, place):
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if whole.dtype in COMPLEX or not whole.numel():
        return taken(whole, place)
    return (
        taken(whole.view(signed[whole.element_size()]), place).view(whole.dtype)
        if math.prod(place.part)
        else (torch.empty(place.part, dtype=whole.dtype))
    )


def compared(sums, whole):
    """What the merged sums get wrong, in words."""
    merged, expected = merge_sums(sums), plain.finish(plain.start(as_real(whole)))
    if merged.fingerprint != expected.fingerprint:
        return f"fingerprint {merged.fingerprint:x} for {expected.fingerprint:x}"
    found, sketch = (np.frombuffer(one.sketch, "<f4").astype(float) for one in (merged, expected))
    with np.errstate(invalid="ignore"):
        off = np.abs(found - sketch)
    scale = scale_of(whole)
    if math.isfinite(scale) and not off.max() <= 1e-6 * scale * len(sums) + 1e-44:
        return f"sketch off by {off.max()} of {scale}"
    return ""


def as_real(whole):
    return torch.view_as_real(whole).contiguous() if whole.is_complex() else whole


def scale_of(whole):
    """The largest sum of sizes in a bucket, at most: rounding to float32 is relative to that."""
    values = plain.values_of(as_real(whole).reshape(-1))
    total = torch.where(torch.isfinite(values), values, 0).abs().sum()
    return float(total) if float(total) < 1e37 else math.inf


def by_torch(tensor, place):
    boxes = boxes_of(place.doubled() if tensor.is_complex() else place)
    fingerprint, sketch = part_plain.start(as_real(tensor), boxes)
    return part.PendingSums(fingerprint=fingerprint, sketch=sketch).finish()


cases = st.lists(st.integers(1, 14), min_size=1, max_size=4).flatmap(
    lambda shape: st.tuples(
        st.just(tuple(shape)),
        st.dictionaries(
            st.integers(0, len(shape) - 1), st.tuples(st.sampled_from([*CUTS]), st.integers(1, 5)), max_size=2
        ),
    )
)


def whole_sizes(shape, cuts):
    """The shape, made to divide where slices in another order ask for it."""
    units = {"slices": 1, "zigzag": 2, "packed": 3}
    return tuple(
        size * units[cuts[axis][0]] * cuts[axis][1] if cuts.get(axis, ("slices",))[0] != "slices" else size
        for axis, size in enumerate(shape)
    )


@pytest.mark.parametrize("measured", [whole_sums, by_torch], ids=["onepass", "torch"])
@settings(max_examples=150, deadline=None)
@given(case=cases, dtype=st.sampled_from([*REAL, *COMPLEX]), wild=st.booleans())
def test_parts_of_any_partition_add_up_to_the_whole(measured, case, dtype, wild):
    shape, cuts = case
    shape = whole_sizes(shape, cuts)
    whole = bytes_of(dtype, shape) if wild and dtype not in COMPLEX else some(dtype, math.prod(shape)).reshape(shape)
    sums = [measured(cut(whole, place), place) for place in places(shape, cuts)]
    assert compared(sums, whole) == ""


def test_the_compiled_library_is_what_is_tested():
    assert native.available()


LARGE = [
    ((LANES + 5, 7), {0: ("slices", 3)}),
    ((3, 2 * LANES + 9), {1: ("slices", 4)}),
    ((5, 640, 200), {2: ("slices", 4)}),
    ((4, 640, 200), {0: ("slices", 2), 2: ("slices", 2)}),
    ((2, 640, 300), {1: ("zigzag", 4)}),
    ((100, 3000), {1: ("packed", 4)}),
    ((70_001, 9), {1: ("slices", 9)}),
]


@pytest.mark.parametrize(("shape", "cuts"), LARGE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_large_parts_with_several_chunks_and_blocks(shape, cuts, dtype):
    whole = some(dtype, math.prod(shape)).reshape(shape)
    pieces = [(cut(whole, place), place) for place in places(shape, cuts)]
    assert compared([whole_sums(*piece) for piece in pieces], whole) == ""
    assert compared([by_torch(*piece) for piece in pieces], whole) == ""


def test_the_answer_does_not_depend_on_the_number_of_threads(monkeypatch):
    [place, _] = places((900, 3000), {1: ("slices", 2)})
    tensor = some(torch.float32, 900 * 1500).view(900, 1500)
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(whole_sums(tensor, place))
    assert found[0] == found[1]


def test_a_part_that_does_not_lie_in_one_piece_in_memory(monkeypatch):
    whole = some(torch.float32, 12 * 10).view(12, 10)
    pair = places((12, 10), {0: ("zigzag", 2)})
    apart = [cut(whole, place).t().contiguous().t() for place in pair]
    assert not any(tensor.is_contiguous() for tensor in apart)
    for most in (part.COPY, 8):
        monkeypatch.setattr(part, "COPY", most)
        assert compared([whole_sums(tensor, place) for tensor, place in zip(apart, pair, strict=True)], whole) == ""


def test_one_wrong_element_shows_in_the_sum_of_the_parts():
    whole = some(torch.bfloat16, 6 * 80).view(6, 80)
    sums = []
    for number, place in enumerate(places((6, 80), {1: ("slices", 4)})):
        tensor = cut(whole, place)
        if number == 2:
            tensor[3, 5] += 1
        sums.append(whole_sums(tensor, place))
    assert merge_sums(sums).fingerprint != measure(whole).fingerprint


def test_measure_gives_both_pairs_of_sums():
    whole = torch.arange(24.0).view(4, 6)
    place = places((4, 6), {1: ("slices", 2)})[1]
    found = measure(whole[:, 3:], place=place)
    assert found.in_whole == whole_sums(whole[:, 3:], place)
    assert found.fingerprint == measure(whole[:, 3:].contiguous()).fingerprint != found.in_whole.fingerprint


def test_another_shape_than_the_place_has_is_an_error():
    with pytest.raises(BadArgument, match=r"a tensor of shape \[4, 2\] is not the part of shape \[4, 3\]"):
        whole_sums(torch.ones(4, 2), places((4, 6), {1: ("slices", 2)})[0])


def test_a_cut_of_one_axis_is_two_levels_whatever_the_rank():
    [box] = boxes_of(places((2, 3, 8, 5, 6), {2: ("slices", 2)})[1])
    assert [(level.extent, level.step, level.whole_step) for level in box.levels] == [(6, 120, 240), (120, 1, 1)]
    assert [piece.count for piece in box.pieces(250)] == [240, 240, 240]
    assert [piece.count for piece in box.pieces(100)] == [100, 20] * 6
    first, second = boxes_of(places((8, 3), {0: ("zigzag", 2)})[0])
    assert (first.whole_start, second.whole_start, second.start) == (0, 18, 6)


TRITON = [
    ((6, 40), {1: ("slices", 4)}),
    ((5, 9), {0: ("slices", 3)}),
    ((3, 8, 6), {1: ("zigzag", 2)}),
    ((2, 4, 6, 3), {1: ("slices", 2), 2: ("slices", 3)}),
    ((7,), {0: ("slices", 4)}),
    ((2, 3, 4, 5, 6), {1: ("slices", 3), 3: ("slices", 5)}),
    ((3, LANES + 3), {1: ("slices", 2)}),
    ((4, 9), {1: ("slices", 9)}),
]
KINDS = ("float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float64", "int8", "int16", "int32", "int64")


def main() -> None:
    found = {}
    kernel._BLOCK = 256  # so that a program has several
    for shape, cuts in TRITON:
        for kind in (*KINDS, "uint8", "bool") if math.prod(shape) < 300 else KINDS[:1]:
            whole = bytes_of(getattr(torch, kind), shape)
            sums = []
            for place in places(shape, cuts):
                fingerprint, sketch = kernel.start(cut(whole, place), boxes_of(place))
                sums.append(part.PendingSums(fingerprint=fingerprint, sketch=sketch).finish())
            found[f"{kind} {shape} {cuts}"] = compared(sums, whole)
    print(json.dumps(found))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_the_kernel_adds_up_to_the_whole():
    from measure.interpreter import interpreted

    found = interpreted(__file__)
    assert len(found) > len(TRITON)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


def test_what_crosses_over_from_a_device_is_read_as_it_was():
    place = places((6, 40), {1: ("slices", 4)})[3]
    tensor = some(torch.float32, 60).view(6, 10)
    assert part.unpacked(part.start(tensor, place).packed().numpy()) == part.start(tensor, place).finish()


if __name__ == "__main__":
    main()
