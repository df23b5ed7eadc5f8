"""What a search costs, in counts: forward passes of each side, and measurements of what was put there by us."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layertap.fault import find_fault, moved_values, replay_measure, rounding, search
from layertap.fault.model_runner import ModelRunner
from layertap.fault.moved_values import MovedValues
from layertap.fault.replay_measure import Replay
from layertap.fault.tensor_cache import TensorCache


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def _net(depth):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(depth))).eval()


X = (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture
def forwards():
    """How often the outermost module of a model runs, by the model."""

    def count(model):
        seen = []
        model.register_forward_pre_hook(lambda module, args: seen.append(1))
        return seen

    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("faults", [1, 3, 12])
def test_no_side_runs_more_than_ten_times_with_any_number_of_faults(faults, dtype, forwards):
    reference = _net(12)
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        for block in candidate[:faults]:
            block.up.weight[2:5] *= -1
    candidate = candidate.to(dtype)
    ours, theirs = forwards(reference), forwards(candidate)
    found = find_fault(reference, candidate, X)
    assert found.verdict == "fault", str(found)
    assert 1 + len(found.others) == faults
    assert found.forwards["candidate"] == len(theirs) <= 10
    # Copies of the reference take its hooks along, so they are counted here as well.
    assert found.forwards["reference"] == len(ours) <= 10


def test_a_model_that_does_not_repeat_itself_costs_no_more(forwards):
    class Noisy(Block):
        turn = 0

        def forward(self, x):
            self.turn += 1
            return super().forward(x) * (1 + 1e-6 * self.turn)

    reference = nn.Sequential(*(Noisy() for _ in range(3))).eval()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[1].up.weight *= -1
    found = find_fault(reference, candidate.bfloat16(), X)
    assert found.verdict == "fault", str(found)
    assert max(found.forwards.values()) <= 10


def test_what_was_put_there_by_us_is_not_measured(monkeypatch):
    measured = []
    begin = replay_measure.begin

    def counted(right, found):
        measured.append(found.shape)
        return begin(right, found)

    monkeypatch.setattr(replay_measure, "begin", counted)
    reference = _net(4)
    find_fault(reference, copy.deepcopy(reference), X)
    # A forced run measures what each of 4 blocks' 3 children and the blocks return, and of what arrives only what is
    # not a value that was handed on as it is: `down` gets a tanh. The input of the model is measured once.
    assert len(measured) <= 3 * (16 + 4 + 1 + 1) + 2 * 33, len(measured)


class Operators(TorchDispatchMode):
    """Counts what torch is asked to compute, or to wait for, while it is on."""

    FORM = frozenset({"detach", "view", "alias", "as_strided", "slice", "empty", "empty_like", "t", "_unsafe_view"})

    def __init__(self):
        super().__init__()
        self.seen = Counter()
        self.inside = Counter()
        """While a model runs."""
        self.running = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in self.FORM:
            self.seen[name] += 1
            if self.running:
                self.inside[name] += 1
        return func(*args, **(kwargs or {}))


def _operators(monkeypatch, depth, dtype, forwards=None):
    """What a search of a clean pair has torch compute besides what its forward passes do, and what while they run."""
    reference = _net(depth).to(dtype).requires_grad_(False)
    candidate = copy.deepcopy(reference)
    call = ModelRunner._call

    def running(self):
        count.running = True
        output = call(self)
        count.running = False
        return output

    monkeypatch.setattr(ModelRunner, "_call", running)
    x = (X[0].to(dtype),)
    with Operators() as plain:
        reference(*x)
    with Operators() as count:
        found = find_fault(reference, candidate, x)
    assert found.verdict == "identical", str(found)
    own = Counter({name: number * sum(found.forwards.values()) for name, number in plain.seen.items()})
    return count.seen - own, count.inside - own


def test_few_operators_are_added_to_those_of_the_model_and_none_waits_while_it_runs(monkeypatch):
    few, _ = _operators(monkeypatch, 4, torch.bfloat16)
    many, inside = _operators(monkeypatch, 12, torch.bfloat16)
    each = {name: (many[name] - few[name]) / 8 for name in many if many[name] != few[name]}
    # Of a block and its three modules: a copy of each for the trace, of what each is handed in two forced runs, and one
    # pass over each input in the two runs on inputs that are moved; then each parameter is looked at once.
    assert sum(each.values()) <= 32, each
    assert not {"_local_scalar_dense", "equal", "is_nonzero", "nonzero"} & set(inside), inside


class Fan(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x):
        x = torch.tanh(x)
        return sum(way(x) for way in self.ways)


class Turned(nn.Module):
    """A fan that is given a second value."""

    def __init__(self):
        super().__init__()
        self.fan = Fan()

    def forward(self, x, angle):
        return self.fan(x) * angle


class Turning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Turned() for _ in range(3))

    def forward(self, x):
        angle = torch.cos(x)
        for layer in self.layers:
            x = layer(x, angle)
        return x


@pytest.mark.parametrize(("model", "forced", "free"), [(Fan, 2, 2), (Turning, 7, 11)])
def test_what_is_handed_to_several_modules_is_moved_once(monkeypatch, model, forced, free):
    """The model's input, an angle, what layers hand on, tanhs; in a free run what a layer and its fan are given is
    moved twice."""
    moved = []

    def counted(value, seed=0, dtype=None):
        moved.append(id(value))
        return rounding.one_ulp(value, seed, dtype)

    monkeypatch.setattr(search, "one_ulp", counted)
    torch.manual_seed(0)
    reference = model().eval()
    find_fault(reference, copy.deepcopy(reference), X)
    assert len(moved) == forced + free
    monkeypatch.setattr(moved_values, "MOVED", 0)
    moved.clear()
    find_fault(reference, copy.deepcopy(reference), X)
    assert len(moved) > 1.5 * (forced + free)


def test_a_moved_value_is_not_handed_on_once_somebody_has_written():
    cache = TensorCache(None)
    moved = MovedValues()
    given = torch.randn(4, 8)
    slot = cache.put(given)
    for of in (slot, None):
        first = moved.of(given, rounding.one_ulp, once=True, slot=of)
        assert moved.of(given, rounding.one_ulp, once=True, slot=of) is first
        assert moved.of(given, rounding.one_ulp, once=False, slot=of) is not first, "its gradient goes another way"
        first = moved.of(given, rounding.one_ulp, once=True, slot=of)
        first.add_(1)
        again = moved.of(given, rounding.one_ulp, once=True, slot=of)
        assert torch.equal(again, rounding.one_ulp(given))
    given.add_(1)
    assert torch.equal(moved.of(given, rounding.one_ulp, once=True), rounding.one_ulp(given))
    for other in (given.bfloat16(), given.flatten(), given.T, given.reshape(8, 4)):  # one value in other forms
        assert torch.equal(moved.of(other, rounding.one_ulp, once=True, slot=slot), rounding.one_ulp(other))
    whole = torch.arange(4)
    assert moved.of(whole, rounding.one_ulp, once=True, slot=cache.put(whole)).data_ptr() != whole.data_ptr()


@pytest.mark.parametrize("judged", [True, False])
def test_what_is_handed_to_several_modules_is_measured_once(monkeypatch, judged):
    measured = []
    begin = replay_measure.begin

    def counted(right, found):
        measured.append(id(found))
        return begin(right, found)

    monkeypatch.setattr(replay_measure, "begin", counted)
    torch.manual_seed(0)
    reference = Fan().eval()
    candidate = copy.deepcopy(reference)
    if judged:
        with torch.no_grad():
            candidate.ways[4].weight.mul_(-1)
    found = find_fault(reference, candidate, X)
    assert found.site == ("ways.4" if judged else "")
    # The model's input, the tanh, six results and their sum: in the free run, the forced one and, where something is
    # wrong, two more; with moved inputs each of the six is given a tensor of its own once more at most.
    assert len(measured) <= (4 if judged else 2) * 9 + 9 + 6 + 6, len(measured)


@pytest.fixture
def judged(monkeypatch):
    """Of each judged run: whether it is forced, what is put back, how many pairs were measured in it, its events."""
    seen, count = [], []
    play, begin = search.play, replay_measure.begin

    def counted(right, found):
        count.append(found.shape)
        return begin(right, found)

    def noted(side, modules, trace, names, options, within=None):
        before = len(count)
        replayed = play(side, modules, trace, names, options, within)
        if options.judge:
            seen.append((options.force, bool(options.put_back), len(count) - before, replayed.events))
        return replayed

    monkeypatch.setattr(replay_measure, "begin", counted)
    monkeypatch.setattr(search, "play", noted)
    return seen


@pytest.mark.parametrize("inplace", [False, True])
def test_up_to_the_first_value_that_is_exchanged_a_run_is_the_free_one_and_is_not_measured(
    judged, monkeypatch, inplace
):
    class Writing(Block):
        def forward(self, x):
            return self.down(self.up(self.norm(x)).tanh_()).add_(x)

    torch.manual_seed(0)
    reference = nn.Sequential(*((Writing if inplace else Block)() for _ in range(12))).eval()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[9].up.weight[2:5] *= -1
    found = find_fault(reference, candidate, X)
    assert (found.site, found.cause) == ("9.up", "weights")
    few = judged.copy()
    free, moved, forced, moved_free, put_back = (run[:2] for run in few)
    assert (free, moved, forced) == ((False, False), (True, False), (True, False))
    assert (moved_free, put_back) == ((False, False), (False, True))
    # Of a block five values are measured, the second is what `up` returns.
    assert [measured for _, _, measured, _ in few][2::2] == [3 * 5 - 1] * 2
    assert few[3][2] == 3 * 5 - 1 + 2, "and what arrives at two blocks' `norm`, moved a second time"
    judged.clear()
    with monkeypatch.context() as patch:
        patch.setattr(search.FaultSearch, "right_before", frozenset())
        assert str(find_fault(reference, candidate, X)) == str(found)
    assert judged[3][2] > 12 * 5
    judged.clear()
    monkeypatch.setattr(Replay, "_as_before", lambda self, key, caller: False)
    again = find_fault(reference, candidate, X)
    assert str(again) == str(found)
    assert [measured for _, _, measured, _ in judged][2::2] == [12 * 5 + 1] * 2
    assert [events for *_, events in few] == [events for *_, events in judged]


def test_a_clean_candidate_is_not_measured_a_second_time(judged, monkeypatch):
    reference = _net(6)
    found = find_fault(reference, copy.deepcopy(reference), X)
    assert [measured for _, _, measured, _ in judged][::2] == [6 * 5 + 1, 0]
    monkeypatch.setattr(Replay, "_as_before", lambda self, key, caller: False)
    assert find_fault(reference, copy.deepcopy(reference), X) == found


def test_of_a_candidate_that_does_not_repeat_itself_every_run_is_measured_whole(judged):
    class Noisy(Block):
        turn = 0

        def forward(self, x):
            self.turn += 1
            return super().forward(x) * (1 + 1e-6 * self.turn)

    torch.manual_seed(0)
    reference = nn.Sequential(*(Noisy() for _ in range(4))).eval()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[2].up.weight *= -1
    found = find_fault(reference, candidate, X)
    assert found.verdict == "fault", str(found)
    assert min(measured for _, _, measured, _ in judged) >= 4 * 5


def test_only_what_is_near_the_culprit_is_forced_in_a_closer_look(monkeypatch):
    looked = []
    play = search.play

    def counted(side, modules, trace, names, options, within=None):
        looked.append((len(modules), within is not None))
        return play(side, modules, trace, names, options, within)

    monkeypatch.setattr(search, "play", counted)
    reference = _net(12)
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[5].up.weight[2:5] *= -1
    found = find_fault(reference, candidate, X)
    assert (found.site, found.cause) == ("5.up", "weights")
    assert {modules for modules, closer in looked if closer} == {1 + 12 + 3}
    assert {modules for modules, closer in looked if not closer} == {1 + 12 + 36}
