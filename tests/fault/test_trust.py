"""What is proved before anything is judged, and that nothing is left changed."""

import copy

import pytest
import torch
from torch import nn

from layertap.capture import taps
from layertap.errors import BadArgument
from layertap.fault import find_fault


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.fixture
def x():
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


class Noisy(nn.Module):
    """Repeats itself only roughly, as atomic additions on a GPU do; not by torch's generator."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 + 1e-5 * (self.calls % 7))


def test_the_same_object_is_called_that(x):
    model = small()
    found = find_fault(model, model, (x,))
    assert found.verdict == "identical"
    assert any(note.startswith("reference and candidate are the same object: if you") for note in found.notes)


def test_a_placebo_is_called_that(x):
    found = find_fault(small(), small(), (x,))
    assert found.verdict == "identical"
    assert "compute the same bits everywhere: if you changed something, the change did not run" in found.notes[0]


def test_a_reference_that_does_not_repeat_itself_widens_the_floor_and_that_is_said(x):
    reference = nn.Sequential(*small()[:2], Noisy(), *small()[2:])
    found = find_fault(reference, copy.deepcopy(reference), (x,))
    assert found.verdict == "noise"
    assert "the reference is not deterministic: the floor includes its variation" in found.notes
    broken = copy.deepcopy(reference)
    with torch.no_grad():
        broken[3].weight.mul_(1.1)
    assert find_fault(reference, broken, (x,)).site == "3"


def test_different_inputs_are_inconclusive(x):
    reference, candidate = small(), small()

    def run(model):
        return model(x if model is reference else x.flip(0))

    found = find_fault(reference, candidate, run)
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert found.evidence[0] == "the two sides had different inputs: input"


def test_an_error_outside_of_all_modules_is_inconclusive(x):
    reference, candidate = small(), small()

    def run(model):
        return model(x) * (1.0 if model is reference else 1.5)

    found = find_fault(reference, candidate, run)
    assert found.verdict == "inconclusive"
    assert "no module is above its floor" in found.evidence[0]


def test_a_model_that_is_not_a_module_is_an_error(x):
    with pytest.raises(BadArgument, match="the candidate is a str; expected an nn"):
        find_fault(small(), "model.pt", (x,))


def test_inputs_may_be_one_tensor_and_nonsense_is_an_error(x):
    candidate = small()
    with torch.no_grad():
        candidate[2].weight.mul_(1.5)
    found = [find_fault(small(), candidate, given) for given in ((x,), [x], x)]
    assert [finding.site for finding in found] == ["2"] * 3
    with pytest.raises(BadArgument, match="the inputs are of type int; expected keywords"):
        find_fault(small(), candidate, 3)


def test_weights_that_hardly_differ_are_not_called_disordered(x):
    candidate = small()
    with torch.no_grad():
        candidate[0].weight.mul_(1 + 2e-6)
    found = find_fault(small(), candidate, x)
    assert (found.site, found.cause) == ("0", "weights")
    assert found.evidence[0].startswith("weight: relative error 2"), found.evidence


class Counting(nn.Module):
    """Writes into a buffer, and exchanges another, in every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x):
        self.seen += 1
        self.last = x[0].clone()
        return x


def test_parameters_buffers_gradients_modes_and_generators_are_as_before(x):
    model = nn.Sequential(Counting(), nn.BatchNorm1d(8), *small()).train()
    model[2].eval()
    other = copy.deepcopy(model)
    for one in (model, other):
        one[2].weight.grad = torch.ones_like(one[2].weight)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    generator = torch.get_rng_state()

    def step(one):
        one.eval()
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        loss = one(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with torch.no_grad():
        other[4].weight.mul_(1.5)
    state = copy.deepcopy(other.state_dict())
    found = find_fault(model, other, step)
    assert found.site == "4"
    for one, was in ((model, before), (other, state)):
        assert all(torch.equal(was[name], value) for name, value in one.state_dict().items())
        assert [module.training for module in one.modules()] == modes
        assert torch.equal(one[2].weight.grad, torch.ones_like(one[2].weight))
        assert one[4].weight.grad is None
    assert torch.equal(torch.get_rng_state(), generator)
    assert taps.attached() == 0


def test_everything_is_put_back_after_an_exception_too(x):
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("out of luck")

    model, other = nn.Sequential(Counting(), small()), nn.Sequential(Counting(), Fails())
    with pytest.raises(RuntimeError, match="out of luck"):
        find_fault(model, other, (x,))
    assert taps.attached() == 0
    assert float(model[0].seen) == float(other[0].seen) == 0
    assert not model[0].last.any()
    assert "forward" not in vars(nn.Sequential) or not hasattr(nn.Sequential.forward, "__wrapped__")


def test_memory_stays_within_the_budget_and_the_answer_is_the_same(x):
    reference, candidate = small(), small()
    with torch.no_grad():
        candidate[2].weight[3] = 0
    rich, poor = (find_fault(reference, candidate, (x,), budget=budget) for budget in ("1GiB", 3000))
    assert rich.memory["disk"] == 0
    assert rich.memory["memory"] > 9000
    assert poor.memory["memory"] <= 3000 < poor.memory["disk"]
    assert (poor.site, poor.cause, poor.ratio) == (rich.site, rich.cause, rich.ratio)


def test_inputs_are_not_written_into(x):
    class Adds(nn.Module):
        def forward(self, x):
            return x.add_(1)

    before = x.clone()
    assert find_fault(nn.Sequential(Adds(), small()), nn.Sequential(Adds(), small()), (x,)).verdict == "identical"
    assert torch.equal(x, before)


class Shy(nn.Module):
    """Computes something else while it is watched."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        up = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5
        return x * (1 + torch.where(up, self.by, -self.by)) if taps.attached() else x


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_what_watching_does_is_told_if_it_is_less_than_rounding_and_doubted_if_it_is_more(x, side):
    def found(by):
        sides = {"reference": small(), "candidate": small()}
        sides[side].append(Shy(by))
        return find_fault(sides["reference"], sides["candidate"], (x,))

    little, much = found(1e-7), found(1e-2)
    assert little.verdict == "noise", str(little)
    assert any(f"the {side} rounds differently while it is observed" in note for note in little.notes)
    assert much.verdict == "inconclusive", str(much)
    assert any(f"the {side} computes different values while it is observed: " in e for e in much.evidence)


def test_every_sentence_is_in_the_catalogue_of_each_language():
    import re
    import string
    from pathlib import Path

    from layertap import fault
    from layertap.messages.en.cause import MESSAGES as CAUSES
    from layertap.messages.en.fault import MESSAGES as SENTENCES
    from layertap.messages.zh.cause import MESSAGES as CAUSES_ZH
    from layertap.messages.zh.fault import MESSAGES as SENTENCES_ZH

    code = "".join(path.read_text() for path in Path(fault.__file__).parent.glob("*.py"))
    used = set(re.findall(r'(?:Note|tr)\(\s*"((?:fault|cause)\.\w+)"', code))
    assert used - (SENTENCES.keys() | CAUSES.keys()) == set()
    assert used - (SENTENCES_ZH.keys() | CAUSES_ZH.keys()) == set()

    def values(text):
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    for english, chinese in ((SENTENCES, SENTENCES_ZH), (CAUSES, CAUSES_ZH)):
        assert {code: values(text) for code, text in english.items()} == {
            code: values(text) for code, text in chinese.items()
        }
