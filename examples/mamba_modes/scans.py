"""The selective scan: in float32, in int8 as a kernel does it, and in int8 step by step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from int8 import Quantiser, dequantise
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

OPERANDS = ("u", "dt", "B", "C")


class Scan(nn.Module):
    """Float32 throughout. `u` and `dt` are [rows, channels, positions], `B` and `C` [rows, positions, states]."""

    def __init__(self, A: Tensor, D: Tensor) -> None:
        super().__init__()
        self.A, self.D = nn.Parameter(A), nn.Parameter(D)

    def forward(self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> Tensor:
        found: Tensor = mamba_selective_scan(u, dt, self.A, B.transpose(1, 2), C.transpose(1, 2), D=self.D)
        return found


class Int8Scan(nn.Module):
    """Every operand in int8 with a scale of its own; the state, as in the real kernels, in float32."""

    A: Tensor
    A_scale: Tensor

    def __init__(
        self, A: Tensor, A_scale: Tensor, D: Tensor, scales: Mapping[str, float], *, kernel: bool, dynamic: bool
    ) -> None:
        super().__init__()
        self.register_buffer("A", A)
        self.register_buffer("A_scale", A_scale)
        self.D = nn.Parameter(D)
        self.kernel = kernel
        self.quantisers = nn.ModuleDict({name: Quantiser(scales[name], dynamic) for name in OPERANDS})

    def forward(self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, *, scale: Tensor) -> Tensor:
        """`u` is int8 already, with its scale."""
        dt, B, C = (
            dequantise(*self.quantisers[name].forward(values)) for name, values in (("dt", dt), ("B", B), ("C", C))
        )
        A, u = dequantise(self.A, self.A_scale), dequantise(u, scale)
        if self.kernel:
            found: Tensor = mamba_selective_scan(u, dt, A, B.transpose(1, 2), C.transpose(1, 2), D=self.D)
            return found
        return scan_by_steps(u, dt, A, B, C, self.D)


def scan_by_steps(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """One position after the other, as the recurrence is written down."""
    state = u.new_zeros(*u.shape[:2], A.shape[-1])
    found = []
    for place in range(u.shape[-1]):
        step = dt[..., place, None]
        state = torch.exp(step * A) * state + (step * u[..., place, None]) * B[:, None, place]
        found.append((state * C[:, None, place]).sum(-1) + D * u[..., place])
    return torch.stack(found, dim=-1)
