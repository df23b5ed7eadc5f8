"""A cache that every layer is handed is recorded once, and again where it was written into."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.module_tap import ALREADY_RECORDED
from layertap.messages import tr
from models import gpt2

transformers = pytest.importorskip("transformers")

X = torch.ones(1, 3)
LAYERS = 4


class Cache:
    def __init__(self, kind):
        self.kind = kind
        self.held = [torch.zeros(1, 3) for _ in range(LAYERS)]
        if kind == "tuples":
            self.held = [(tensor, tensor.clone()) for tensor in self.held]


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x, mask, cache):
        if isinstance(cache, Cache):
            if cache.kind == "new":
                cache.held[self.index] = torch.cat([cache.held[self.index], x])
            else:
                cache.held[self.index].add_(x)
        return x + mask


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, range(LAYERS)))

    def forward(self, x, cache):
        mask = torch.ones(1, 3)
        for layer in self.layers:
            x = layer(x, mask, cache)
        return x


def record(cache, calls=3, level="stats", inference=False):
    model = Decoder()
    with lt.record(model, sites="layers.*", what="input", keep=level) as rec, torch.inference_mode(inference):
        for _ in range(calls):
            model(X, cache)
    return rec


def test_a_cache_is_recorded_once_and_what_changed_again():
    for kind, inference in (("new", False), ("in place", False), ("in place", True)):
        with torch.inference_mode(inference):
            cache = Cache(kind)
        rec = record(cache, inference=inference)
        of_cache = [record for record in rec.run.records() if record.asked and "held" in record.site.leaf]
        # Call 0: all of it at the first layer, then what the layer before has changed; later what has changed since.
        assert len(of_cache) == LAYERS + (LAYERS - 1) + 2 * LAYERS, kind
        direct = [record for record in rec.run.records() if record.asked and record.site.leaf in ("0", "1")]
        assert len(direct) == 3 * LAYERS * 2, "what a call is given itself is always there"
        assert sum(site.skipped[tr(ALREADY_RECORDED)] for site in rec.receipt.sites) == 3 * LAYERS * LAYERS - len(
            of_cache
        )


def test_what_is_recorded_is_what_the_layer_was_given():
    rec = record(Cache("in place"), calls=2, level="tensor")
    assert rec.run["layers.1:input.2.held.0@1"].tensor()[0, 0] == 2, "the layer before has written once more"
    assert "layers.1:input.2.held.2@1" not in rec.run.sites


def test_tuples_of_tuples():
    legacy = tuple((torch.zeros(1, 3), torch.ones(1, 3)) for _ in range(LAYERS))
    rec = record(legacy, calls=2)
    of_cache = [record for record in rec.run.records() if record.asked and record.site.leaf.startswith("2.")]
    assert len(of_cache) == 2 * LAYERS


def test_each_step_stands_for_itself():
    model, cache = Decoder(), Cache("in place")
    with lt.record(model, sites="layers.0", what="input") as rec:
        for _ in range(2):
            model(X, cache)
            rec.step()
    for index in range(LAYERS):
        assert rec.run[f"layers.0:input.2.held.{index}"].steps == (0, 1)


def test_generation_is_linear_in_the_layers():
    def count(layers, kind):
        model, inputs = gpt2(layers=layers)
        ids = inputs["input_ids"][:1]
        how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        if kind == "static":
            length = ids.shape[1] + 6
            how["past_key_values"] = transformers.StaticCache(config=model.config, max_cache_len=length)
        with lt.record(model, sites="**", what="input") as rec:
            model.generate(ids, **how)
        found = [
            record for record in rec.run.records() if record.asked and record.site.leaf.endswith((".keys", ".values"))
        ]
        return len(found)

    for kind in ("dynamic", "static"):
        few, many = count(2, kind), count(6, kind)
        assert few >= 20
        assert many < 3.5 * few, (kind, few, many)
