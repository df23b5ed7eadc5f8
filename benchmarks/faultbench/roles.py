"""What each module of a model is, so that a kind of fault finds the places where it can happen."""

from __future__ import annotations

from torch import nn

LAYERS = ("layers.", "h.", "block.", "blocks.")


def roles(model: nn.Module) -> dict[str, list[str]]:
    """Role → module paths, in `named_modules()` order; inside the layers, with few exceptions."""
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        for role in _roles_of(path, module):
            found.setdefault(role, []).append(path)
    return found


def _roles_of(path: str, module: nn.Module) -> list[str]:
    name = type(module).__name__
    if name.endswith("RotaryEmbedding"):
        return ["rotary"]
    if name == "GPT2Model":
        return ["counted"]
    if not any(part in path for part in LAYERS):
        return []
    # transformers' Mamba reads these modules' weights and never calls them.
    if path.endswith((".conv1d", ".dt_proj", ".mixer.act")):
        return ["uncalled"] if hasattr(module, "weight") else []
    if isinstance(module, nn.Linear | nn.Conv2d) or name == "Conv1D":
        return _linear(module)
    if "Norm" in name:
        return ["norm", "pointwise"] + (["batchnorm"] if isinstance(module, nn.BatchNorm2d) else [])
    if "ReLU" in name or "GELU" in name or "SiLU" in name or name == "Tanh":
        return ["act", "pointwise"]
    if name.endswith("Attention") and "Layer" not in name:
        grouped = getattr(module, "num_key_value_groups", 1) > 1
        return ["attention"] + (["grouped"] if grouped else []) + (["causal"] if _causal(module) else [])
    if name.endswith(("MLP", "SparseMoeBlock", "DenseActDense")):
        return ["mlp"]
    if name.endswith(("DecoderLayer", "ViTLayer", "GPT2Block", "MambaBlock", "CnnBlock", "T5LayerFF")):
        return ["block"] + (["prenorm"] if hasattr(module, "input_layernorm") else [])
    return {"MambaMixer": ["mixer"], "MiniMaxM2TopKRouter": ["router"], "MiniMaxM2Experts": ["experts"]}.get(name, [])


def _linear(module: nn.Module) -> list[str]:
    weight = module.weight
    found = ["linear"]
    if weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
        found.append("square")
    if getattr(module, "bias", None) is not None:
        found.append("biased")
    if isinstance(module, nn.Conv2d):
        found.append("conv")
    return found


def _causal(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", False)) and "T5" not in type(module).__name__
