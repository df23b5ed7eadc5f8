"""Modules of every odd kind: a tapped one computes what it computes without, and is what it was afterwards."""

import copy
import functools
import io
import pickle
import threading
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import layertap as lt

X = torch.arange(6.0).reshape(2, 3)


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x + 1


class OfClass(nn.Module):
    @classmethod
    def forward(cls, x):
        return x + 1 if cls is OfClass else x


class Property(nn.Module):
    @property
    def forward(self):
        return lambda x: x + 1


class Builtin(nn.Module):
    forward = torch.relu


class Dispatching(nn.Module):
    @functools.singledispatchmethod
    def forward(self, x):
        raise TypeError(type(x))

    @forward.register
    def _(self, x: torch.Tensor):
        return x + 1


class Partial(nn.Module):
    forward = functools.partialmethod(lambda self, plus, x: x + plus, 1)


class OwnCall(nn.Module):
    def __call__(self, x):
        return x + 1


class CallAround(nn.Linear):
    def __call__(self, x):
        return super().__call__(x) + 1


class Slotted(nn.Module):
    __slots__ = ("extra",)

    def forward(self, x):
        self.extra = 1
        return x + self.extra


class SlottedBelow(Slotted):
    __slots__ = ("more",)


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.built = True
        return made

    def __setattr__(cls, name, value):
        raise TypeError("sealed")

    def __eq__(cls, other):
        return cls is other

    __hash__ = None


class WithMeta(nn.Module, metaclass=Meta):
    def forward(self, x):
        return x + self.built


class Getattr(nn.Module):
    def __getattr__(self, name):
        if name.startswith("_layertap"):
            return 5
        return super().__getattr__(name)

    def forward(self, x):
        return x + 1


class Sealed(nn.Module):
    def __setattr__(self, name, value):
        if "training" in self.__dict__ and name not in ("training", "_modules", "_is_full_backward_hook"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def forward(self, x):
        return x + 1


class OwnClass(nn.Module):
    @property
    def __class__(self):
        return nn.Linear

    def forward(self, x):
        return x + 1


class NoChildren(nn.Module):
    def __init_subclass__(cls):
        raise TypeError("final")

    def forward(self, x):
        return x + 1


class AsksType(nn.Module):
    def forward(self, x):
        return x + 1 if type(self) is AsksType else x


class AsksClass(nn.Module):
    def forward(self, x):
        named = self.__class__.__name__ == "AsksClass" and type(self).__name__ == "AsksClass"
        return x + 1 if self.__class__ is AsksClass and type(self) == AsksClass and named else x  # noqa: E721


class SuperOfType(nn.Linear):
    def forward(self, x):
        return super(type(self), self).forward(x)


class Mangled(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.__plus = 1

    def forward(self, x):
        return super().forward(x) + self.__plus


class Recursive(nn.Module):
    def forward(self, x, depth=3):
        return x if depth == 0 else self(x + 1, depth - 1)


def with_own_forward():
    module = nn.Linear(3, 3)
    module.forward = lambda x: x + 1
    return module


def hooked():
    module = nn.Linear(3, 3)
    module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module.register_forward_hook(lambda module, args, output: output + 5)
    module.register_full_backward_hook(lambda module, given, got: None)
    return module


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))


def graph_module():
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))


