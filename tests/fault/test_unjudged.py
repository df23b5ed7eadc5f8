"""What has no partner or another form on one side is not judged: then the verdict is inconclusive, and says which."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from layertap.result import code_of


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = (
            nn.Linear(16, 16),
            nn.ModuleList(Block() for _ in range(3)),
            nn.Linear(16, 4),
        )

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Stacked(nn.Module):
    """The same, with the parameters of all blocks in one tensor each, as scans hold them."""

    wrong = False

    def __init__(self, net):
        super().__init__()
        self.first, self.last, self._block = net.first, net.last, [copy.deepcopy(net.blocks[0])]
        names = [dict(block.named_parameters()) for block in net.blocks]
        self.stack = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(torch.stack([own[name].detach() for own in names]))
                for name in names[0]
            }
        )

    def forward(self, x):
        x = self.first(x)
        for at in range(3):
            own = {name: self.stack[name.replace(".", "_")] for name, _ in self._block[0].named_parameters()}
            x = torch.func.functional_call(
                self._block[0],
                {name: tensor[1 if self.wrong and at == 2 else at] for name, tensor in own.items()},
                (x,),
            )
        return self.last(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


X = (torch.randn(6, 16, generator=torch.Generator().manual_seed(1)),)


def test_a_port_without_partners_that_is_right_is_noise(net):
    found = find_fault(net, Stacked(copy.deepcopy(net)), X)
    assert found.verdict in ("identical", "noise"), str(found)


def test_an_error_in_what_has_no_partner_is_inconclusive_and_says_what_was_not_judged(net):
    candidate = Stacked(copy.deepcopy(net))
    candidate.wrong = True
    found = find_fault(net, candidate, X)
    assert (found.verdict, found.site) == ("inconclusive", ""), str(found)
    unjudged = [note for note in found.evidence if code_of(note) == "fault.unjudged"]
    assert unjudged, str(found)
    assert "stack" in unjudged[0].values["names"]


class Pair(Block):
    """Returns its result in two halves that no other block has: another form, not another value."""

    by = 1.0

    def forward(self, x):
        output = self.by * super().forward(x)
        return {"left": output[:, :8], "right": output[:, 8:]}


class PairNet(Net):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
            x = torch.cat([x["left"], x["right"]], 1) if isinstance(x, dict) else x
        return self.last(x)


def _in_halves(net, by):
    candidate = copy.deepcopy(net)
    candidate.__class__ = PairNet
    candidate.blocks[1].__class__ = Pair
    candidate.blocks[1].by = by
    return candidate


def test_a_child_of_another_form_is_not_taken_for_right(net):
    assert find_fault(net, _in_halves(net, 1.0), X).verdict in ("identical", "noise")
    found = find_fault(net, _in_halves(net, 1.3), X)
    # The block itself is another class: its caller must not be blamed for what could not be judged.
    assert found.verdict == "inconclusive", str(found)
    unjudged = [note for note in found.evidence if code_of(note) == "fault.unjudged"]
    assert unjudged, str(found)
    assert "blocks.1" in unjudged[0].values["names"]
