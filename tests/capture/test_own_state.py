"""A cache that the model itself has filled is no input of anybody else's; one that was changed since is."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.contents import OwnState


class Cache:
    def __init__(self):
        self.layers = [{"keys": torch.zeros(1, 0, 4)}]


class Decoder(nn.Module):
    """Adds what it is given to a cache, and returns their sum."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x, cache=None):
        cache = Cache() if cache is None else cache
        (layer,) = cache.layers
        layer["keys"] = torch.cat([layer["keys"], x], 1)
        return self.inner(layer["keys"].sum(1)), cache


def tokens(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 1, 4, generator=generator) for _ in range(count)]


def decode(model, xs, rec, between=lambda cache: None):
    cache = None
    with torch.no_grad():
        for x in xs:
            between(cache)
            _, cache = model(x, cache=cache)
            rec.step()
    return cache


def leaves(rec, step):
    return sorted(record.site.leaf for record in rec.run.inputs if record.step == step)


def test_what_the_last_call_left_is_not_recorded_again():
    with lt.record(Decoder(), sites="inner") as rec:
        decode(Decoder(), [], rec)
        decode(rec.model, tokens(3), rec)
    assert [leaves(rec, step) for step in range(3)] == [["0"], ["0", "cache.#unchanged"], ["0", "cache.#unchanged"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.layers[0]["keys"].mul_(2),
        lambda cache: cache.layers[0].update(keys=cache.layers[0]["keys"].clone()),
        lambda cache: cache.layers[0].update(values=torch.ones(1)),
        lambda cache: cache.layers.append({"keys": torch.ones(1, 1, 4)}) or cache.layers.pop(0),
    ],
    ids=["written into", "replaced", "added", "exchanged"],
)
def test_what_was_changed_since_is_recorded(change):
    model = Decoder()
    with lt.record(model, sites="inner") as rec:
        decode(model, tokens(2), rec, lambda cache: cache is not None and change(cache))
    assert "cache.#unchanged" not in leaves(rec, 1)
    assert any(leaf.startswith("cache.layers.0") for leaf in leaves(rec, 1))


def test_a_cache_of_a_step_that_was_not_recorded_is_recorded():
    model = Decoder()
    with lt.record(model, sites="inner", schedule={"steps": [0, 2]}) as rec:
        decode(model, tokens(3), rec)
    assert leaves(rec, 2) == ["0", "cache.layers.0.keys"]


def test_under_inference_mode_nothing_shows_a_write_so_it_is_recorded():
    model = Decoder()
    with lt.record(model, sites="inner") as rec, torch.inference_mode():
        decode(model, tokens(2), rec)
    assert leaves(rec, 1) == ["0", "cache.layers.0.keys"]


def test_a_cache_that_was_asked_for_is_recorded():
    model = Decoder()
    with lt.record(model, sites="", what="input") as rec:
        decode(model, tokens(2), rec)
    assert "cache.layers.0.keys" in {record.site.leaf for record in rec.run.records() if record.step == 1}


def test_two_runs_are_compared_where_one_recorded_its_cache(tmp_path):
    model, xs = Decoder(), tokens(3)
    with lt.record(model, tmp_path / "a", sites="inner") as rec:
        decode(model, xs, rec)
    with lt.record(model, tmp_path / "b", sites="inner") as rec, torch.inference_mode():
        decode(model, xs, rec)
    for one, other, side in (("a", "b", "reference"), ("b", "a", "candidate")):
        report = lt.diff(tmp_path / one, tmp_path / other)
        assert report.verdict == "identical", str(report)
        assert f"`cache` is as the {side}'s own last call left it" in str(report)


def test_a_side_without_the_cache_is_not_given_the_same(tmp_path):
    model, xs = Decoder(), tokens(3)
    with lt.record(model, tmp_path / "a", sites="inner") as rec:
        decode(model, xs, rec)
    with lt.record(model, tmp_path / "b", sites="inner") as rec, torch.no_grad():
        for x in xs:
            model(x)
            rec.step()
    report = lt.diff(tmp_path / "a", tmp_path / "b")
    assert report.verdict == "inconclusive"
    assert "only the reference had `cache.#unchanged` as an input" in str(report)


def test_objects_are_not_kept_alive_and_odd_ones_are_never_unchanged():
    import gc
    import weakref

    class Slotted:
        __slots__ = ("keys",)

    own, cache, slotted = OwnState(), Cache(), Slotted()
    slotted.keys = torch.ones(1)
    own.left([cache, slotted, [torch.ones(1)], torch.ones(1), None, "text"])
    assert own.unchanged(cache)
    assert not any(map(own.unchanged, (slotted, None, "text", torch.ones(1))))
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
