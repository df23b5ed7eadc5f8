"""Queries and keys in another order are right together; the one that was left out of it is named, not its neighbour."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from layertap.result import code_of


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        self.register_buffer("weights", torch.linspace(0, 1, 16))

    def forward(self, x):
        scores = self.q(x) @ (self.k(x) * self.weights).transpose(-1, -2) / 4
        return x + scores.softmax(-1) @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Attention() for _ in range(4)), nn.Linear(16, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


X = (3 * torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture
def reference():
    torch.manual_seed(0)
    return Net().eval()


def _port(reference, left_out=()):
    """Queries and keys with their channels in the opposite order, but for those that are left out."""
    candidate = copy.deepcopy(reference)
    for number, layer in enumerate(candidate.layers):
        if not {f"layers.{number}.q", f"layers.{number}.k"} <= set(left_out):
            layer.weights = layer.weights.flip(0)
    for path, module in candidate.named_modules():
        if path.endswith((".q", ".k")) and path not in left_out:
            module.weight.data, module.bias.data = module.weight.data.flip(0), module.bias.data.flip(0)
    return candidate


def test_all_of_them_rearranged_are_no_fault(reference):
    assert find_fault(reference, _port(reference), X).verdict == "noise"


@pytest.mark.parametrize("path", ["layers.0.k", "layers.2.k", "layers.1.q"])
def test_the_one_that_was_left_out_is_named(reference, path):
    found = find_fault(reference, _port(reference, (path,)), X)
    assert (found.verdict, found.site, found.cause) == ("fault", path, "weights"), str(found)
    assert any(code_of(text) == "cause.not_rearranged" for text in found.evidence)
    assert max(found.forwards.values()) <= 10
    assert not found.others, str(found)


def test_a_fault_in_a_layer_that_was_not_rearranged_is_its_own(reference):
    candidate = _port(reference, ("layers.2.q", "layers.2.k"))
    with torch.no_grad():
        candidate.layers[2].q.weight[3:6] *= -1
    found = find_fault(reference, candidate, X)
    assert (found.verdict, found.site) == ("fault", "layers.2.q"), str(found)
