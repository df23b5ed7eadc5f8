"""A receipt gives the true reason where nothing came, and each record can be distinguished from every other."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.leaves import leaves

X = torch.ones(2, 3)


def why(rec):
    return {site.path: site.why for site in rec.receipt.silent}


class Raising(nn.Module):
    def forward(self, x):
        raise StopIteration


def test_a_call_that_was_ended_by_an_exception():
    model = nn.Sequential(nn.Linear(3, 3), Raising(), nn.Linear(3, 3))
    with lt.record(model, sites="**") as rec, pytest.raises(StopIteration):
        model(X)
    assert why(rec) == {
        "": "it was called, and StopIteration was raised before it returned",
        "1": "it was called, and StopIteration was raised before it returned",
        "2": "the model was left by StopIteration before this module was reached, or took a branch without it",
    }


def test_a_module_that_was_replaced_or_added_while_recording():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    with lt.record(model, sites="*") as rec:
        model[1] = nn.ReLU()
        del model[2]
        model.append(nn.Tanh())
        model.append(nn.GELU())
        model(X)
    assert why(rec)["1"] == "another module replaced it while recording; start a new recording for that one"
    assert any(note.endswith("are not recorded: 1, 2, 3") for note in rec.receipt.notes)


def test_a_module_that_is_called_by_the_backward_pass_alone_is_recorded():
    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, inner):
            ctx.inner = inner
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return ctx.inner(grad), None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return Probe.apply(x, self.inner)

    model = Model()
    with lt.record(model, sites="inner", keep="tensor") as rec:
        model(X.clone().requires_grad_()).sum().backward()
        model(X.clone().requires_grad_()).sum().backward()
    assert [str(site) for site in rec.run.sites] == ["inner", "inner@1"]
    assert rec.receipt.sites[0].recomputed == 0
    assert torch.equal(rec.run["inner"].tensor(), model.inner(torch.ones(2, 3)))


@pytest.mark.parametrize("keep", ["tensor", "[:1]"])  # a reduction goes the long way
def test_each_record_is_a_site_or_a_moment_of_its_own(keep):
    class Doubled(nn.Module):
        def forward(self, x):
            return {"a.b": x + 1, "a": {"b": x + 2}, 1: x + 3, "1": x + 4}

    model = nn.Sequential(nn.Linear(3, 3), Doubled())
    with lt.record(model, sites="*", what=("output", "grad_output"), keep=keep) as rec:
        for _ in range(2):
            loss = sum(leaf.tensor.sum() for leaf in leaves(model(X)))
            loss.backward(retain_graph=True)
            loss.backward()
            rec.step()
    told = [(str(r.site), r.step, r.phase) for r in rec.run.records()]
    assert len(told) == len(set(told))
    assert "0:grad_output@1" in rec.run.sites
    assert rec.run["0:grad_output@1"].steps == (0, 1)


def test_nothing_captured_names_the_sites():
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "one": nn.ReLU(), "two": nn.ReLU()})
    with pytest.raises(lt.errors.NothingCaptured) as caught, lt.record(model, sites=["one", "two"]):
        model["used"](X)
    assert "one, two" in str(caught.value)


def test_the_gradient_of_an_input_leaves_the_model_as_it_is():
    """No copy of a container is handed on, and not one bit of a gradient changes."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, bag):
            bag["seen"] = x
            bag["list"].append(1)
            first, second = bag["list"][0], self.linear(x)
            return first * second + x * 0.1 + bag["x"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner, self.same = nn.Linear(3, 3), Inner(), nn.Identity()

        def forward(self, x):
            x = self.first(x)
            bag = {"x": x * 3, "list": [x * 2]}
            out = self.inner(x, bag)
            assert len(bag["list"]) == 2
            assert bag["seen"] is x
            return self.same(out) * x + x.tanh()

    def run(recorded):
        torch.manual_seed(0)
        model = Model()
        x = torch.randn(4, 3, requires_grad=True)
        if not recorded:
            output = model(x)
            output.pow(3).sum().backward()
            return None, output, x.grad, [parameter.grad for parameter in model.parameters()]
        with lt.record(model, sites="**", what=lt.site.ROLES, keep="tensor") as rec:
            output = model(x)
            output.pow(3).sum().backward()
        return rec, output, x.grad, [parameter.grad for parameter in model.parameters()]

    _, *bare = run(False)
    rec, *recorded = run(True)
    assert torch.equal(bare[0], recorded[0])
    assert torch.equal(bare[1], recorded[1])
    assert all(torch.equal(a, b) for a, b in zip(bare[2], recorded[2], strict=True))
    sites = set(map(str, rec.run.sites))
    assert {"inner:grad_input.0", "inner:grad_input.1.x", "inner:grad_input.1.list.0", "first:grad_input"} <= sites
    grad = rec.run["inner:grad_output"].tensor()
    assert torch.allclose(rec.run["inner:grad_input.1.x"].tensor(), grad), "it is added as it is"
    reasons = {site.path: dict(site.skipped) for site in rec.receipt.sites if site.role == "grad_input"}
    assert any("returned its input itself" in reason for reason in reasons["same"])
