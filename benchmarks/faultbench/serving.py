"""Decoding step by step with a KV cache, and what goes wrong with it."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faultbench.families import Built, build
from benchmarks.faultbench.faults import Around, rewrite
from torch import nn


class Decoder(nn.Module):
    """Prefill, then one token at a time: the logits of every step, side by side."""

    def __init__(self, lm: nn.Module, prefill: int) -> None:
        super().__init__()
        self.lm = lm
        self.prefill = prefill

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output = self.lm(input_ids[:, : self.prefill], use_cache=True)
        logits, cache = [output.logits], output.past_key_values
        for at in range(self.prefill, input_ids.shape[1]):
            positions = torch.full((len(input_ids), 1), self.position(at))
            output = self.lm(input_ids[:, at : at + 1], past_key_values=cache, position_ids=positions, use_cache=True)
            logits.append(output.logits)
        return torch.cat(logits, 1)

    def position(self, at: int) -> int:
        return at


class Serving(nn.Module):
    """Holds the decoder, so that the decoder has a path to be named by."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(input_ids)


def build_serving(family: str, *, layers: int = 2, seed: int = 0) -> Built:
    model, inputs = build(family, layers=layers, seed=seed, tokens=6)
    return Serving(Decoder(model, prefill=4)).eval(), inputs


def build_padded(family: str, *, seed: int = 0) -> Built:
    """A batch whose first sample is padded on the left, as generation does it."""
    model, inputs = build(family, seed=seed)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, :4] = 0
    return model, {**inputs, "attention_mask": mask}


def stale_cache(model: nn.Module, path: str) -> None:
    """In every decoding step this layer's cached keys have moved by one slot."""

    def around(self: Any, forward: Around, *args: Any, **kwargs: Any) -> Any:
        layer = _layer(self, kwargs)
        if layer is not None:
            layer.keys = layer.keys.roll(1, -2)
        return forward(*args, **kwargs)

    rewrite(model.get_submodule(path), around)


def lost_slot(model: nn.Module, path: str) -> None:
    """The newest cached value of this layer was never written."""

    def around(self: Any, forward: Around, *args: Any, **kwargs: Any) -> Any:
        layer = _layer(self, kwargs)
        if layer is not None:
            layer.values = layer.values.clone()
            layer.values[:, :, -1] = 0
        return forward(*args, **kwargs)

    rewrite(model.get_submodule(path), around)


class LateDecoder(Decoder):
    """Counts the position of a decoding step one too low."""

    def position(self, at: int) -> int:
        return at - 1


def late_positions(model: nn.Module) -> None:
    model.get_submodule("decoder").__class__ = LateDecoder


def _layer(attention: Any, kwargs: dict[str, Any]) -> Any:
    cache = kwargs.get("past_key_values")
    if cache is None or cache.get_seq_length(attention.layer_idx) == 0:
        return None
    return cache.layers[attention.layer_idx]
