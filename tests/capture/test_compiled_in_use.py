"""`record` on a compiled model, as it is used: many recordings, threads, bad inputs, parts that Python runs."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import layertap as lt
from layertap.capture import taps

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor uses what torch deprecates
]


def stack(layers=3):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(layers)]).eval().requires_grad_(False)


def ones(rows, value=1.0):
    return torch.full((rows, 3), value)


needs_shelves = pytest.mark.skipif(
    not hasattr(torch._dynamo.eval_frame, "_next_isolate_recompiles_id"), reason="torch counts all graphs together"
)


@needs_shelves
@pytest.mark.parametrize("fullgraph", [True, False])
def test_many_recordings_neither_reach_nor_use_up_the_limit_of_graphs(fullgraph):
    limit = torch._dynamo.config.recompile_limit
    compiled = torch.compile(stack(limit + 2), backend="aot_eager", fullgraph=fullgraph)
    compiled(ones(2))
    for number in range(limit + 2):
        with lt.record(compiled, sites=str(number)) as rec:
            compiled(ones(2))
        assert not rec.receipt.notes, "each time a graph was recorded, not Python"
    before = counters["stats"]["unique_graphs"]
    compiled(ones(5))  # another shape, another graph: the user's own share of them is untouched
    assert counters["stats"]["unique_graphs"] == before + 1


def test_a_call_that_fails_without_taps_too_does_not_end_the_recording():
    model = stack()
    compiled = torch.compile(model, backend="aot_eager")
    with lt.record(compiled, sites="1", keep="tensor") as rec:
        compiled(ones(2))
        with pytest.raises(RuntimeError):
            compiled(torch.ones(2, 4))
        rec.step()
        compiled(ones(2, 3.0))
    assert torch.equal(rec.run["1"].at(step=1).tensor(), model[1](model[0](ones(2, 3.0))))
    assert not rec.receipt.notes


def test_what_python_ran_is_not_passed_off_as_a_graph():
    class Refused(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        @torch.compiler.disable
        def forward(self, x):
            return self.inner(x)

    compiled = torch.compile(nn.Sequential(nn.Linear(3, 3), Refused()).requires_grad_(False), backend="aot_eager")
    with lt.record(compiled, sites="**") as rec:
        compiled(ones(2))
    (note,) = rec.receipt.notes
    assert note.startswith("Python ran 1.inner, not a compiled graph")
    assert str(rec.receipt).replace("\n", " ").count("Python ran") == 1
    with torch.compiler.set_stance("force_eager"), lt.record(compiled, sites=["0", "1"]) as rec:
        compiled(ones(2))
    assert rec.receipt.notes[0].startswith("Python ran 0, 1, not a compiled graph")


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False))


@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_activation_checkpointing_stays_inside_the_one_graph(keep):
    model = Checkpointed()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(ones(2)).sum().backward()
    want = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with lt.record(compiled, sites="**", what=("input", "output"), keep=keep) as rec:
        compiled(ones(2)).sum().backward()
    assert not rec.receipt.silent
    assert not rec.receipt.notes
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), want, strict=True))
    with lt.record(model, sites="**", what=("input", "output"), keep=keep) as eager:
        model(ones(2))
    for site in eager.run.sites:
        assert rec.run[site].record.fingerprint == eager.run[site].record.fingerprint, site


def test_a_forward_that_was_compiled_in_place():
    model = stack()
    want = model(ones(2))
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    forward = model.forward
    with lt.record(model, sites="**", keep="tensor") as rec:
        model(ones(2))
    assert not rec.receipt.silent
    assert torch.equal(rec.run["2"].tensor(), want)
    assert model.forward is forward


def test_a_class_that_keeps_or_refuses_its_subclasses_is_none_the_wiser():
    class Sealed(nn.Linear):
        def __init_subclass__(cls):
            raise TypeError("sealed")

    compiled = torch.compile(nn.Sequential(Sealed(3, 3)), backend="aot_eager", fullgraph=True)
    with lt.record(compiled, sites="0") as rec:
        compiled(ones(2))
    assert rec.receipt.fired


def test_calls_of_other_threads_come_while_one_compiles():
    model = stack()
    started, done = threading.Event(), threading.Event()

    def slow(graph, inputs):
        started.set()
        assert done.wait(60)
        return graph.forward

    other = torch.compile(stack(1), backend=slow)
    thread = threading.Thread(target=other, args=(ones(2),))
    thread.start()
    try:
        assert started.wait(60)
        with lt.record(model, sites="**") as rec:
            model(ones(2))
    finally:
        done.set()
        thread.join()
    assert not rec.receipt.silent


def test_threads_take_turns_and_every_call_of_theirs_is_whole():
    model = stack()
    compiled = torch.compile(model, backend="aot_eager")
    with lt.record(compiled, sites="**", what=("input", "output"), keep="tensor") as rec:
        threads = [threading.Thread(target=compiled, args=(ones(2, float(number)),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for call in range(4):
        number = f"@{call}" if call else ""
        given = rec.run[f":input{number}"].tensor()
        assert torch.equal(rec.run[f"0:input{number}"].tensor(), given)
        assert torch.equal(rec.run[f":output{number}"].tensor(), model(given))


def test_a_model_that_is_exported_while_it_is_recorded_gives_no_data():
    model = stack()
    seen = []

    class Watch:
        def enter(self, args, kwargs, direct):
            seen.append(taps.compiling())
            return args, kwargs, None

        def leave(self, token, output):
            return output

    taps.attach({model: Watch()})
    try:
        torch.export.export(model, (ones(2),), strict=False)
        torch.export.export(model, (ones(2),), strict=True)
        torch.jit.trace(model, (ones(2),), check_trace=False)
        assert seen == []
        model(ones(2))
        assert seen == [False]
    finally:
        taps.detach({module: tap for module in [model] for tap in taps._taps[id(model)]})


class Asking(nn.Module):
    def forward(self, x):
        return x + (self.__class__.__name__ == "Asking")


class Comparing(nn.Module):
    def forward(self, x):
        return x + 1 if type(self) is Comparing else x


class Fixed(nn.Module):
    @staticmethod
    def forward(x):
        return x + 1


@pytest.mark.parametrize("make", [Asking, Comparing, Fixed])
def test_odd_modules_in_a_graph_compute_what_they_compute_without_taps(make):
    model = nn.Sequential(nn.Linear(3, 3), make()).eval().requires_grad_(False)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    want = compiled(ones(2))
    with lt.record(compiled, sites="*", keep="tensor") as rec:
        assert torch.equal(compiled(ones(2)), want)
    assert not rec.receipt.notes
    if make is Comparing:
        (silent,) = rec.receipt.silent
        assert silent.why.startswith("Comparing compares its own type")
    else:
        assert torch.equal(rec.run["1"].tensor(), want)
    assert [type(module) for module in model] == [nn.Linear, make]


def test_a_module_that_changes_class_inside_a_compiled_part():
    model = stack()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(ones(2))
    with lt.record(compiled, sites="*", keep="tensor") as rec:
        compiled(ones(2))
        torch.nn.utils.parametrizations.weight_norm(model[1])
        want = model[2](model[1](model[0](ones(2))))
        assert torch.allclose(compiled(ones(2)), want)
        torch.nn.utils.parametrizations.orthogonal(model[0])
        torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[1]).__name__ == "ParametrizedLinear"
    assert type(model[1]).__mro__[1] is nn.Linear
    assert [type(model[0]), type(model[2])] == [nn.Linear, nn.Linear]
    assert torch.allclose(rec.run["2@1"].tensor(), want)


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    @torch.compile(backend="aot_eager")
    def forward(self, x):
        return self.inner(x) + 1


def test_a_class_whose_forward_is_compiled():
    model = nn.Sequential(Decorated(), Decorated()).requires_grad_(False)
    want = model(ones(2))
    with lt.record(model, sites="**", what=("input", "output"), keep="tensor") as rec:
        assert torch.equal(model(ones(2)), want)
    assert not rec.receipt.silent
    assert torch.equal(rec.run["1"].tensor(), want)
    assert torch.allclose(rec.run["1.inner"].tensor(), want - 1)
    assert "forward" not in model[0].__dict__


def test_what_somebody_else_has_put_before_the_graph_stays():
    model = stack()
    compiled = torch.compile(model, backend="aot_eager")
    with lt.record(compiled, sites="1"):
        compiled(ones(2))
        before = compiled.forward
        theirs = compiled.forward = lambda x: before(x) + 1
        assert torch.equal(compiled(ones(2)), model(ones(2)) + 1)
    assert compiled.forward is theirs
    assert torch.equal(compiled(ones(2)), model(ones(2)) + 1)
