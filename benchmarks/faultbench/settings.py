"""Faults in configuration: a number or a name that the port took from the wrong place."""

from __future__ import annotations

import torch
from benchmarks.faultbench.faults import LISTED, fault
from torch import nn


def _eps(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    module = model.get_submodule(path)
    name = "eps" if hasattr(module, "eps") else "variance_epsilon"
    setattr(module, name, size)


def _attention_scale(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    model.get_submodule(path).scaling *= 1 + size


def _theta(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """Another base of the rotary embedding: inv_freq = base^(-2i/d), so a power of the right one."""
    module = model.get_submodule(path)
    module.inv_freq = module.inv_freq ** (1 + size)
    module.original_inv_freq = module.inv_freq.clone()


def _activation(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    parent, _, name = path.rpartition(".")
    old = type(model.get_submodule(path)).__name__
    setattr(model.get_submodule(parent), name, nn.SiLU() if "GELU" in old else nn.GELU())


def _top_k(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    model.get_submodule(path).top_k -= 1


def _padding(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """Borders mirrored instead of filled with zeros."""
    module = model.get_submodule(path)
    module.padding_mode = "reflect"
    module._reversed_padding_repeated_twice = [1, 1, 1, 1]


def _everywhere(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """One number of the whole configuration: every norm of this kind has it."""
    kind = type(model.get_submodule(path))
    for other, module in model.named_modules():
        if type(module) is kind:
            _eps(model, other, size, generator)


FAULTS = [
    fault("eps", "norm", "config", _eps, size=1e-2, sizes=(1e-4, 1e-1)),
    fault("eps-everywhere", LISTED, "config", _everywhere, size=1e-1, sizes=(1e-3, 1e-1)),
    fault("attention-scaling", "attention", "config", _attention_scale, sizes=(0.01, 1.0)),
    fault("rope-theta", "rotary", "config weights", _theta, sizes=(0.01, 0.3)),
    fault("activation", "act", "config structure", _activation, parent=True),
    fault("router-top-k", "router", "config structure", _top_k),
    fault("padding-mode", "conv", "config", _padding),
]
