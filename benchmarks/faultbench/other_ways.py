"""Other ways to hold the weights of linear layers: quantised in further forms, merged, with adapters beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def exchange(model: nn.Module, change: Callable[[str, nn.Linear], nn.Module | None]) -> None:
    """Puts what `change` makes of each linear layer inside another module in its place."""
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "." in path:
            made = change(path, module)
            parent, _, name = path.rpartition(".")
            if made is not None:
                setattr(model.get_submodule(parent), name, made)


class CodeBook(nn.Module):
    """Sixteen levels for each row, where its quantiles are."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.register_buffer("table", torch.quantile(weight, torch.linspace(0, 1, 16), 1).T.contiguous())
        self.register_buffer("codes", (weight[..., None] - self.table[:, None]).abs().argmin(-1).to(torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.table.gather(1, self.codes.long()).to(x.dtype), self.bias)


class EightBits(nn.Module):
    """Weights and activations in eight bits, the latter with a scale for each token."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.scale = nn.Parameter(linear.weight.detach().abs().amax(1, keepdim=True) / 127)
        self.register_buffer("codes", (linear.weight.detach() / self.scale.detach()).round().to(torch.int8))
        self.times = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(-1, keepdim=True) / 127
        return F.linear((x / step).round(), self.codes.to(x.dtype)) * step * self.scale.T * self.times + self.bias


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.scaling = linear, 2.0
        self.lora_A = nn.Linear(linear.in_features, 4, bias=False)
        self.lora_B = nn.Linear(4, linear.out_features, bias=False)
        nn.init.normal_(self.lora_A.weight, std=0.1)
        nn.init.normal_(self.lora_B.weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))


class GateUp(nn.Module):
    """One projection makes gate and up."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        gate, up = mlp.gate_proj, mlp.up_proj
        self.gate_up_proj = nn.Linear(gate.in_features, 2 * gate.out_features, bias=False)
        self.gate_up_proj.weight.data = torch.cat([gate.weight, up.weight]).detach().clone()
        self.down_proj, self.act_fn, self.swapped = mlp.down_proj, mlp.act_fn, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        gate, up = (up, gate) if self.swapped else (gate, up)
        return self.down_proj(self.act_fn(gate) * up)


def code_books(model: nn.Module) -> None:
    exchange(model, lambda path, linear: CodeBook(linear))


def eight_bits(model: nn.Module) -> None:
    exchange(model, lambda path, linear: EightBits(linear))


def dynamic(model: nn.Module) -> None:
    """By torch's own dynamic quantisation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)


def adapt(model: nn.Module) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        exchange(model, lambda path, linear: Adapted(linear) if path.endswith(("q_proj", "v_proj")) else None)


def merge(model: nn.Module, wrong: str = "") -> None:
    """Adds the adapters to the weights; at `wrong` by half of what they are."""
    for path, module in list(model.named_modules()):
        if isinstance(module, Adapted):
            parent, _, name = path.rpartition(".")
            with torch.no_grad():
                by = module.scaling * (0.5 if path == wrong else 1.0)
                module.base_layer.weight += by * module.lora_B.weight @ module.lora_A.weight
            setattr(model.get_submodule(parent), name, module.base_layer)


def merge_gate_up(model: nn.Module) -> None:
    for layer in model.model.layers:
        layer.mlp = GateUp(layer.mlp)


def plain_linears(model: nn.Module, left: str = "") -> None:
    """GPT-2's convolutions of one token as linear layers; at `left` the weight is not transposed."""
    for path, module in list(model.named_modules()):
        if type(module).__name__ == "Conv1D":
            linear = nn.Linear(*module.weight.shape).eval()
            weight = module.weight.detach()
            linear.weight.data = (weight if path == left else weight.T).clone()
            linear.bias.data = module.bias.detach().clone()
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, linear)
