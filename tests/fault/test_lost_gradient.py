"""A gradient that one side has and the other lacks."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault


class Layer(nn.Module):
    cut = False

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        x = x.detach() if self.cut else x
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def step(model):
    loss = model(X).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("path", ["first", "layers.1.linear"])
def test_a_layer_that_is_frozen_by_mistake_is_found(path):
    reference = Net()
    candidate = copy.deepcopy(reference)
    candidate.get_submodule(path).requires_grad_(False)
    found = find_fault(reference, candidate, step)
    assert (found.verdict, found.site, found.cause) == ("fault", path, "config"), str(found)
    assert "weight: requires_grad is False, expected True" in found.evidence
    back = find_fault(candidate, reference, step)
    assert (back.verdict, back.site, back.cause) == ("fault", path, "config"), str(back)
    assert find_fault(candidate, copy.deepcopy(candidate), step).verdict == "identical"


def test_where_gradients_are_cut_off_is_found():
    reference = Net()
    candidate = copy.deepcopy(reference)
    candidate.layers[1].cut = True
    found = find_fault(reference, candidate, step)
    assert (found.verdict, found.site) == ("fault", "layers.1"), str(found)
