"""Taps: every call of a tapped module is seen, and afterwards the module is as it was."""

import copy
import pickle

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture import taps


class Spy:
    def __init__(self):
        self.seen = []

    def enter(self, args, kwargs, direct):
        self.seen.append(("enter", direct))
        return args, kwargs, len(self.seen)

    def leave(self, token, output):
        self.seen.append(("leave", token))
        return output


class Doubling(Spy):
    def enter(self, args, kwargs, direct):
        return (args[0] * 2,), kwargs, None

    def leave(self, token, output):
        return output + 1


@pytest.fixture
def attach():
    attached = []

    def put(module, tap):
        taps.attach({module: tap})
        attached.append({module: tap})
        return tap

    yield put
    for each in attached:
        taps.detach(each)


def test_sees_calls_and_direct_forward(attach):
    module = nn.Linear(2, 2)
    spy = attach(module, Spy())
    module(torch.ones(1, 2))
    module.forward(torch.ones(1, 2))
    assert [event for event in spy.seen if event[0] == "enter"] == [("enter", False), ("enter", True)]


def test_super_forward_is_the_same_call(attach):
    class Child(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    parent, child = nn.Linear(2, 2), Child(2, 2)
    attach(parent, Spy())
    spy = attach(child, Spy())
    child(torch.ones(1, 2))
    assert len(spy.seen) == 2


def test_a_tap_may_change_what_goes_in_and_out(attach):
    module = nn.Identity()
    attach(module, Doubling())
    assert module(torch.ones(1)).item() == 3.0


def test_a_later_user_hook_is_seen(attach):
    module = nn.Identity()
    seen = []

    class Reader(Spy):
        def leave(self, token, output):
            seen.append(output.item())
            return output

    attach(module, Reader())
    module.register_forward_hook(lambda module, args, output: output + 5)
    module(torch.ones(1))
    assert seen == [6.0]


def test_two_taps_on_one_module(attach):
    module = nn.Identity()
    first, second = attach(module, Spy()), attach(module, Spy())
    module(torch.ones(1))
    assert first.seen
    assert second.seen


def test_an_exception_leaves_the_taps_in_order(attach):
    class Angry(nn.Module):
        def forward(self, x):
            if x.item() > 0:
                raise ValueError("no")
            return x

    module = Angry()
    spy = attach(module, Spy())
    with pytest.raises(ValueError, match="no"):
        module(torch.ones(1))
    module.forward(torch.zeros(1))
    assert spy.seen == [("enter", False), ("enter", True), ("leave", 2)]


def test_copies_and_pickles_of_a_tapped_module_are_themselves(attach):
    module = nn.Linear(2, 2)
    spy = attach(module, Spy())
    twin, revived = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.zero_()
    assert twin(torch.ones(1, 2)).abs().sum().item() == 0.0
    assert torch.equal(
        revived(torch.ones(1, 2)), torch.nn.functional.linear(torch.ones(1, 2), module.weight, module.bias)
    )
    assert not spy.seen


def test_nothing_of_torch_or_of_the_class_is_patched():
    class Own(nn.Linear):
        pass

    call, forward = nn.Module._call_impl, nn.Linear.forward
    module, spy = Own(2, 2), Spy()
    before = dict(module.__dict__)
    taps.attach({module: spy})
    assert nn.Module._call_impl is call
    assert nn.Linear.forward is forward
    assert "forward" not in Own.__dict__
    assert module.__dict__ == before
    taps.detach({module: spy})
    assert type(module) is Own
    assert taps.attached() == 0
    module(torch.ones(1, 2))
    assert not spy.seen


def test_an_untapped_module_is_not_seen(attach):
    tapped, other = nn.Linear(2, 2), nn.Linear(2, 2)
    spy = attach(tapped, Spy())
    other(torch.ones(1, 2))
    other.forward(torch.ones(1, 2))
    assert not spy.seen


def test_modules_that_nothing_is_asked_of_have_no_tap():
    block = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "other": nn.Linear(4, 4)})
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), block["inner"]), block["other"])
    plain = {name: type(module) for name, module in model.named_modules()}
    with lt.record(model, sites="0.1.0") as rec:
        tapped = {name for name, module in model.named_modules() if type(module) is not plain[name]}
        model(torch.ones(4))
    assert tapped == {"", "0", "0.1", "0.1.0"}, "those above say why nothing came, where nothing did"
    assert {name: type(module) for name, module in model.named_modules()} == plain
    assert rec.receipt.complete


def test_a_module_that_is_not_called_is_explained_by_the_one_above():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return self.used(x)

    model = nn.Sequential(Skips(), nn.Linear(4, 4))
    with lt.record(model, sites=["0.unused.0", "1"]) as rec:
        model(torch.ones(4))
        model(torch.ones(4))
    (why,) = [str(site.why) for site in rec.receipt.sites if site.path == "0.unused.0"]
    assert "0" in why
    assert "2" in why, "how often the module above was called"
