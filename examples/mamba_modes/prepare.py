"""A tiny Mamba trained for some seconds, and its INT8 checkpoint: weights, and the static scales of every tensor.

    python prepare.py FOLDER [STEPS]

writes FOLDER/fp32/model.safetensors, FOLDER/w8a8/{model.safetensors, scales.json}, and FOLDER/sample.npz: what the
modes are run on.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from int8 import MOST, quantise, scale_of
from mixer import Mixer
from safetensors.torch import save_file
from sentences import VOCABULARY, sentences
from torch import Tensor, nn
from transformers import MambaConfig, MambaForCausalLM

LAYERS = 4
LENGTH = 512
QUANTILE = 0.9999
"""Of the magnitudes seen in calibration: what is larger is clipped."""


def config() -> MambaConfig:
    return MambaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=LAYERS, state_size=8, use_cache=False, pad_token_id=0
    )


def trained(steps: int) -> MambaForCausalLM:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = MambaForCausalLM(config())
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        ids = sentences(16, 24, seed=step)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return model.eval()


def calibrated(model: MambaForCausalLM) -> dict[str, dict[str, float]]:
    """Layer → name of a tensor → the scale that fits what the float model had there on some sentences."""
    largest: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def see(layer: int, name: str, values: Tensor) -> None:
        magnitude = float(values.abs().float().flatten().quantile(QUANTILE))
        largest[layer][name] = max(largest[layer][name], magnitude)

    blocks = model.backbone.layers
    sources = [block.mixer for block in blocks]
    for layer, block in enumerate(blocks):
        block.mixer = Mixer(block.mixer)
        block.mixer.watch = partial(see, layer)
    with torch.no_grad():
        model(sentences(8, 64, seed=10_000))
    for block, source in zip(blocks, sources, strict=True):
        block.mixer = source
    return {str(layer): {name: value / MOST for name, value in found.items()} for layer, found in largest.items()}


def int8_weights(model: MambaForCausalLM) -> dict[str, Tensor]:
    """Every matrix of the mixers as int8 with its scale; the rest as it is."""
    kept = {name: tensor for name, tensor in model.state_dict().items() if ".mixer." not in name}
    for layer, block in enumerate(model.backbone.layers):
        source: Any = block.mixer
        parts: dict[str, Tensor] = {
            **{f"{name}.weight": getattr(source, name).weight for name in ("in_proj", "x_proj", "dt_proj", "out_proj")},
            "conv.weight": source.conv1d.weight[:, 0],
            "A": -torch.exp(source.A_log),
        }
        for name, values in parts.items():
            scale = scale_of(values.detach())
            kept[f"layers.{layer}.{name}"] = quantise(values.detach(), scale)
            kept[f"layers.{layer}.{name.removesuffix('.weight')}{_suffix(name)}"] = scale
        kept[f"layers.{layer}.conv.bias"] = source.conv1d.bias
        kept[f"layers.{layer}.dt_proj.bias"] = source.dt_proj.bias
        kept[f"layers.{layer}.D"] = source.D
    return kept


def _suffix(name: str) -> str:
    return ".weight_scale" if name.endswith(".weight") else "_scale"


def prepare(folder: Path, steps: int = 150) -> nn.Module:
    """Writes both checkpoints and the sample; returns the float model."""
    model = trained(steps)
    for name, tensors in (("fp32", model.state_dict()), ("w8a8", int8_weights(model))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        save_file(
            {key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()},
            folder / name / "model.safetensors",
        )
    np.savez(folder / "sample.npz", input_ids=sentences(1, LENGTH, seed=20_000).numpy())
    (folder / "w8a8/scales.json").write_text(json.dumps(calibrated(model), indent=1), encoding="utf-8")
    return model


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
