"""What exporters make one operation of: what is still there is shown, what is not is reported."""

import pytest
import torch
from torch import nn

import layertap as lt
from targets.artefacts import make, quiet

pytestmark = pytest.mark.filterwarnings("ignore")


class Normed(nn.Module):
    """What is before a convolution and a normalisation that an exporter makes one of."""

    def __init__(self, inside):
        super().__init__()
        conv, norm = nn.Conv1d(3, 3, 1, bias=False), nn.BatchNorm1d(3)
        nn.init.normal_(norm.running_mean)
        self.before = nn.Sequential(nn.ReLU(), conv) if inside else nn.Sequential(nn.ReLU())
        self.conv = nn.Identity() if inside else conv
        self.norm, self.gap, self.head = norm, nn.Dropout(), nn.Linear(5, 5)

    def forward(self, x):
        return self.head(self.gap(self.norm(self.conv(self.before(x))).tanh()))


@pytest.mark.parametrize("inside", [False, True], ids=["conv-after", "conv-inside"])
def test_onnx_shows_what_only_feeds_a_merged_convolution(inside, tmp_path):
    model, given = Normed(inside).eval(), (torch.randn(2, 3, 5),)
    target = lt.open_target(make("onnx", model, given, tmp_path / "normed.onnx"))
    with lt.record(target, sites=["before", "norm"], keep="tensor") as rec:
        target.run(given)
    with torch.inference_mode(), lt.record(model, sites=["before", "norm"], keep="tensor") as reference:
        model(*given)
    assert {str(site) for site in rec.run.sites} == ({"norm"} if inside else {"before", "norm"})
    for site in rec.run.sites:
        torch.testing.assert_close(rec.run[site].tensor(), reference.run[site].tensor())
    assert ["merged" in silent.why for silent in rec.receipt.silent] == [True] * inside


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) + torch.arange(x.shape[0])[:, None]


def test_onnx_of_dynamic_shapes_has_the_model_s_modules_and_no_others(tmp_path):
    model, rows = Counting().eval(), torch.export.Dim("rows", min=2, max=9)
    with quiet():
        program = torch.onnx.export(model, (torch.ones(3, 4),), dynamic_shapes=({0: rows},), dynamo=True, verbose=False)
    program.save(tmp_path / "rows.onnx")
    target = lt.open_target(tmp_path / "rows.onnx")
    assert [(path, type(module).__name__) for path, module in target.model.named_modules()] == [
        ("", "Counting"),
        ("linear", "Linear"),
    ]
    with lt.record(target, sites="linear", keep="tensor") as rec:
        target.run((torch.ones(7, 4),))
    torch.testing.assert_close(rec.run["linear"].tensor(), model.linear(torch.ones(7, 4)).detach())
