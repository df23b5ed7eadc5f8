"""Quantised weights are known by their pattern, whatever the scheme, and other weights are not taken for them."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from layertap.fault import quantised_kinds
from layertap.fault.pairing import Pairing
from layertap.fault.quantised import quantisation_error, weights_in_effect

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from benchmarks.faultbench.quantised import SCHEMES, Packed4  # noqa: E402


def weight(rows=48, columns=96):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_is_known_in_each_dtype_that_it_may_be_kept_in(scheme, dtype):
    right = weight()
    values = SCHEMES[scheme](right).to(dtype).float()
    assert quantisation_error(right, values) == pytest.approx(float((values - right).norm() / right.norm()))
    assert quantisation_error(right.T, values.T) is not None


def _low_rank(right):
    generator = torch.Generator().manual_seed(1)
    low, high = (torch.randn(size, 4, generator=generator) for size in right.shape)
    return right + 0.1 * low @ high.T


OTHERS = {
    "noise": lambda w: w + 0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1)),
    "an adapter": _low_rank,
    "bfloat16": lambda w: w.bfloat16().float(),
    "scaled": lambda w: 1.03 * w,
    "permuted": lambda w: w.flip(0),
    "quantised and scaled": lambda w: 1.3 * SCHEMES["int4-groups"](w),
    "cut off": lambda w: SCHEMES["int8-rows"](w).clamp(-1, 1),
    "one group with another scale": lambda w: torch.cat(
        [SCHEMES["int4-groups"](w)[:, :16] * 1.4, SCHEMES["int4-groups"](w)[:, 16:]], 1
    ),
}


@pytest.mark.parametrize("change", OTHERS)
def test_other_weights_are_not_taken_for_quantised_ones(change):
    assert quantisation_error(weight(), OTHERS[change](weight())) is None


def test_weights_are_seen_through_their_packing():
    linear = nn.Linear(32, 16)
    found = weights_in_effect(Packed4(linear), linear)
    assert quantisation_error(linear.weight.detach(), found) == pytest.approx(0.1, rel=0.5)
    assert weights_in_effect(nn.MultiheadAttention(32, 4), linear) is None


def test_modules_with_equal_weights_are_not_looked_into(monkeypatch):
    looked = []
    quantised = quantised_kinds.quantised

    def counted(reference, candidate):
        looked.append(candidate)
        return quantised(reference, candidate)

    monkeypatch.setattr(quantised_kinds, "quantised", counted)
    torch.manual_seed(0)
    reference = nn.Sequential(*(nn.Linear(16, 16, bias=number % 2 == 0) for number in range(8)))
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[3].weight[2] = 0
        candidate[4].bias[1] += 1
    candidate[5].weight = nn.Parameter(candidate[5].weight.detach().bfloat16())
    assert quantised_kinds.quantised_modules(Pairing(reference, candidate, None)) == {}
    assert looked == [candidate[3], candidate[4], candidate[5]]
