"""Candidates that a compiler has made: the model under them is forced, what the compiler did is seen as a total."""

import copy
import math
import re

import pytest
import torch
from torch import nn

from layertap.fault import find_fault
from targets.artefacts import SUFFIXES, make, opened

# What inductor and jit.trace use inside torch warns against itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


X = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def net():
    return Net().eval()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_is_noise_and_said_to_be_total_only(net, backend):
    found = find_fault(net, torch.compile(copy.deepcopy(net), backend=backend), (X,))
    assert found.verdict in ("identical", "noise")
    assert any(note.startswith("compiled: no value inside it can be replaced") for note in found.notes)
    assert len(found.table) > 10
    assert max(found.forwards.values()) <= 10


def test_a_bad_weight_is_found_in_the_model_as_it_was_written(net):
    candidate = copy.deepcopy(net)
    with torch.no_grad():
        candidate.layers[2][0].weight[3] = 0
    found = find_fault(net, torch.compile(candidate, backend="inductor"), (X,))
    assert (found.verdict, found.site, found.cause) == ("fault", "_orig_mod.layers.2.0", "weights")
    assert found.notes[0] == "found in the model as it was written, run without torch.compile"
    assert found.explained > 0.99


def miscompile(graph, inputs):
    """A backend that gets the third activation wrong."""
    nodes = [node for node in graph.graph.nodes if "gelu" in str(node.target)]
    with graph.graph.inserting_after(nodes[2]):
        wrong = graph.graph.call_function(torch.mul, (nodes[2], 1.05))
    nodes[2].replace_all_uses_with(wrong, delete_user_cb=lambda user: user is not wrong)
    graph.recompile()
    return graph


def test_what_the_compiler_did_is_found_where_it_first_shows(net):
    found = find_fault(net, torch.compile(copy.deepcopy(net), backend=miscompile), (X,))
    assert (found.verdict, found.site) == ("fault", "_orig_mod.layers.2.1")
    assert math.isnan(found.explained)
    assert "The output's error is " in str(found)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_compiled_file_is_seen_by_its_totals(net, kind, tmp_path):
    candidate = copy.deepcopy(net)
    with torch.no_grad():
        candidate.layers[1][2].weight.mul_(1.1)
    wrong, right = (tmp_path / f"{name}{SUFFIXES[kind]}" for name in ("wrong", "right"))
    make(kind, candidate, (X,), wrong)
    make(kind, net, (X,), right)
    found = find_fault(net, opened(wrong), (X,))
    assert (found.verdict, found.site) == ("fault", "layers.1.2"), str(found)
    if kind in ("torchscript", "exported"):  # the others keep their weights to themselves
        assert (found.cause, found.evidence[0]) == ("weights", "weight: scaled by 1.1")
    else:
        assert found.cause == "unknown"
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "NaN" not in page
    states = dict(re.findall(r"""data-site="([^"]*)" data-state='(\w*)'""", page))
    assert states["layers.1.2"] == "fault"
    assert states["head"] == "inconclusive", "a total may come from further up"
    assert find_fault(net, opened(right), (X,)).verdict in ("identical", "noise")


class Named(Net):
    def forward(self, x):
        return {"logits": super().forward(x)}


class Sorry(Net):
    def forward(self, x):
        return super().forward(x).sum(-1)


def test_an_output_that_has_lost_its_name_is_known_by_its_shape(net, tmp_path):
    named = Named().eval()
    make("openvino", named, (X,), tmp_path / "net.xml")
    found = find_fault(named, opened(tmp_path / "net.xml"), X)
    assert found.verdict == "noise"
    assert 0 < found.total < 1e-6


def test_outputs_that_cannot_be_laid_side_by_side_are_inconclusive(net):
    found = find_fault(net, Sorry().eval(), X)
    assert found.verdict == "inconclusive"
    assert math.isnan(found.total)
    assert "no tensor of one name or one shape" in found.evidence[0]


def in_bfloat16(graph, inputs):
    """A backend that computes in bfloat16 and hands out float32, and says nothing."""

    def run(*args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = graph(*args)
        return tuple(value.float() if isinstance(value, torch.Tensor) else value for value in found)

    return run


def test_silent_precision_is_called_that(net):
    found = find_fault(net, torch.compile(copy.deepcopy(net), backend=in_bfloat16), (X,))
    assert (found.verdict, found.cause) == ("fault", "precision")
    assert "what bfloat16 arithmetic causes, although the parameters are float32" in found.evidence[0]


def test_a_compiled_reference_is_refused(net):
    from layertap.errors import BadArgument

    with pytest.raises(BadArgument, match="the reference is compiled; give the model that it was compiled from"):
        find_fault(torch.compile(net), net, (X,))
