"""Faults in weights: wrong, missing, transposed, permuted, stale, scaled, truncated, flipped, badly quantised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.faultbench.faults import LISTED, Plant, fault
from torch import nn


def _weight(change: Callable[[torch.Tensor, float, torch.Generator], torch.Tensor], name: str = "weight") -> Plant:
    @torch.no_grad()
    def plant(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
        weight = model.get_submodule(path).get_parameter(name)
        weight.copy_(change(weight.clone(), size, generator))

    return plant


def _noise(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(weight.shape, generator=generator) * weight.std()


def _permuted(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    return weight[torch.randperm(len(weight), generator=generator)]


def _truncated(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    weight[len(weight) - max(1, int(size * len(weight))) :] = 0
    return weight


def _bit_flip(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """One exponent bit of one element, the highest that leaves a number below 1000: large, and finite in fp16."""
    bits = weight.flatten().view(torch.int32)
    for bit in range(29, 22, -1):
        flipped = (bits | (1 << bit)).view(torch.float32)
        usable = ((bits & (1 << bit)) == 0) & (flipped.abs() < 1000)
        if usable.any():
            choices = usable.nonzero()[:, 0]
            index = choices[torch.randint(len(choices), (1,), generator=generator)]
            bits[index] = flipped[index].view(torch.int32)
            break
    return bits.view(torch.float32).view(weight.shape)


def _saturated(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """int8 with a scale that is too small: the large weights are cut off."""
    scale = weight.abs().max() * size / 127
    return (weight / scale).round().clamp(-128, 127) * scale


def _wrong_axis(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Quantised with one scale a row, and multiplied by the scales of the columns."""
    matrix = weight.flatten(1)
    rows, columns = matrix.abs().amax(1) / 127, matrix.abs().amax(0) / 127
    codes = (matrix / rows[:, None]).round()
    wrong = columns.repeat(-(-len(rows) // len(columns)))[: len(rows)] if len(rows) != len(columns) else columns
    return (codes * wrong[:, None]).view(weight.shape)


def _one_scale(weight: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """One output channel has the wrong scale."""
    weight[len(weight) // 3] *= 1 + size
    return weight


def _stale(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The same parameter of another layer: an off-by-one in a loading loop."""
    module = model.get_submodule(path)
    tail = path.rpartition(".")[2]
    others = [
        other
        for name, other in model.named_modules()
        if name != path and name.rpartition(".")[2] == tail and type(other) is type(module)
    ]
    others = [other for other in others if other.weight.shape == module.weight.shape]
    with torch.no_grad():
        module.weight.copy_(others[int(torch.randint(len(others), (1,), generator=generator))].weight)


def _dead_expert(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        model.get_submodule(path).down_proj[1] = 0


def _stale_expert(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    experts = model.get_submodule(path)
    with torch.no_grad():
        experts.gate_up_proj[2] = experts.gate_up_proj[0]


def _missing_statistics(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The running statistics were not in the checkpoint."""
    model.get_submodule(path).reset_running_stats()


FAULTS = [
    fault("weight-wrong", "linear", "weights", _weight(lambda w, s, g: w + s * _noise(w, g)), sizes=(0.003, 1.0)),
    fault("weight-missing", "linear", "weights", _weight(lambda w, s, g: _noise(w, g))),
    fault("weight-transposed", "square", "weights transpose", _weight(lambda w, s, g: w.T)),
    fault("weight-permuted", "linear", "weights permutation", _weight(_permuted)),
    fault("weight-stale", "linear", "weights", _stale),
    fault("weight-scaled", "linear", "weights scale", _weight(lambda w, s, g: w * (1 + s)), sizes=(0.003, 1.0)),
    fault("weight-truncated", "linear", "weights mask", _weight(_truncated), size=0.25, sizes=(0.03, 0.5)),
    fault("bit-flip", "linear", "weights", _weight(_bit_flip)),
    fault("norm-wrong", "norm", "weights", _weight(lambda w, s, g: w + s * _noise(w, g)), sizes=(0.03, 1.0)),
    fault("norm-missing", "norm", "weights", _weight(lambda w, s, g: torch.ones_like(w))),
    fault(
        "quant-saturated", "linear", "weights quantization clipping", _weight(_saturated), size=0.4, sizes=(0.2, 0.7)
    ),
    fault("quant-wrong-axis", "linear", "weights quantization scale", _weight(_wrong_axis)),
    fault("quant-one-scale", LISTED, "weights scale mask", _weight(_one_scale), size=0.5, sizes=(0.2, 1.0)),
    fault("router-permuted", "router", "weights permutation", _weight(_permuted)),
    fault("expert-dead", "experts", "weights mask", _dead_expert),
    fault("expert-stale", "experts", "weights", _stale_expert),
    fault("statistics-missing", "batchnorm", "weights", _missing_statistics),
    fault("state-matrix-wrong", "mixer", "weights", _weight(lambda w, s, g: w + s * _noise(w, g), "A_log")),
    fault("skip-missing", "mixer", "weights", _weight(lambda w, s, g: torch.zeros_like(w), "D")),
    fault(
        "uncalled-wrong", "uncalled", "weights", _weight(lambda w, s, g: w + s * _noise(w, g)), size=1.0, parent=True
    ),
]
