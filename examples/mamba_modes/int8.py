"""INT8 arithmetic in plain PyTorch: whole numbers times one scale per tensor, multiplied and added as whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST = 127


def quantise(values: Tensor, scale: Tensor) -> Tensor:
    """The nearest of 256 multiples of the scale, as int8; what is beyond is clipped."""
    return (values / scale).round().clamp(-MOST - 1, MOST).to(torch.int8)


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.float() * scale


def scale_of(values: Tensor) -> Tensor:
    """The scale by which the largest magnitude just fits."""
    return values.abs().amax().clamp_min(1e-8) / MOST


class Quantiser(nn.Module):
    """One static scale, or with `dynamic` the scale of each tensor as it comes."""

    scale: Tensor

    def __init__(self, scale: float, dynamic: bool = False) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.dynamic = dynamic

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        scale = scale_of(values) if self.dynamic else self.scale
        return quantise(values, scale), scale


class Int8Linear(nn.Module):
    """Weights and activations in int8, sums in int32."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.bias = bias
        self.quantiser = Quantiser(scale)

    def forward(self, values: Tensor) -> Tensor:
        codes, scale = self.quantiser.forward(values)
        sums = torch._int_mm(codes.reshape(-1, codes.shape[-1]), self.weight.T)
        found = (sums.float() * (scale * self.weight_scale)).reshape(*values.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


class Int8Conv(nn.Module):
    """The causal convolution in int8 with sums in int32; its output is int8 again, with a scale of its own."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(
        self, weight: Tensor, weight_scale: Tensor, bias: Tensor, scale: float, out_scale: float, dynamic: bool
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.bias = bias
        self.quantiser = Quantiser(scale, dynamic)
        self.out = Quantiser(out_scale, dynamic)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [rows, channels, positions], and their scale."""
        codes, scale = self.quantiser.forward(values)
        width = self.weight.shape[-1]
        windows = nn.functional.pad(codes, (width - 1, 0)).unfold(-1, width, 1)
        sums = (windows.int() * self.weight.int()[None, :, None]).sum(-1)
        found = nn.functional.silu(sums.float() * (scale * self.weight_scale) + self.bias[:, None])
        return self.out.forward(found)


class Conv(nn.Module):
    """The same convolution in float32; its output has no scale."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, values: Tensor) -> tuple[Tensor, None]:
        channels, width = self.weight.shape
        padded = nn.functional.pad(values, (width - 1, 0))
        found = nn.functional.conv1d(padded, self.weight[:, None], self.bias, groups=channels)
        return nn.functional.silu(found), None