class Torn(nn.Module):
    """Its parent looks at the child's class."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        kind = type(self.inner)
        plain = kind == nn.Linear and kind in (nn.Linear, nn.ReLU) and kind in {nn.Linear: 1}
        twin = kind(3, 3)
        assert type(twin) is nn.Linear
        return self.inner(x) if plain and isinstance(self.inner, kind) and self.inner.__class__ == nn.Linear else x


def linear(cls):
    return functools.partial(cls, 3, 3)


MAKERS = {
    **{
        cls.__name__: cls
        for cls in (Static, OfClass, Property, Builtin, Dispatching, Partial, OwnCall, Slotted, SlottedBelow, WithMeta)
    },
    **{cls.__name__: cls for cls in (Getattr, Sealed, OwnClass, NoChildren, AsksType, AsksClass, Recursive, Torn)},
    **{cls.__name__: linear(cls) for cls in (CallAround, SuperOfType, Mangled)},
    **{make.__name__: make for make in (with_own_forward, hooked, scripted, graph_module)},
    "parametrized": lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MAKERS)
def test_an_odd_module_is_seen_and_is_none_the_wiser(name):
    torch.manual_seed(0)
    module = MAKERS[name]()
    model = nn.Sequential(module)
    kind, state, bare = type(module), dict(module.__dict__), model(X)
    with lt.record(model, sites=["0", "0.**"], what=("input", "output"), keep="tensor") as rec:
        tapped = model(X)
        direct = module.forward(X) if name != "OwnCall" else bare
    assert torch.equal(tapped, bare)
    assert direct.shape == bare.shape
    assert not rec.receipt.error
    assert torch.equal(rec.run["0"].tensor(), bare)
    assert type(module) is kind
    assert module.__dict__.keys() == state.keys()
    seen = next(site for site in rec.receipt.sites if site.path == "0" and site.role == "output")
    calls = 1 if name == "OwnCall" else 2
    assert seen.fired == (8 if name == "Recursive" else calls)
    assert seen.direct == calls - 1


def test_input_and_output_are_those_after_the_users_hooks():
    model = nn.Sequential(hooked())
    with lt.record(model, sites="0", what=("input", "output"), keep="tensor") as rec:
        output = model(X)
    assert torch.equal(rec.run["0:input"].tensor(), X * 2), "as forward receives it"
    assert torch.equal(rec.run["0"].tensor(), output), "as the caller receives it"


def test_a_pre_hook_that_raises_leaves_everything_in_order():
    model = nn.Sequential(nn.Linear(3, 3))
    handle = model[0].register_forward_pre_hook(lambda module, args: 1 / 0)
    with lt.record(model, sites="0", what=("input", "output")) as rec:
        with pytest.raises(ZeroDivisionError):
            model(X)
        handle.remove()
        model(X)
    assert [str(site) for site in rec.run.sites] == ["0:input", "0"]


@pytest.mark.parametrize("make", [nn.LazyLinear, nn.LazyConv1d, nn.LazyBatchNorm1d])
def test_a_lazy_module_becomes_what_it_becomes(make):
    sizes = {nn.LazyLinear: (4,), nn.LazyConv1d: (4, 1), nn.LazyBatchNorm1d: ()}[make]
    given = torch.randn(2, 3, 5)
    model = nn.Sequential(make(*sizes))
    with lt.record(model, sites="0", what=("output", "param"), keep="tensor") as rec:
        first, second = model(given), model(given)
    assert type(model[0]) is make.cls_to_become
    assert torch.equal(rec.run["0"].tensor(), first)
    assert torch.equal(rec.run["0@1"].tensor(), second)


def test_a_module_that_changes_class_while_it_is_recorded_is_recorded_on():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with lt.record(model, sites="*", keep="tensor") as rec:
        model(X)
        parametrizations.weight_norm(model[0])
        parametrizations.orthogonal(model[1])
        changed = model(X)
        parametrize.remove_parametrizations(model[1], "weight")
        model(X)
    assert len(rec.run.sites) == 6
    assert torch.equal(rec.run["1@1"].tensor(), changed)
    inside = type(model[0])
    assert (inside.__module__, inside.__name__) == ("torch.nn.utils.parametrize", "ParametrizedLinear")
    assert inside.__mro__[1] is nn.Linear
    assert type(model[1]) is nn.Linear


def test_fully_shard_while_recorded(tmp_path):
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(3, 3))
        with lt.record(model, sites="0") as rec:
            model(X)
            fully_shard(model[0])
            model(X)
        assert type(model[0]).__mro__[1:3] == (torch.distributed.fsdp.FSDPModule, nn.Linear)
        assert [str(site) for site in rec.run.sites] == ["0", "0@1"]
    finally:
        torch.distributed.destroy_process_group()


def test_what_others_patch_meanwhile_survives():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), torch.fx.symbolic_trace(nn.Sequential(nn.ReLU())), nn.Identity())
    graph = model[2]
    with lt.record(model, sites="*", keep="tensor") as rec:
        with mock.patch.object(nn.Linear, "forward", lambda self, x: x * 7):
            assert torch.equal(model[0](X), X * 7)
        with mock.patch.object(type(model[1]), "forward", lambda self, x: x * 8):
            assert torch.equal(model[1](X), X * 8)
        with mock.patch.object(model[1], "forward", lambda x: x * 9):
            assert torch.equal(model[1](X), X * 9)
        before = model[3].forward
        model[3].forward = lambda x: before(x) + 10
        (node,) = (node for node in graph.graph.nodes if node.op == "call_module")
        with graph.graph.inserting_after(node):
            plus = graph.graph.call_function(torch.add, (node, 11))
            node.replace_all_uses_with(plus, lambda user: user is not plus)
        graph.recompile()
        assert torch.equal(model[2](X), X + 11)
        output = model[3](X)
    assert torch.equal(output, X + 10)
    assert torch.equal(rec.run["3"].tensor(), X + 10)
    assert torch.equal(model[3](X), X + 10)
    assert torch.equal(model[2](X), X + 11)
    assert "forward" not in model[1].__dict__
    assert nn.ReLU.forward(model[1], -X).max() == 0
    assert [str(site) for site in rec.run.sites] == ["0", "1", "1@1", "2", "3"]


def test_a_class_that_somebody_else_has_given_stays():
    class Theirs(nn.Linear):
        pass

    module = nn.Linear(3, 3)
    model = nn.Sequential(module)
    with lt.record(model, sites="0") as rec:
        model(X)
        object.__dict__["__class__"].__set__(module, Theirs)
        model(X)
    assert type(module) is Theirs
    assert rec.receipt.sites[0].fired == 1, "set behind its back: it is not tapped any more"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_scripting_and_tracing_inside_a_recording_and_afterwards():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.TransformerEncoderLayer(3, 1, 4, batch_first=True)).eval()
    given = torch.randn(2, 4, 3)
    with torch.no_grad():
        bare = model(given)
        with lt.record(model, sites="**"):
            model(given)
            inside = torch.jit.script(model)
            traced = torch.jit.trace(model, (given,))
            exported = torch.export.export(model, (given,))
            symbolic = torch.fx.symbolic_trace(model[:2])
        after = torch.jit.script(model)
        for made in (inside, traced, exported.module(), after):
            assert torch.allclose(made(given), bare, atol=1e-6)
        assert torch.equal(symbolic(given), model[:2](given))
    assert [node.target for node in symbolic.graph.nodes if node.op == "call_module"] == ["0", "1"]
    assert "0" in dict(inside.named_modules())


def test_copies_of_a_recorded_model_are_plain():
    model = nn.Sequential(nn.Linear(3, 3), AsksType())
    bare = model(X)
    with lt.record(model, sites="**") as rec:
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        twins = [copy.deepcopy(model), copy.copy(model[0]), pickle.loads(pickle.dumps(model))]
        twins.append(torch.load(stored, weights_only=False))
        state = model.state_dict()
        replica = model[0]._replicate_for_data_parallel()
        replica._parameters = {name: parameter * 0 for name, parameter in model[0].named_parameters()}
        assert replica(X).abs().sum() == 0
        model(X)
    assert list(state) == ["0.weight", "0.bias"]
    assert [type(twin) for twin in twins] == [nn.Sequential, nn.Linear, nn.Sequential, nn.Sequential]
    assert all(type(twin[0]) is nn.Linear for twin in (twins[0], twins[2], twins[3]))
    assert all(torch.equal(twin(X), bare) for twin in (twins[0], twins[2], twins[3]))
    assert type(replica) is nn.Linear
    assert rec.receipt.records == 4, "the copies were not recorded"


def test_functional_calls_and_other_threads_are_seen():
    model = nn.Sequential(nn.Linear(3, 3))
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    with lt.record(model, sites="0") as rec:
        assert torch.func.functional_call(model, zeros, (X,)).abs().sum() == 0
        thread = threading.Thread(target=model, args=(X,))
        thread.start()
        thread.join()
    assert rec.receipt.sites[0].fired == 2


class Nest(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nest(depth - 1) if depth else None

    def forward(self, x):
        return x if self.inner is None else self.inner(x)


def deepest(fits):
    low, high = 0, 400
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, high = (middle, high) if fits(middle) else (low, middle)
        except RecursionError:
            high = middle
    return low


def test_modules_can_be_nested_nearly_as_deep_as_without_taps():
    models = [Nest(depth) for depth in range(260)]

    def bare(depth):
        models[depth](X)
        return True

    def recorded(depth):
        with lt.record(models[depth], sites="**") as rec:
            models[depth](X)
        return rec.receipt.complete and rec.receipt.records == depth + 2

    limit = min(259, deepest(lambda depth: depth < 260 and bare(depth)))
    found = deepest(lambda depth: depth < 260 and recorded(depth))
    assert found >= 0.85 * limit, (found, limit)


def test_a_module_whose_class_cannot_be_exchanged_is_named():
    class Closed(nn.Module):
        __slots__ = ("extra",)

        def __init_subclass__(cls):
            raise TypeError("final")

        def forward(self, x):
            return x + 1

    model = nn.Sequential(Closed(), nn.Linear(3, 3))
    with lt.record(model, sites="*") as rec:
        model(X)
    (silent,) = rec.receipt.silent
    assert silent.path == "0"
    assert "Closed cannot be replaced by a tapped one (TypeError: final)" in silent.why
