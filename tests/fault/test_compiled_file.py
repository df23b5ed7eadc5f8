"""`find_fault` with a compiled file as the candidate, whose weights its own runtime may hold."""

import pytest
import torch
from torch import nn

import layertap as lt
from targets.artefacts import SUFFIXES, make


def net():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(4)]).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SUFFIXES)
def test_the_wrong_layer_of_a_file(kind, tmp_path):
    model, given = net(), (torch.randn(3, 6),)
    wrong = net()
    with torch.no_grad():
        wrong[2][0].weight[1] = 0
    sound, broken = (
        lt.open_target(make(kind, one, given, tmp_path / f"{name}{SUFFIXES[kind]}"))
        for name, one in (("sound", model), ("broken", wrong))
    )
    assert lt.find_fault(model, sound, given).verdict in ("identical", "noise")
    finding = lt.find_fault(model, broken, given)
    assert finding.verdict == "fault"
    assert str(finding.site).startswith("2.0")
