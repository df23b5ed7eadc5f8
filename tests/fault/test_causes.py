"""A cause states only what is so."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from layertap.fault.error_forms import _coarse, _few, _shift, whole_numbers

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
    assert whole_numbers(torch.arange(5), torch.arange(5)) is None
    assert whole_numbers(torch.arange(5), torch.arange(5) + 1) == ("shift", ("every number is +1 off",))


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
