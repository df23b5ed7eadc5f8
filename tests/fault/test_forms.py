"""Values in other forms: nested, complex, of another size, closed by the lowest number there is."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from layertap.fault.value_layouts import ValueLayout, ValueLayouts
from layertap.measure.pair.deferred import compare_tensors


def test_a_layout_is_found_by_the_numbers_and_known_from_then_on():
    right = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    layouts = ValueLayouts()
    assert layouts.between(right, torch.randn(5, 3, 8)) is None
    found = layouts.between(right, right.transpose(0, 1))
    assert found == ValueLayout((1, 0, 2))
    assert torch.equal(found.there(right, torch.Size((5, 3, 8))), right.transpose(0, 1))
    assert torch.equal(found.here(right.transpose(0, 1), right.shape), right)
    assert layouts.between(right, torch.randn(5, 3, 8)) == found
    flat = layouts.between(right, right.transpose(0, 1).reshape(15, 8))
    assert torch.equal(flat.there(right, torch.Size((15, 8))), right.transpose(0, 1).reshape(15, 8))


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    padding = torch.zeros(3, 8, dtype=torch.bool)
    padding[0, 5:] = padding[2, 3:] = True
    return model, {"src": torch.randn(3, 8, 32), "src_key_padding_mask": padding}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nested_tensors_are_compared(encoder, dtype):
    model, inputs = encoder
    found = find_fault(model, copy.deepcopy(model).to(dtype), inputs)
    assert found.verdict == ("identical" if dtype == torch.float32 else "noise"), str(found)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.layers[1].linear1.weight[3] *= 1.5
    found = find_fault(model, broken.to(dtype), inputs)
    assert (found.verdict, found.site, found.cause) == ("fault", "layers.1.linear1", "weights"), str(found)


class Turn(nn.Module):
    by = 1.0

    def forward(self, x):
        return x * torch.polar(torch.ones(x.shape[-1]), self.by * torch.arange(x.shape[-1]))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.turn, self.last = nn.Linear(8, 8), Turn(), nn.Linear(8, 4)

    def forward(self, x):
        turned = self.turn(torch.view_as_complex(self.first(x).unflatten(-1, (-1, 2)).contiguous()))
        return self.last(torch.view_as_real(turned).flatten(-2))


def test_complex_numbers_are_compared_and_a_fault_among_them_has_a_cause():
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    reference, candidate = Complex(), Complex()
    assert find_fault(reference, candidate, x).verdict == "identical"
    candidate.turn.forward = lambda value: -Turn.forward(candidate.turn, value)
    found = find_fault(reference, candidate, x)
    assert (found.verdict, found.site, found.cause) == ("fault", "turn", "sign"), str(found)


def test_a_value_of_another_size_is_never_put_in_place():
    """The keys are written out for every head: what arrives has another size, and is right."""

    class Attend(nn.Module):
        def forward(self, q, k):
            return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT

    class Net(nn.Module):
        expand = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k, self.attend = nn.Linear(8, 16), nn.Linear(8, 8), Attend()

        def forward(self, x):
            q, k = (linear(x).unflatten(-1, (-1, 4)).transpose(1, 2) for linear in (self.q, self.k))
            return self.attend(q, k.repeat_interleave(2, 1) if self.expand else k)

    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    reference, candidate = Net(), Net()
    candidate.expand = True
    found = find_fault(reference, candidate, x)
    assert found.verdict == "identical", str(found)
    with torch.no_grad():
        candidate.k.weight *= -1
    assert find_fault(reference, candidate, x).site == "k"


def test_the_lowest_number_in_a_mask_does_not_swamp_what_is_beside_it():
    closed = torch.ones(6, 6).triu(1).bool()
    bias = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    low = torch.finfo(torch.float32).min
    right, wrong = bias.masked_fill(closed, low), (2 * bias).masked_fill(closed, low)
    assert compare_tensors(right, wrong).error == pytest.approx(1.0)
    assert compare_tensors(right, bias.masked_fill(closed, -float("inf"))).equal
    assert compare_tensors(right, bias.masked_fill(closed.roll(1, 0), low)).nonfinite_mismatch > 0


def test_massive_values_do_not_hide_what_the_others_do():
    right = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    right[0, 5] = 1e5
    wrong = right * 1.0
    wrong[1:] *= 1.2
    found = compare_tensors(right, wrong)
    assert found.error < 0.01
    assert found.calm == pytest.approx(0.2, rel=1e-3)
