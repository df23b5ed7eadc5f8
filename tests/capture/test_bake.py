"""`bake`: taps as outputs of the graph, and the layout that takes them apart (A2, A4, B3)."""

import copy
import dataclasses
import json
import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture import Layout
from layertap.errors import BadArgument, NoMatch, NothingCaptured
from layertap.store.layout import Fields
from models import minimax_m2, qwen3

A, B = torch.arange(6.0).reshape(2, 3), torch.linspace(-1, 1, 6).reshape(2, 3)
Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    extra: object = None


class Layer(nn.Module):
    """Takes a keyword, returns a nest with a None in it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, scale=None):
        y = self.linear(x)
        return (y if scale is None else y * scale), {"half": y / 2, "nothing": None}


class Net(nn.Module):
    """One module called twice, one called as `.forward`, one never, one whose output no input reaches."""

    def __init__(self, form=lambda y, half: y):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.shared = nn.Linear(3, 3)
        self.direct = nn.Linear(3, 3)
        self.positions = nn.Embedding(3, 3)
        self.unused = nn.Linear(3, 3)
        self.inplace = nn.ReLU(inplace=True)
        self.form = form

    def forward(self, x, scale=None):
        y, _ = self.layers[0](x)
        y, nest = self.layers[1](y, scale=scale)
        y = self.shared(torch.tanh(self.shared(y)))
        y = self.direct.forward(y)
        y = y + self.positions(torch.arange(3)).mean(0)
        return self.form(self.inplace(y), nest["half"])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def exported(tapped, *args, **kwargs):
    return torch.export.export(tapped, args, kwargs).module()


def eager(model, *args, **kwargs):
    """What `record` sees: the measure of everything here."""
    with torch.no_grad(), lt.record(model, sites="**", what=("input", "output"), keep="tensor") as rec:
        model(*args, **kwargs)
    return {str(site): rec.run[site].tensor() for site in rec.run.sites}


def test_every_leaf_of_every_call_is_what_record_sees(net):
    tapped = lt.bake(net, sites="**", what=("input", "output"))
    program = exported(tapped, A, scale=torch.tensor(2.0))
    _, taps = tapped.split(program(B, scale=torch.tensor(3.0)))
    want = eager(net, B, scale=torch.tensor(3.0))
    assert {"shared@1", "layers.1:output.1.half", "layers.1:input.scale", "direct", ":input.0"} <= set(want)
    assert set(map(str, taps)) == set(want)
    assert all(torch.equal(taps[site], want[site]) for site in want)


def test_values_are_those_at_the_tap_not_those_of_a_later_write(net):
    """ReLU(inplace=True) overwrites its input."""
    tapped = lt.bake(net, sites=["inplace:input", "inplace:output"])
    _, taps = tapped.split(exported(tapped, A)(B))
    assert (taps["inplace:input"] < 0).any()
    assert torch.equal(taps["inplace:input"].relu(), taps["inplace"])


@pytest.mark.parametrize(
    "form",
    [
        lambda y, half: y,
        lambda y, half: (y, half),
        lambda y, half: [y, (half, None)],
        lambda y, half: {"y": y, "more": {"half": half, "nothing": None, "count": 3}},
        Pair,
        lambda y, half: Result(y, (half, "text")),
        lambda y, half: (y, y),
    ],
    ids=["tensor", "tuple", "nested", "dict", "namedtuple", "dataclass", "twice"],
)
@pytest.mark.parametrize("way", ["eager", "export", "compile"])
def test_the_model_s_own_output_comes_back_in_its_form(form, way):
    torch.manual_seed(0)
    net = Net(form).eval()
    tapped = lt.bake(net, sites="layers.*")
    call = {
        "eager": lambda: tapped,
        "export": lambda: exported(tapped, A),
        "compile": lambda: torch.compile(tapped, backend="eager", fullgraph=True),
    }[way]()
    with torch.no_grad():
        output, _ = tapped.split(call(B))
        want = net(B)
    assert type(output) is type(want)
    got, right = torch.utils._pytree.tree_flatten(_plain(output)), torch.utils._pytree.tree_flatten(_plain(want))
    assert got[1] == right[1]
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got[0], right[0], strict=True)
    )


def _plain(value):
    return vars(value) if isinstance(value, Result) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [qwen3, minimax_m2])
def test_a_real_model_s_output_and_every_module_s(make):
    model, first = make(layers=2)
    _, second = make(layers=2, seed=4)
    tapped = lt.bake(model, sites="**")
    with torch.no_grad():
        program = torch.export.export(tapped, (), {**first, "use_cache": False}).module()
        output, taps = tapped.split(program(**second, use_cache=False))
        want = model(**second, use_cache=False)
    recorded = eager(model, **second, use_cache=False)
    outputs = {name for name in recorded if ":input" not in name}
    assert set(map(str, taps)) == outputs
    assert all(torch.equal(taps[name], recorded[name]) for name in outputs)
    assert type(output) is type(want)
    assert torch.equal(output.logits, want.logits)
    assert output.past_key_values is None


@pytest.mark.filterwarnings("ignore")
def test_a_cache_comes_back_as_its_fields():
    model, inputs = qwen3(layers=2)
    tapped = lt.bake(model, sites="model.layers.*")
    with torch.no_grad():
        output, _ = tapped.split(tapped(**inputs))
        want = model(**inputs).past_key_values
    assert isinstance(output.past_key_values, Fields)
    assert torch.equal(output.past_key_values.layers[1].keys, want.layers[1].keys)


def test_statistics_are_computed_inside_the_graph(net):
    tapped = lt.bake(net, sites=["layers.*:output.0", "positions"], keep={"**": "stats", "positions": "tensor"})
    raw = exported(tapped, A)(B)
    assert [tuple(value.shape) for value in raw] == [(2, 3), (25,), (25,), (3, 3)]
    _, taps = tapped.split(raw)
    want = eager(net, B)
    for site in ("layers.0:output.0", "layers.1:output.0"):
        right = lt.measure.measure(want[site]).statistics
        assert taps[site].first == pytest.approx(right.first)
        assert (taps[site].count, taps[site].zero, taps[site].nan) == (6, 0, 0)
        for name in ("mean", "std", "min", "max", "abs_mean", "l2"):
            assert getattr(taps[site], name) == pytest.approx(getattr(right, name), rel=1e-6), name


def test_statistics_in_the_graph_count_what_is_not_finite():
    tapped = lt.bake(nn.Sequential(nn.Identity()), sites="0", keep="stats")
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -3.0])
    _, taps = tapped.split(exported(tapped, torch.ones(6))(x))
    found = taps["0"]
    assert (found.nan, found.pos_inf, found.neg_inf, found.zero, found.min, found.max) == (1, 1, 1, 1, -3.0, 1.0)
    assert found.mean == pytest.approx(-2 / 3)


def test_slices_are_cut_inside_the_graph(net):
    tapped = lt.bake(net, sites="shared", keep="[:, -1]")
    raw = exported(tapped, A)(B)
    assert [tuple(value.shape) for value in raw] == [(2, 3), (2,), (2,)]
    assert torch.equal(tapped.split(raw)[1]["shared@1"], eager(net, B)["shared@1"][:, -1])


def test_the_layout_says_what_never_came(net):
    tapped = lt.bake(net, sites=["unused", "layers", "layers.0:output.1"])
    tapped(A)
    layout = tapped.layout
    assert layout.sites == ("layers.0:output.1.half",)
    assert "never called" in layout.silent["unused"]
    assert "never called" in layout.silent["layers"]
    assert layout.skipped == {"layers.0:output.1.nothing": "None"}


def test_a_bake_of_which_nothing_comes_is_an_error(net):
    tapped = lt.bake(net, sites="unused")
    tapped(A)
    with pytest.raises(NothingCaptured, match="none of the 1 requested modules was called with a tensor: unused"):
        _ = tapped.layout


def test_the_layout_is_known_only_after_a_call(net):
    tapped = lt.bake(net, sites="shared")
    with pytest.raises(BadArgument, match="the layout is known after the first call"):
        _ = tapped.layout


def test_a_layout_of_another_artefact_is_refused(net):
    one, other = lt.bake(net, sites="shared"), lt.bake(net, sites="layers.*")
    with torch.no_grad():
        one(A)
        with pytest.raises(BadArgument, match=r"has 1 outputs and 2 taps, but the artefact returned 5"):
            one.split(other(A))


def test_a_call_that_is_not_traced_leaves_the_artefact_s_layout_alone(net):
    """Some models take another way while they are traced."""

    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.traced_only = net, nn.Identity()

        def forward(self, x):
            return self.traced_only(self.net(x)) if torch.compiler.is_compiling() else self.net(x)

    tapped = lt.bake(Fickle().eval(), sites=["net.shared", "traced_only"])
    program = exported(tapped, A)
    with torch.no_grad():
        assert set(tapped.split(tapped(B))[1]) == {"net.shared", "net.shared@1"}
    assert set(tapped.split(program(B))[1]) == {"net.shared", "net.shared@1", "traced_only"}
    assert "traced_only" in tapped.layout.sites


def test_the_model_is_not_touched_and_shares_its_weights(net):
    before = {path: type(module) for path, module in net.named_modules()}
    tapped = lt.bake(net, sites="**")
    assert {path: type(module) for path, module in net.named_modules()} == before
    assert pickle.dumps(nn.Linear(2, 2)), "and classes are as they were"
    assert all(ours is theirs for ours, theirs in zip(tapped.parameters(), net.parameters(), strict=True))
    with torch.no_grad():
        net.shared.weight.mul_(2)
        assert torch.equal(tapped.split(tapped(B))[0], net(B))


def test_a_copy_of_a_tapped_model_is_tapped(net):
    """Exporters copy what they are given."""
    tapped = copy.deepcopy(lt.bake(net, sites="shared"))
    assert set(tapped.split(exported(tapped, A)(B))[1]) == {"shared", "shared@1"}


def test_what_cannot_be_meant_is_refused(net):
    with pytest.raises(BadArgument, match="a graph can return input and output"):
        lt.bake(net, what="grad_output")
    with pytest.raises(BadArgument, match=r"bake requires an nn\.Module, got int"):
        lt.bake(3)
    with pytest.raises(NoMatch, match="Nearest: shared"):
        lt.bake(net, sites="shred")


def test_a_layout_travels_as_json(net, tmp_path):
    tapped = lt.bake(net, sites=["shared", "layers.0"], keep={"**": "tensor", "layers.*": "stats"})
    with torch.no_grad():
        raw = tapped(B)
        output, taps = tapped.split(raw)
    file = tapped.layout.save(tmp_path / "model.onnx")
    assert file.name == "model.onnx.layout.json"
    assert json.loads(file.read_text())["model"] == "Net"
    for where in (file, tmp_path / "model.onnx"):
        again, same = Layout.load(where).split([value.numpy() for value in raw])
        assert (again == output.numpy()).all()
        assert list(same) == list(taps)
        assert same["layers.0:output.0"] == taps["layers.0:output.0"]


def test_a_layout_from_the_future_and_none_at_all_are_refused(net, tmp_path):
    (tmp_path / "a.layout.json").write_text('{"format": "layertap-layout", "version": 99}')
    with pytest.raises(lt.errors.NewerFormat, match="version 99"):
        Layout.load(tmp_path / "a")
    with pytest.raises(lt.errors.NotARun, match=r"has no layout, inside or beside it \(b\.pt2\.layout\.json\)"):
        Layout.load(tmp_path / "b.pt2")


def test_an_output_class_is_not_imported_on_a_file_s_word():
    node = ["class", "antigravity:Anything", [["x", ["tensor", 0]]]]
    output, _ = Layout(model="M", own=1, output=node, taps=()).split(["value"])
    assert output == Fields(x="value")
    assert output.x == output["x"] == "value"
