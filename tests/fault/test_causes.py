"""A cause states only what is so."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import error_forms, find_fault
from layertap.fault.error_forms import (
    _clipping,
    _coarse,
    _few,
    _order,
    _shift,
    error_form,
    faint_form,
    integer_form,
    near,
)

SLOW = torch.linspace(1, 2, 400).sin()[:, None].expand(400, 8).double()


def test_what_changes_slowly_is_not_called_shifted():
    noise = torch.randn(SLOW.shape, generator=torch.Generator().manual_seed(0)) * 5e-3
    assert _shift(SLOW, SLOW + noise) is None
    assert _shift(SLOW, SLOW.roll(1, 0))[0] == "shift"


def test_few_rows_with_all_of_the_energy_are_not_called_a_mask():
    right = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)).double()
    right[3] *= 1e3
    everywhere = 0.1 * right * torch.randn(40, 8, generator=torch.Generator().manual_seed(1)).double()
    assert _few(everywhere, right) is None
    one = torch.zeros_like(right)
    one[5] = right[5]
    assert _few(one, right) == ("mask", ("1 of 40 rows have the error (first: 5)",))


def test_few_values_are_no_sign_where_the_reference_has_as_few():
    right = torch.arange(8.0).repeat(100)
    assert _coarse(right, right + 1, 0.5, 1.0) is None
    fine = torch.randn(800, generator=torch.Generator().manual_seed(0))
    assert _coarse(fine, (4 * fine).round() / 4, 0.1, 1.0)[0] == "quantization"


def test_whole_numbers_that_are_equal_are_not_off():
    assert integer_form(torch.arange(5), torch.arange(5)) is None
    assert integer_form(torch.arange(5), torch.arange(5) + 1) == ("shift", ("every number is +1 off",))


@pytest.fixture
def trained():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).train()


def test_what_our_own_runs_write_is_no_cause(trained):
    candidate = copy.deepcopy(trained)
    wrong = candidate[1]
    wrong.forward = lambda x: -nn.BatchNorm1d.forward(wrong, x)
    found = find_fault(trained, candidate, (torch.randn(16, 8, generator=torch.Generator().manual_seed(1)),))
    assert (found.site, found.cause) == ("1", "sign"), str(found)
    assert not any(model[1].running_mean.any() for model in (trained, candidate)), "left as they were"


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


RIGHT, NOISE = drawn(200, 16), drawn(200, 16, seed=1)
ONE_ROW = torch.zeros(200, 16).double().index_fill_(0, torch.tensor([5]), 1.0)
REST_OF_ROWS = (1 - ONE_ROW) * NOISE


def form(found, *, right=RIGHT, around=None, floor=0.0):
    return error_form(right, found, around or {}, floor, "it")


def clipped(limit, spread=0.0, count=None):
    """The reference cut off at a limit; `spread` moves what is cut off away from it, `count` lets only some be cut."""
    found = RIGHT.clamp(-limit, limit)
    over = (RIGHT.abs() > limit).flatten().nonzero().flatten()
    flat = found.flatten()
    flat[over] *= 1 - spread * torch.linspace(0, 1, len(over)).double()
    if count is not None:
        flat[over[count:]] = 0.0
    return flat.reshape(RIGHT.shape)


def rows_moved(count):
    found = RIGHT.clone()
    found[1 : 1 + count] = RIGHT[:count]
    return found


# A constant, another value for it, and what is one cause with the constant and another with that value.
BORDERS = {
    "NEAR": (0.02, lambda: near(RIGHT, RIGHT * 1.015), False, True),
    "REST": (0.08, lambda: form(RIGHT + 1 + 0.06 * NOISE), None, "offset"),
    "FLOORS": (8, lambda: form(RIGHT + 1 + 0.1 * NOISE, floor=0.02), None, "offset"),
    "TERM_NOISE": (0.9, lambda: form(RIGHT - NOISE, around={"x": NOISE}, floor=0.3), None, "skipped"),
    "OFFSET_NOISE": (0.9, lambda: form(RIGHT + 1, floor=0.4), None, "offset"),
    "SLOPE_NOISE": (40, lambda: form(RIGHT * 1.01, floor=0.1), "scale", None),
    "AT_LIMIT": (1e-2, lambda: _clipping(RIGHT, clipped(1.5, 5e-3), clipped(1.5, 5e-3) - RIGHT), None, "clipping"),
    "CLIPPED": (10**6, lambda: _clipping(RIGHT, clipped(1.5), clipped(1.5) - RIGHT), "clipping", None),
    "LIMIT_GAIN": (1.5, lambda: _clipping(RIGHT, clipped(1.5), clipped(1.5) - RIGHT), "clipping", None),
    "REORDERED": (3.0, lambda: _order(RIGHT, RIGHT.flip(0), 1.4), "permutation", None),
    "CODES": (8, lambda: _coarse(RIGHT, (4 * RIGHT).round() / 4, 0.1, 1.0), "quantization", None),
    "FINER": (1000, lambda: _coarse(RIGHT, (4 * RIGHT).round() / 4, 0.1, 1.0), "quantization", None),
    "ROUNDED": (0.001, lambda: _coarse(RIGHT, RIGHT + 0.01 * NOISE, 0.01, 1.0), "precision", None),
    "INCOHERENT": (0.01, lambda: _coarse(RIGHT, RIGHT + 0.01 * NOISE, 0.01, 1.001), "precision", None),
    "SHIFT_LENGTH": (300, lambda: _shift(RIGHT, RIGHT.roll(1, 0)), "shift", None),
    "SHIFT_GAIN": (0.9, lambda: _shift(SLOW, SLOW + 5e-3 * drawn(*SLOW.shape)), None, None),
    "SHIFTED_SLICES": (1, lambda: _shift(RIGHT, rows_moved(1)), None, "shift"),
    "FEW": (10**3, lambda: _few(ONE_ROW * NOISE, RIGHT), "mask", None),
    "FEW_SHARE": (0.5, lambda: _few(55 * ONE_ROW * NOISE + REST_OF_ROWS, RIGHT), None, "mask"),
    "FEW_GAIN": (10**9, lambda: _few(ONE_ROW * NOISE + 1e-3 * REST_OF_ROWS, RIGHT), "mask", None),
    "RIGHT_ROWS": (0.5, lambda: faint_form(RIGHT, RIGHT + NOISE * ONE_ROW + 1e-3 * RIGHT, 1e-3), "mask", None),
    "WRONG_ROWS": (5000, lambda: faint_form(RIGHT, RIGHT + NOISE * ONE_ROW, 1e-3), "mask", None),
}


@pytest.mark.parametrize("name", BORDERS)
def test_each_threshold_decides_a_case(name, monkeypatch):
    value, case, with_constant, with_value = BORDERS[name]
    assert cause_of(case()) == with_constant
    monkeypatch.setattr(error_forms, name, value)
    assert cause_of(case()) == with_value


def cause_of(found):
    return found[0] if isinstance(found, tuple) else found


def test_a_line_counts_as_wrong_by_its_share_of_the_worst():
    error = ONE_ROW * NOISE
    error[7] = 0.05 * error[5]  # 1/400 of its energy
    assert _few(error, RIGHT)[1][0].values["count"] == 1
    error[7] = 0.5 * error[5]
    assert _few(error, RIGHT)[1][0].values["count"] == 2


def test_every_threshold_is_tried():
    named = {name for name, value in vars(error_forms).items() if name.isupper() and isinstance(value, (int, float))}
    assert named == {*BORDERS, "LINE_SHARE"}
