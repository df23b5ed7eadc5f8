"""`record` on a model that torch.compile was applied to (A4, B1, B8): what comes, what it costs in graphs."""

import copy
import pickle
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import layertap as lt
from layertap.capture import graph_ops, graph_taps
from models import minimax_m2, qwen3

A, B = torch.arange(6.0).reshape(2, 3), torch.linspace(-1, 1, 6).reshape(2, 3)
pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor uses what torch deprecates
]
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x, scale=1.0):
        y = self.norm(self.linear(x))
        return x + y * scale, None


class Net(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.shared = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x, scale=0.5)
        return self.shared(torch.relu(self.shared(x)))


class Branching(nn.Module):
    """Dynamo traces a branch by itself, and lets nothing out of it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.inner, torch.clone, (x,))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


def graphs():
    return counters["stats"]["unique_graphs"]


@contextmanager
def recording(model, **how):
    with lt.record(model, **{"sites": "**", "what": ("input", "output"), "keep": "tensor", **how}) as rec:
        yield rec


def eager(model, *args, **kwargs):
    with torch.no_grad(), recording(model) as rec:
        model(*args, **kwargs)
    return rec.run


def assert_same(run, want, step=0, exact=True):
    # Which tensors of a cache have been written into is seen in Python only: a graph records each at every layer.
    again = {site for site in run.sites if "past_key_values" in site.leaf}
    assert set(run.sites) - again <= set(want.sites) <= set(run.sites)
    for site in want.sites:
        ours, right = run[site].at(step=step), want[site]
        assert (ours.record.shape, ours.record.dtype) == (right.record.shape, right.record.dtype)
        if exact:
            assert ours.record.fingerprint == right.record.fingerprint, str(site)
        else:
            assert ours.record.statistics.mean == pytest.approx(right.record.statistics.mean, rel=1e-4, abs=1e-5)
            assert ours.record.statistics.std == pytest.approx(right.record.statistics.std, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("before", [True, False], ids=["taps-first", "call-first"])
@pytest.mark.parametrize("keep", ["tensor", "stats"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_site_of_every_step_and_one_recompilation(net, backend, keep, before):
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    if not before:
        compiled(A)
    with recording(compiled, keep=keep) as rec:
        compiled(A)
        rec.step()
        compiled(B)
    exact = backend != "inductor"
    assert_same(rec.run, eager(net, A), step=0, exact=exact)
    assert_same(rec.run, eager(net, B), step=1, exact=exact)
    assert {"shared@1", "layers.1:input.scale"} & set(map(str, rec.run.sites)) == {"shared@1"}
    assert graphs() == (1 if before else 2)
    assert not counters["graph_break"]


def test_inductor(net):
    compiled = torch.compile(net, fullgraph=True)
    with recording(compiled, keep={"**": "stats", "shared": "tensor"}) as rec:
        compiled(A)
        rec.step()
        compiled(B)
    want = eager(net, B)
    assert_same(rec.run, want, step=1, exact=False)
    assert torch.allclose(rec.run["shared@1"].at(step=1).tensor(), want["shared@1"].tensor(), atol=1e-5)
    assert graphs() == 1


def test_on_and_off_steps_run_one_graph_and_the_next_recording_finds_it(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    compiled(A)
    for _ in range(2):
        with recording(compiled, schedule=2) as rec:
            for x in (A, B, B, A):
                compiled(x)
                rec.step()
            rec.pause()
            compiled(A)
            rec.resume()
        assert rec.receipt.steps == 2
        compiled(A)
    assert graphs() == 2, "one without taps, one with"


def test_afterwards_the_first_graph_runs_again_and_nothing_is_left(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    want = compiled(B)
    classes, entry = [type(module) for module in net.modules()], compiled.forward
    with recording(compiled):
        compiled(A)
        assert type(net.shared) is not nn.Linear
        assert type(copy.deepcopy(net).shared) is nn.Linear, "taps do not travel along"
        assert type(pickle.loads(pickle.dumps(net.shared))) is nn.Linear
    assert [type(module) for module in net.modules()] == classes
    assert compiled.forward is entry
    assert not any(graph_taps.tapped(module) for module in net.modules())
    assert torch.equal(compiled(B), want)
    assert graphs() == 2


def test_off_steps_compute_nothing(net, monkeypatch):
    worked = []
    monkeypatch.setattr(graph_ops, "measure_now", lambda tensor: worked.append(1) or lt.measure.measure(tensor))
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with recording(compiled, sites="layers.*:output.0", what="output", keep="stats", schedule=[0]) as rec:
        compiled(A)
        assert len(worked) == 2
        rec.step()
        compiled(B)
        assert len(worked) == 2
    assert rec.receipt.records == 2 + 1


def test_the_same_input_repeats_and_another_does_not(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with recording(compiled, keep="stats") as rec:
        for x in (A, B, A):
            compiled(x)
            rec.step()
    for site in rec.run.sites:
        one, two, again = [rec.run[site].at(step=step).record.fingerprint for step in range(3)]
        assert one == again != two, str(site)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [qwen3, minimax_m2])
def test_real_models(make):
    model, first = make(layers=2)
    _, second = make(layers=2, seed=4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(**first)
        with recording(compiled, keep="stats") as rec:
            compiled(**first)
            rec.step()
            compiled(**second)
    assert_same(rec.run, eager(model, **second), step=1)
    assert graphs() == 2


def test_module_compile_in_place(net):
    want = eager(net, B)
    net.compile(backend="aot_eager", fullgraph=True)
    with recording(net) as rec:
        net(A)
        rec.step()
        net(B)
    assert_same(rec.run, want, step=1)
    net(A)
    assert graphs() == 2


@pytest.mark.parametrize("way", ["in place", "wrapped"])
def test_equal_compiled_parts_share_one_graph(way):
    torch.manual_seed(0)
    net = Net(layers=6).eval().requires_grad_(False)
    want = eager(net, B)
    if way == "in place":
        for layer in net.layers:
            layer.compile(backend="aot_eager", fullgraph=True)
    else:
        for index, layer in enumerate(net.layers):
            net.layers[index] = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with recording(net, schedule=2) as rec:
        for x in (B, A, B):
            net(x)
            rec.step()
    assert_same(rec.run, want, step=0)
    assert_same(rec.run, want, step=2)
    assert graphs() == 1
    net(A)
    assert graphs() <= 2


def test_training_goes_on_as_without(net):
    net = net.train().requires_grad_(True)
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with recording(compiled, keep="stats", what=("output", "param_grad")) as rec:
        compiled(A).sum().backward()
    twin(A).sum().backward()
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
    assert "shared:param_grad.weight" in rec.run.sites
    assert rec.run["shared"].record.phase == "train"


def test_what_a_graph_does_not_show_is_in_the_receipt(net):
    compiled = torch.compile(net.train().requires_grad_(True), backend="aot_eager", fullgraph=True)
    with recording(compiled, sites=["unused", "layers", "shared"], what=("output", "grad_output")) as rec:
        compiled(A).sum().backward()
    why = {(site.path, site.role): site.why for site in rec.receipt.silent}
    assert why["shared", "grad_output"].startswith(
        "the model is compiled: a graph shows what its modules take and return"
    )
    assert why["unused", "output"].startswith("the model ran once as a compiled graph, in which it is not called")
    assert why["layers", "output"].startswith("ModuleList is a container")


def test_a_graph_that_ignores_the_taps_is_not_a_silent_nothing(net):
    """Guards switched off: Dynamo then goes on with the graph that it has."""
    compiled = torch.compile(
        net, backend="eager", options={"guard_filter_fn": lambda guards: [False for _ in guards]}, fullgraph=True
    )
    compiled(A)
    with (
        pytest.raises(lt.errors.NothingCaptured, match="from a graph made without taps"),
        recording(compiled, sites="layers.**"),
    ):
        compiled(B)


def test_a_model_that_does_not_compile_with_taps_runs_without_and_says_so(caplog):
    model = Branching()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with recording(compiled, sites=["", "inner"]) as rec:
        output = compiled(A)
    assert torch.equal(output, model(A))
    assert "cannot be compiled with taps, so it ran without: UncapturedHigherOrderOpError" in rec.receipt.silent[0].why
    assert any("is not recorded:" in note for note in rec.receipt.notes)
    assert "is not recorded:" in caplog.text
    assert type(model.inner) is nn.Linear


def test_strict_raises_what_does_not_compile_with_taps():
    model = Branching()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError), recording(compiled, sites="inner", strict=True):
        compiled(A)
    assert type(model.inner) is nn.Linear


def test_graph_breaks_are_no_obstacle():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            x = self.one(x)
            torch._dynamo.graph_break()
            return self.two(x)

    model = Broken().requires_grad_(False)
    compiled = torch.compile(model, backend="aot_eager")
    with recording(compiled) as rec:
        compiled(A)
        rec.step()
        compiled(B)
    assert_same(rec.run, eager(model, B), step=1)


def test_parameters(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with recording(compiled, sites="shared", what=("output", "param")) as rec:
        compiled(A)
    assert torch.equal(rec.run["shared:param.weight"].tensor(), net.shared.weight)


def test_two_recordings_at_once_are_refused_and_the_first_goes_on(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with recording(compiled, sites="shared") as rec:
        with pytest.raises(lt.errors.BadArgument, match="is compiled and is already being recorded;"):
            lt.record(compiled, sites="shared").start()
        compiled(A)
    assert rec.receipt.complete
    assert type(net.shared) is nn.Linear


def _foreign(graph, inputs):
    return graph


@pytest.mark.parametrize("backend", ["aot_eager", _foreign], ids=["ours", "foreign"])
def test_values_are_those_at_the_tap_not_those_of_a_later_write(backend):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)).requires_grad_(False)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with recording(compiled, sites="*") as rec:
        output = compiled(B)
        output.zero_()
    assert torch.equal(rec.run["0"].tensor(), model[0](B))
    assert torch.equal(rec.run["1"].tensor(), model(B))


def test_dynamic_shapes(net):
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=True)
    with recording(compiled, keep="stats") as rec:
        for rows in (2, 5, 7):
            compiled(torch.ones(rows, 3))
            rec.step()
    assert [rec.run["shared"].at(step=step).record.shape for step in range(3)] == [(2, 3), (5, 3), (7, 3)]


def test_a_backend_that_knows_no_foreign_operations_gets_plain_outputs(net):
    seen = []

    def picky(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    compiled = torch.compile(net, backend=picky, fullgraph=True)
    with recording(compiled, keep="stats") as rec:
        compiled(B)
    assert_same(rec.run, eager(net, B))
    assert seen
    assert not any("layertap" in target for target in seen)
