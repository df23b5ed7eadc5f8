"""Weights quantised in the ways in use, everywhere or in one module: grids with scales, small floats, code books."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.faultbench.roles import roles
from torch import nn

NF4 = torch.tensor(
    [
        *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
        *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0),
    ]
)


def int_groups(weight: torch.Tensor, bits: int = 4, group: int = 16) -> torch.Tensor:
    """A scale and a zero point for every few inputs."""
    parts = weight.reshape(-1, group)
    low, high = parts.amin(1, keepdim=True), parts.amax(1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp_min(1e-8)
    return ((parts - low) / scale).round().mul(scale).add((low / scale).round() * scale).view_as(weight)


def int_rows(weight: torch.Tensor, bits: int = 8) -> torch.Tensor:
    """One scale a row."""
    scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


def int_tensor(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().max() / 127
    return (weight / scale).round() * scale


def fp8_blocks(weight: torch.Tensor, block: int = 16) -> torch.Tensor:
    """Eight-bit floats, a scale for every square of the matrix."""
    rows, columns = weight.shape
    scale = torch.empty_like(weight)
    for i in range(0, rows, block):
        for j in range(0, columns, block):
            scale[i : i + block, j : j + block] = weight[i : i + block, j : j + block].abs().max() / 448
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def nf4(weight: torch.Tensor, block: int = 64) -> torch.Tensor:
    """Sixteen levels that lie as a normal distribution does."""
    parts = weight.reshape(-1, block)
    scale = parts.abs().amax(1, keepdim=True)
    index = (parts[..., None] / scale[..., None] - NF4).abs().argmin(-1)
    return (NF4[index] * scale).view_as(weight)


SCHEMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int4-groups": int_groups,
    "int8-rows": int_rows,
    "int8-tensor": int_tensor,
    "fp8-blocks": fp8_blocks,
    "nf4": nf4,
}


class Packed4(nn.Module):
    """A linear layer whose weights are two to a byte, with scales beside them."""

    def __init__(self, linear: nn.Linear, group: int = 16) -> None:
        super().__init__()
        self.in_features, self.out_features, self.group = linear.in_features, linear.out_features, group
        parts = linear.weight.detach().reshape(-1, group)
        scale = parts.abs().amax(1, keepdim=True) / 7
        codes = ((parts / scale).round() + 8).to(torch.uint8).flatten()
        self.register_buffer("qweight", codes[0::2] | codes[1::2] << 4)
        self.register_buffer("scales", scale.flatten())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([self.qweight & 15, self.qweight >> 4], -1).flatten().float() - 8
        weight = codes.view(-1, self.group) * self.scales.float()[:, None]
        return nn.functional.linear(x, weight.view(self.out_features, self.in_features).to(x.dtype), self.bias)


def linears(model: nn.Module) -> list[str]:
    return [path for path in roles(model)["linear"] if isinstance(model.get_submodule(path), nn.Linear)]


def everywhere(scheme: str) -> Callable[[nn.Module], None]:
    @torch.no_grad()
    def plant(model: nn.Module) -> None:
        for path in linears(model):
            weight = model.get_submodule(path).weight
            weight.copy_(SCHEMES[scheme](weight.clone()))

    return plant


def packed(model: nn.Module) -> None:
    for path in linears(model):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, Packed4(model.get_submodule(path)))


@torch.no_grad()
def adapters(model: nn.Module, seed: int = 0) -> None:
    """A low-rank update in every linear layer, as a trained adapter that is merged."""
    for number, path in enumerate(linears(model)):
        weight = model.get_submodule(path).weight
        generator = torch.Generator().manual_seed(seed + number)
        low, high = (torch.randn(n, 4, generator=generator) for n in weight.shape)
        update = low @ high.T
        weight.add_(update * (0.45 * weight.norm() / update.norm()))
