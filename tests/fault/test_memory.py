"""Where the reference's tensors wait, and what is held at a time; a device's ways are taken on the CPU."""

import copy
import weakref

import pytest
import torch
from torch import nn

from layertap.fault import find_fault, search, tensor_cache
from layertap.fault.model_runner import ModelRunner
from layertap.fault.prefetch import Prefetch
from layertap.fault.tensor_cache import TensorCache

SIZE = 4096
"""Bytes of one tensor here."""


def tensors(count):
    return [torch.full((SIZE // 4,), float(number)) for number in range(count)]


@pytest.fixture
def device(monkeypatch):
    """The CPU as a device that has this much memory left."""

    def with_room(free):
        monkeypatch.setattr(TensorCache, "_has_room", staticmethod(lambda tensor: True))
        monkeypatch.setattr(tensor_cache, "_free", lambda device: free)

    return with_room


@pytest.fixture
def brought(monkeypatch):
    """The numbers of the tensors that are copied back, in that order; and the most bytes that were held."""
    seen, most = [], [0]
    bring = Prefetch._bring

    def counted(self, numbers, *keep):
        seen.extend(numbers)
        bring(self, numbers, *keep)
        most[0] = max(most[0], self.held)

    monkeypatch.setattr(Prefetch, "_bring", counted)
    return seen, most


def test_each_is_brought_back_once_a_run_before_it_is_asked_for(brought):
    seen, most = brought
    away = Prefetch(torch.device("cpu"), 4 * SIZE)
    for one in tensors(20):
        away.put(one)
    for run in range(2):
        away.rewind()
        for number in range(20):
            held = seen.copy()
            assert float(away.here(number)[0]) == number
            assert number in held[20 * run :] or number == 0, "it was there before it was asked for"
            assert float(away.here(number)[0]) == number
    assert seen == [*range(20)] * 2
    assert most[0] <= 4 * SIZE


def test_what_all_layers_read_stays_while_there_is_room(brought):
    seen, most = brought
    away = Prefetch(torch.device("cpu"), 6 * SIZE)
    for one in tensors(20):
        away.put(one)
    for number in range(1, 20):
        away.here(0)
        away.here(number)
    assert seen.count(0) == 1
    assert most[0] <= 6 * SIZE


def test_in_another_order_the_values_are_right_all_the_same():
    away = Prefetch(torch.device("cpu"), 4 * SIZE)
    for one in tensors(9):
        away.put(one)
    for number in (8, 0, 3, 3, 7, 1, 8, 2, 0):
        assert float(away.here(number)[0]) == number
        assert float(away.away(number)[0]) == number


def test_one_that_is_larger_than_the_window_is_brought_back_alone():
    away = Prefetch(torch.device("cpu"), SIZE // 2)
    for one in tensors(3):
        away.put(one)
    for number in range(3):
        assert float(away.here(number)[0]) == number
        assert away.held == SIZE


def test_what_a_device_has_no_room_for_waits_in_memory_and_not_on_disk(device, monkeypatch):
    device(1 << 40)
    cache = TensorCache(8 * SIZE)  # a quarter of it is the window
    given = tensors(20)
    slots = [cache.put(one) for one in given]
    assert (cache.on_device, cache.in_memory, cache.on_disk) == (6 * SIZE, 14 * SIZE, 0)
    for one, slot in zip(given, slots, strict=True):
        assert slot.get(one.device).equal(one)
        assert slot.get().equal(one)
    assert sum(one.held for one in cache._prefetch.values()) <= 2 * SIZE
    poor = TensorCache(8 * SIZE)
    monkeypatch.setattr(poor, "_memory", 3 * SIZE)
    slots = [poor.put(one) for one in given]
    assert (poor.on_device, poor.in_memory, poor.on_disk) == (6 * SIZE, 3 * SIZE, 11 * SIZE)
    assert all(slot.get(one.device).equal(one) for one, slot in zip(given, slots, strict=True))
    poor.close()


def _away(slots):
    return {number for number, slot in enumerate(slots) if isinstance(slot._where, Prefetch)}


@pytest.mark.parametrize("count", [20, 50, 64])
def test_what_has_to_go_is_spread_over_the_run(device, count):
    device(1 << 40)
    cache = TensorCache(24 * SIZE)
    slots = [cache.put(one) for one in tensors(count)]
    away = _away(slots)
    assert len(away) == count - 18
    share = len(away) / count
    for number in range(0, count, 8):
        here = [one for one in away if number <= one < number + 8]
        assert abs(len(here) - share * min(8, count - number)) <= 2, away


def test_what_is_likely_to_go_is_copied_before_there_is_no_more_room(device, monkeypatch):
    copied, late = [], []
    copy_out = Prefetch._copied_out

    def counted(self, tensor):
        copied.append(int(tensor[0]))
        late.append(cache.on_device >= 17 * SIZE)
        return copy_out(self, tensor)

    monkeypatch.setattr(Prefetch, "_copied_out", counted)
    device(1 << 40)
    given = tensors(40)
    cache = TensorCache(24 * SIZE)
    slots = [cache.put(one) for one in given]
    assert sorted(copied) == sorted(_away(slots)), "each is copied once, and no other"
    assert late.count(False) >= 5
    assert all(slot.get(one.device).equal(one) for one, slot in zip(given, slots, strict=True))
    copied.clear()
    device(120 * SIZE)
    monkeypatch.setattr(tensor_cache, "WINDOW", SIZE)
    cache = TensorCache(None)
    for one in given:
        cache.put(one)
    assert not copied, "without a budget there is room"


def test_small_tensors_stay_while_large_ones_can_go(device):
    device(1 << 40)
    cache = TensorCache(8 * SIZE)
    slots = [cache.put(torch.zeros(1 if number % 2 else SIZE // 4)) for number in range(40)]
    assert all(slots[number]._where is None for number in range(1, 40, 2))
    assert cache.on_device <= 6 * SIZE


def test_what_is_held_anyway_is_not_brought_back(device):
    device(1 << 40)
    cache = TensorCache(8 * SIZE)
    given = tensors(30)
    slots = [cache.put(one) for one in given]
    away = _away(slots)
    held = [cache.kept(given[number]) for number in (*sorted(set(range(30)) - away)[-2:], min(away), max(away))]
    for one in held:
        slot = cache.slot_of(given[int(one[0])])
        assert slot.get(one.device).data_ptr() == one.data_ptr()
    assert cache.on_device <= 6 * SIZE
    more = [cache.put(one + 30) for one in tensors(60)]
    assert _away(slots).isdisjoint(int(one[0]) for one in held)
    assert cache.on_device + cache.in_memory == (30 + len(more)) * SIZE


def test_only_what_a_run_looks_at_is_brought_back(pair, device, brought, monkeypatch):
    device(1 << 40)
    seen, runs, numbers = brought[0], [], []
    play = search.play

    def counted(side, modules, trace, names, options, within=None):
        before = len(seen)
        found = play(side, modules, trace, names, options, within)
        runs.append((options.judge, options.force, len(modules), len(seen) - before))
        numbers.append(seen[before:])
        return found

    monkeypatch.setattr(search, "play", counted)
    find_fault(pair[0], pair[1], pair[2], budget="128KiB")
    judged = [count for judge, _, _, count in runs if judge]
    closer = [count for judge, force, _, count in runs if force and not judge]
    whole, rest = judged[0], judged[2]
    # Those of the free run, on moved inputs, forced, moved and free, put back; what is right in the free run is not
    # looked at after the second.
    assert judged == [whole, whole, rest, rest, rest], runs
    assert rest <= whole / 2, runs
    assert min(map(min, numbers[2:5])) >= 15, "five values of a block, and the fault is in the fourth"
    assert len(closer) == 2, runs
    # The children of the model and of the culprit's caller, of 25 modules: 6 + 3, and what they are given.
    assert max(closer) <= whole / 2, runs
    runs.clear()
    find_fault(pair[0], copy.deepcopy(pair[0]), pair[2], budget="128KiB")
    assert [count for judge, _, _, count in runs if not judge] == [0], runs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    reference = nn.Sequential(*(Block() for _ in range(6))).requires_grad_(False)
    candidate = copy.deepcopy(reference)
    candidate[3].up.weight[5] *= -1
    return reference, candidate, (torch.randn(32, 64),)


def test_the_answer_is_the_same_with_a_small_share_of_the_device(pair, device, brought):
    plain = find_fault(*pair)
    device(1 << 40)
    held = find_fault(*pair, budget="64KiB")
    assert held.memory["disk"] == 0
    assert held.memory["device"] <= 64 << 10
    assert held.memory["memory"] > 100 << 10
    assert brought[1][0] <= 16 << 10 <= SIZE * len(brought[0])
    assert (held.verdict, held.site, held.cause) == ("fault", "3.up", "weights")
    assert (held.local, held.floor, held.ratio, held.total, held.explained) == (
        plain.local,
        plain.floor,
        plain.ratio,
        plain.total,
        plain.explained,
    )
    assert held.forwards == plain.forwards
    assert str(held) == str(plain)


def test_each_run_finds_there_what_it_asks_for(pair, device, monkeypatch):
    asked, late = [], []
    here = Prefetch.here

    def counted(self, number):
        asked.append(number)
        if number not in self._back:
            late.append(number)
        return here(self, number)

    monkeypatch.setattr(Prefetch, "here", counted)
    device(1 << 40)
    find_fault(*pair, budget="128KiB")
    assert len(late) < len(asked) / 4, (len(late), len(asked))


def test_half_of_what_is_free_is_taken_where_no_budget_is_given(pair, device):
    device(1 << 18)
    held = find_fault(*pair)
    assert held.memory["device"] <= 1 << 17
    assert held.memory["disk"] == 0


class Head(nn.Module):
    """A model whose output is larger than all else."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4096)

    def forward(self, x):
        return self.head(self.body(x))


def test_one_output_at_a_time_is_held_beside_the_trace(monkeypatch):
    torch.manual_seed(0)
    reference = Head().requires_grad_(False)
    candidate = copy.deepcopy(reference)
    candidate.body.weight[2] *= -1
    seen, most = [], []
    run = ModelRunner.run

    def noting(self, *args, **kwargs):
        most.append(sum(one() is not None for one in seen))
        output = run(self, *args, **kwargs)
        seen.append(weakref.ref(output))
        return output

    monkeypatch.setattr(ModelRunner, "run", noting)
    found = find_fault(reference, candidate, (torch.randn(8, 16),))
    assert found.verdict == "fault"
    assert max(most) <= 1, most


def test_the_device_is_asked_what_is_free_once_for_a_sixteenth_of_the_room(monkeypatch):
    asked = []
    monkeypatch.setattr(TensorCache, "_has_room", staticmethod(lambda tensor: True))
    monkeypatch.setattr(tensor_cache, "_free", lambda device: asked.append(device) or 256 * SIZE)
    monkeypatch.setattr(tensor_cache, "ASKED_AGAIN", 0)
    monkeypatch.setattr(tensor_cache, "WINDOW", 0)
    cache, kept = TensorCache(None), tensors(64)
    for one in kept:
        cache.put(one)
    assert cache.on_device == 64 * SIZE
    assert len(asked) == 8, (
        "after 0, 8, 16, 24, … tensors: a sixteenth of 128 and, as what is free stays the same, more"
    )


def test_what_torch_keeps_without_use_is_free(monkeypatch):
    held = {"reserved_bytes": {"all": {"current": 70}}, "allocated_bytes": {"all": {"current": 40}}}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 500))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: held)
    assert tensor_cache._free(torch.device("cuda")) == 130
