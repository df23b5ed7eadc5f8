"""The model in the mode that the environment asks for: `make` is what the sweep calls."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from mixer import Int8Mixer, Mixer, Settings
from prepare import config
from safetensors.torch import load_file
from torch import nn
from transformers import MambaForCausalLM


def make(pretrained_dir: str = "checkpoints") -> nn.Module:
    """From the checkpoint fp32 or w8a8 under `pretrained_dir`; a relative path begins beside this file."""
    return build(Path(__file__).parent / pretrained_dir, Settings.of(os.environ))


def build(folder: Path, how: Settings) -> nn.Module:
    """Reads only the checkpoint that the settings name."""
    if how.model not in ("fp32", "w8a8"):
        raise ValueError(f"MAMBA_MODEL={how.model}: expected fp32 or w8a8")
    path = folder / how.model
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not there; make it with: python prepare.py {folder}")
    tensors = load_file(path / "model.safetensors")
    model = MambaForCausalLM(config())
    if how.model == "fp32":
        model.load_state_dict(tensors)
        for block in model.backbone.layers:
            block.mixer = Mixer(block.mixer)
        return model.eval()
    found = model.load_state_dict(
        {name: one for name, one in tensors.items() if not name.startswith("layers.")}, strict=False
    )
    assert all(".mixer." in name for name in found.missing_keys), found.missing_keys
    scales = json.loads((path / "scales.json").read_text(encoding="utf-8"))
    for layer, block in enumerate(model.backbone.layers):
        prefix = f"layers.{layer}."
        own = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
        with torch.no_grad():
            block.mixer.dt_proj.bias.copy_(own["dt_proj.bias"])
        block.mixer = Int8Mixer(block.mixer, own, scales[str(layer)], how)
    return model.eval()
