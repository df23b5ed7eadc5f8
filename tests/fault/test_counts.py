"""What a search costs, in counts: forward passes of each side, and measurements of what was put there by us."""

import copy

import pytest
import torch
from torch import nn

from layertap.fault import find_fault, replay_measure


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def _net(depth):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(depth))).eval()


X = (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture
def forwards():
    """How often the outermost module of a model runs, by the model."""

    def count(model):
        seen = []
        model.register_forward_pre_hook(lambda module, args: seen.append(1))
        return seen

    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("faults", [1, 3, 12])
def test_no_side_runs_more_than_ten_times_with_any_number_of_faults(faults, dtype, forwards):
    reference = _net(12)
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        for block in candidate[:faults]:
            block.up.weight[2:5] *= -1
    candidate = candidate.to(dtype)
    ours, theirs = forwards(reference), forwards(candidate)
    found = find_fault(reference, candidate, X)
    assert found.verdict == "fault", str(found)
    assert 1 + len(found.others) == faults
    assert found.forwards["candidate"] == len(theirs) <= 10
    # Copies of the reference take its hooks along, so they are counted here as well.
    assert found.forwards["reference"] == len(ours) <= 10


def test_a_model_that_does_not_repeat_itself_costs_no_more(forwards):
    class Noisy(Block):
        turn = 0

        def forward(self, x):
            self.turn += 1
            return super().forward(x) * (1 + 1e-6 * self.turn)

    reference = nn.Sequential(*(Noisy() for _ in range(3))).eval()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[1].up.weight *= -1
    found = find_fault(reference, candidate.bfloat16(), X)
    assert found.verdict == "fault", str(found)
    assert max(found.forwards.values()) <= 10


def test_what_was_put_there_by_us_is_not_measured(monkeypatch):
    measured = []
    begin = replay_measure.begin

    def counted(right, found):
        measured.append(found.shape)
        return begin(right, found)

    monkeypatch.setattr(replay_measure, "begin", counted)
    reference = _net(4)
    find_fault(reference, copy.deepcopy(reference), X)
    # A forced run measures what each of 4 blocks' 3 children and the blocks return, and of what arrives only what is
    # not a value that was handed on as it is: `down` gets a tanh. The input of the model is measured once.
    assert len(measured) <= 3 * (16 + 4 + 1 + 1) + 2 * 33, len(measured)
