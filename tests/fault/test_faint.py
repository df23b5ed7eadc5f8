"""Faults that a narrow dtype's rounding hides from any norm, and honest differences of the same size."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from layertap.fault.exchange import is_rounded
from layertap.fault.quantised import moved_on_grid
from layertap.fault.quantised_kinds import Coarse, stand_out

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from benchmarks.faultbench.quantised import SCHEMES  # noqa: E402


class Norm(nn.Module):
    """One of the two ways in use to force the weight of a norm: as it is, or without the 1 that is added to it."""

    def __init__(self, width, plus=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.plus, self.eps = plus, 1e-6

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (self.plus + self.weight.float())).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.scaling = heads, (width // heads) ** -0.5
        self.through, self.fused = None, True

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        else:
            scores = q @ k.transpose(-1, -2) * self.scaling
            if self.through is not None:
                scores = scores.to(self.through).to(scores.dtype)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = Norm(width), Attention(width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(self.act(self.up(x)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(48) for _ in range(4))).eval()


@pytest.fixture
def x():
    return torch.randn(2, 12, 48, generator=torch.Generator().manual_seed(1))


def noise(like, size):
    return size * like.std() * torch.randn(like.shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("size", [0.005, 0.02])
def test_weights_that_are_a_little_off_are_found_in_bfloat16(model, x, size):
    candidate = copy.deepcopy(model)
    with torch.no_grad():
        candidate[2].up.weight += noise(candidate[2].up.weight, size)
    found = find_fault(model, candidate.bfloat16(), (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "2.up", "weights"), str(found)
    assert any("with the reference's weights in place" in text for text in found.evidence)
    assert max(found.forwards.values()) <= 10
    assert find_fault(model, copy.deepcopy(model).bfloat16(), (x,)).verdict == "noise"


def test_a_setting_that_rounding_hides_is_found(model, x):
    candidate = copy.deepcopy(model)
    candidate[1].attention.scaling *= 1.03
    found = find_fault(model, candidate.bfloat16(), (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "1.attention", "config"), str(found)
    assert candidate[1].attention.scaling == pytest.approx(1.03 * 12**-0.5), "left as it was"


def test_other_numbers_that_the_code_makes_up_for_are_no_fault(model, x):
    candidate = copy.deepcopy(model)
    with torch.no_grad():
        candidate[1].norm.weight -= 1.0
    candidate[1].norm.plus = 1.0
    before = copy.deepcopy(candidate.state_dict())
    for dtype in (torch.float32, torch.bfloat16):
        found = find_fault(model, candidate.to(dtype), (x,))
        assert found.verdict in ("identical", "noise"), str(found)
    assert all(torch.equal(value.to(dtype), candidate.state_dict()[name]) for name, value in before.items())


def test_scores_in_eight_bits_are_found_in_bfloat16_and_attention_written_out_is_no_fault(model, x):
    candidate = copy.deepcopy(model)
    candidate[2].attention.fused = False
    found = find_fault(model, candidate.bfloat16(), (x,))
    assert found.verdict == "noise", str(found)
    candidate[2].attention.through = torch.float8_e4m3fn
    model[2].attention.fused = False  # so that this setting says nothing
    found = find_fault(model, candidate, (x,))
    assert (found.verdict, found.site) == ("fault", "2.attention"), str(found)


@pytest.mark.parametrize("scheme", ["int8-rows", "int4-groups", "nf4"])
def test_code_that_is_a_little_off_is_found_in_a_quantised_model(model, x, scheme):
    candidate = copy.deepcopy(model)
    quantise(candidate, scheme)
    assert find_fault(model, copy.deepcopy(candidate), (x,)).verdict == "noise"
    candidate[1].up.register_forward_hook(lambda module, args, output: output + 0.01 * output.std())
    found = find_fault(model, candidate, (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "1.up", "offset"), str(found)


@pytest.mark.parametrize(
    "change", [lambda w: 1.012 * w, lambda w: w + noise(w, 0.01)], ids=["scaled", "noise of a third of a step"]
)
def test_weights_that_were_a_little_off_before_they_were_quantised_are_found(model, x, change):
    candidate = copy.deepcopy(model)
    with torch.no_grad():
        candidate[2].up.weight.copy_(change(candidate[2].up.weight))
    quantise(candidate, "int8-rows")
    found = find_fault(model, candidate, (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "2.up", "weights"), str(found)


def test_the_grid_of_values_says_how_far_they_moved():
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
    assert moved_on_grid(weight, SCHEMES["int8-rows"](weight)) == pytest.approx(12**-0.5, rel=0.05)
    assert moved_on_grid(weight, SCHEMES["int8-rows"](weight + noise(weight, 0.02))) > 0.6
    assert moved_on_grid(weight, weight) is None


def test_one_stands_out_only_among_others_that_do_not():
    usual = {str(i): Coarse(0.01, {}, 1e-4 * (-1) ** i, 1e-4, 0.29) for i in range(6)}
    assert stand_out(usual) == {}
    assert list(stand_out(usual | {"6": Coarse(0.01, {}, 0.01, 1e-4, 0.29)})) == ["6"]
    assert list(stand_out(usual | {"6": Coarse(0.01, {}, 0.0, 1e-4, 0.4)})) == ["6"]
    assert stand_out({"5": Coarse(0.01, {}, 0.0, 1e-4, 0.29), "6": Coarse(0.01, {}, 0.01, 1e-4, 0.4)}) == {}


def test_rounding_by_way_of_another_dtype_is_rounding():
    weight = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert is_rounded(weight, weight.half().bfloat16())
    assert is_rounded(weight, (weight.view(torch.int32) & -65536).view(torch.float32).bfloat16())
    assert not is_rounded(weight, (1.004 * weight).bfloat16())
    assert not is_rounded(weight, weight[:50])


def quantise(model, scheme):
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(SCHEMES[scheme](module.weight.clone()))
