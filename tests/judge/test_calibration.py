"""What the calibrations state holds on arithmetic made here: roundings, layers, rows and columns."""

import math

import pytest
import torch
from torch import nn

from layertap.judge.calibration import CERTAIN, LIMIT_AMONG_EQUALS, LIMIT_OF_MODULES, LIMIT_OF_RUNS, PER_LAYER, SPREAD
from layertap.judge.roundoff import ROUNDOFF
from layertap.judge.signs import least_of, ratio_of
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import Difference


def rounding(dtype):
    values = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return float((values.to(dtype).double() - values).norm() / values.norm())


@pytest.mark.parametrize("name", sorted(set(ROUNDOFF) - {"int8", "float64"}))
def test_a_roundoff_is_what_one_rounding_does(name):
    # The relative L2 of one rounding: 0.4 of the largest one, which is the table's number, or twice that for halves.
    assert 0.3 * ROUNDOFF[name] < rounding(getattr(torch, name)) < 0.95 * ROUNDOFF[name]


def test_int8_counts_as_a_grid_of_255_steps_over_the_whole_range():
    values = torch.rand(1 << 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    rounded = (values * 127).round() / 127
    assert 0.3 < float((rounded - values).norm() / values.norm()) / ROUNDOFF["int8"] < 1.5


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_adds_no_more_than_the_modelled_floor_says(dtype):
    # In software, so that no instruction set matters: parameters and every product rounded, sums in float32.
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(12)]
    exact = rounded = torch.randn(32, 64)
    for count, layer in enumerate(layers, 1):
        exact = exact + torch.tanh(layer(exact))
        weight, bias = (parameter.to(dtype).float() for parameter in (layer.weight, layer.bias))
        step = torch.tanh((rounded @ weight.T + bias).to(dtype).float()).to(dtype).float()
        rounded = (rounded + step).to(dtype).float()
        error = float((rounded - exact).norm() / exact.norm())
        modelled = PER_LAYER * ROUNDOFF[str(dtype).removeprefix("torch.")] * math.sqrt(1 + count)
        assert modelled / 20 < error < modelled * LIMIT_OF_RUNS / 2
    found = compare_tensors(exact, rounded)
    assert found.row_error < SPREAD * found.error
    assert found.column_error < SPREAD * found.error


def test_what_is_less_certain_needs_a_larger_ratio():
    assert CERTAIN["measured"] == LIMIT_OF_RUNS < CERTAIN["similar"] < CERTAIN["modelled"]
    assert LIMIT_AMONG_EQUALS < LIMIT_OF_MODULES


def test_a_coherent_error_shows_where_the_norm_does_not():
    reference = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    floor = compare_tensors(reference, reference.bfloat16().float())
    noisy = reference.bfloat16().float()
    ratio, _ = ratio_of(compare_tensors(reference, noisy), floor, least_of("bfloat16"))
    assert ratio <= 1.0
    ratio, sign = ratio_of(compare_tensors(reference, noisy * 1.003), floor, least_of("bfloat16"))
    assert ratio > LIMIT_OF_MODULES
    assert sign == "slope"


@pytest.mark.parametrize(
    ("found", "floor", "ratio", "sign"),
    [
        (Difference(equal=True), Difference(), 0.0, "exact"),
        (Difference(absent=True), Difference(), math.inf, "absent"),
        (Difference(shape=True), Difference(), math.inf, "shape"),
        (Difference(shape=True), Difference(shape=True), 0.0, "shape"),
        (Difference(inf_mismatch=1, relative_l2=0.1, count=9), Difference(relative_l2=1.0), math.inf, "nonfinite"),
        (Difference(mismatched=0.05, count=100), Difference(), 1.0, "mismatched"),
        (Difference(relative_l2=4.0, count=1), Difference(relative_l2=2.0), 2.0, "error"),
        (Difference(relative_l2=2.0, grid=True, count=1), Difference(relative_l2=2.0), 4.0, "grid"),
    ],
)
def test_signs_of_one_measurement(found, floor, ratio, sign):
    assert ratio_of(found, floor, least_of("float32")) == (ratio, sign)


def test_one_mask_place_that_differs_is_no_tie():
    assert ratio_of(Difference(mismatched=0.05, truth=True, count=100), Difference(), 1e-7)[0] > 1e100
