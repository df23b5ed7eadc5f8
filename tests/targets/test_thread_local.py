"""A list that `forward` fills, beside taps, on one traced model: the list is stale, the taps are right (trap of B)."""

import threading

import pytest
import torch
from torch import nn

import layertap as lt
from targets.artefacts import quiet

_storage = threading.local()


def get_layer_hidden_states():
    """As the guide has it: whatever a forward pass of Python's has left behind."""
    return getattr(_storage, "layer_hidden_states", None)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(32, 8)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids)
        layer_hidden_states = [hidden_states.clone()]
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states)
            layer_hidden_states.append(hidden_states.clone())
        _storage.layer_hidden_states = layer_hidden_states
        return hidden_states


@pytest.fixture
def traced(tmp_path):
    """The model, compiled on one input, saved and loaded; and the other input that it is to be asked about."""
    torch.manual_seed(0)
    model = Model().eval()
    compiled_on, asked_about = torch.arange(5)[None], torch.arange(20, 25)[None]
    with quiet():
        compiled = torch.jit.trace(model, compiled_on)
        compiled.save(tmp_path / "model.pt")
        loaded = torch.jit.load(tmp_path / "model.pt")
    return model, compiled, loaded, tmp_path / "model.pt", compiled_on, asked_about


def states(model, input_ids):
    with torch.inference_mode():
        x = model.embed_tokens(input_ids)
        found = [x]
        for layer in model.layers:
            x = layer(x)
            found.append(x)
    return found


def test_the_list_holds_what_was_traced_and_not_what_ran(traced):
    model, compiled, loaded, _, compiled_on, asked_about = traced
    right = states(model, asked_about)
    for run in (compiled, loaded):
        assert torch.equal(run(asked_about), right[-1]), "the model's own output is right"
        listed = get_layer_hidden_states()
        assert all(torch.equal(a, b) for a, b in zip(listed, states(model, compiled_on), strict=True)), "of the trace"
        assert not any(torch.equal(a, b) for a, b in zip(listed, right, strict=True)), "stale, every one"


def test_the_list_is_absent_where_the_model_was_only_loaded(traced):
    found = []

    def elsewhere():
        traced[2](traced[5])
        found.append(get_layer_hidden_states())

    thread = threading.Thread(target=elsewhere)  # as good as another process: nothing was traced here
    thread.start()
    thread.join()
    assert found == [None]


def test_taps_of_the_same_file_are_right(traced):
    model, _, _, path, _, asked_about = traced
    target = lt.open_target(path)
    with lt.record(target, sites=["embed_tokens", "layers.*"], keep="tensor") as rec:
        target.run((asked_about,))
    for site, expected in zip(rec.run.sites, states(model, asked_about), strict=True):
        assert torch.equal(rec.run[site].tensor(), expected), site


def test_baked_taps_of_the_same_model_are_right(traced, tmp_path):
    model, _, _, _, compiled_on, asked_about = traced
    tapped = lt.bake(model, sites=["embed_tokens", "layers.*"])
    with quiet():
        torch.jit.trace(tapped, compiled_on).save(tmp_path / "tapped.pt")
        loaded = torch.jit.load(tmp_path / "tapped.pt")
    _, taps = tapped.split(loaded(asked_about))
    for tensor, expected in zip(taps.values(), states(model, asked_about), strict=True):
        assert torch.equal(tensor, expected)
