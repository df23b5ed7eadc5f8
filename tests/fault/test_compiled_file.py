"""`find_fault` with a compiled file as the candidate, whose weights its own runtime may force."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.targets.exported import ExportedFile
from layertap.targets.shadow import as_model
from targets.artefacts import SUFFIXES, make, opened


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
        opened(make(kind, one, given, tmp_path / f"{name}{SUFFIXES[kind]}"))
        for name, one in (("sound", model), ("broken", wrong))
    )
    assert lt.find_fault(model, sound, given).verdict in ("identical", "noise")
    finding = lt.find_fault(model, broken, given)
    assert finding.verdict == "fault"
    assert str(finding.site).startswith("2.0")


class Coarse(nn.Linear):
    """Float32 outside, bfloat16 within, as a runtime does it."""

    def forward(self, x):
        made = nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16())
        return made.float()


class SaysSo(ExportedFile):
    """A file whose runtime states that it computes in bfloat16."""

    def run(self, args, kwargs, wanted):
        return replace(super().run(args, kwargs, wanted), computes=frozenset({"bfloat16"}))


def wide(linear=nn.Linear, wrong=False):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(linear(32, 32), nn.GELU()) for _ in range(4)]).eval()
    if wrong:
        with torch.no_grad():
            model[2][0].weight[1:9] = 0
    return model


@pytest.mark.parametrize("wrong", [False, True])
def test_the_floor_is_what_the_runtime_says_of_itself(wrong):
    given = (torch.randn(8, 32, generator=torch.Generator().manual_seed(1)),)
    file = as_model(SaysSo(torch.export.export(wide(Coarse, wrong), given), "coarse"))
    found = lt.find_fault(wide(), file, given)
    assert found.verdict == "fault"
    if wrong:
        assert found.site == "2.0", "not the first module that bfloat16 moves"
        assert found.cause != "precision"
        assert any("reports that it computes in bfloat16" in note for note in found.notes)
    else:
        assert found.cause == "precision"
        assert found.evidence[0] == "the candidate's runtime reports that it computes in bfloat16"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", [False, True])
def test_openvino_in_bfloat16_where_the_cpu_has_it(wrong, tmp_path):
    openvino = pytest.importorskip("openvino")
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bf16; the test above has the runtime's word")
    given = (torch.randn(8, 32, generator=torch.Generator().manual_seed(1)),)
    file = lt.open_target(make("openvino", wide(wrong=wrong), given, tmp_path / "net.xml"))
    found = lt.find_fault(wide(), file, given)
    assert found.verdict == "fault"
    assert (found.site == "2.0" and found.cause != "precision") if wrong else found.cause == "precision"
