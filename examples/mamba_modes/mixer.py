"""Mamba's mixer with exchangeable parts: projections, convolution and scan, each in float32 or in int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from int8 import Conv, Int8Conv, Int8Linear, Quantiser, dequantise
from scans import Int8Scan, Scan
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a mode consists of."""

    model: str = "w8a8"
    """`fp32`, or `w8a8`: projections in int8."""
    conv: str = "int8"
    """`int8` or `fp32`."""
    scan: str = "kernel"
    """`kernel` or `torch`: in int8; `fp32`."""
    round_trip: bool = False
    """Whether the convolution's output is made float and int8 again before the scan."""
    dynamic: bool = False
    """Whether the convolution's and the scan's scales are those of each tensor as it comes."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Settings:
        """What the environment says."""
        found = cls(
            model=variables.get("MAMBA_MODEL", "w8a8"),
            conv=variables.get("MAMBA_CONV", "int8"),
            scan=variables.get("MAMBA_SCAN", "kernel"),
            round_trip=variables.get("MAMBA_ROUND_TRIP", "0") == "1",
            dynamic=variables.get("MAMBA_SCALES", "static") == "dynamic",
        )
        if found.conv == "fp32" and found.round_trip:
            raise ValueError("MAMBA_ROUND_TRIP=1 needs MAMBA_CONV=int8: in float32 there is nothing to make float")
        return found


class Mixer(nn.Module):
    """A mixer in float32, from transformers' own."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.rank, self.states = source.time_step_rank, source.ssm_state_size
        self.in_proj, self.x_proj, self.out_proj = source.in_proj, source.x_proj, source.out_proj
        self.dt_proj = source.dt_proj
        self.conv: nn.Module = Conv(source.conv1d.weight.detach()[:, 0], source.conv1d.bias.detach())
        self.scan: nn.Module = Scan(-torch.exp(source.A_log.detach().float()), source.D.detach().float())
        self.watch: Callable[[str, Tensor], None] = lambda name, values: None
        """Is given every tensor that is int8 in a quantised mixer, by its name in the table of scales."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        self.watch("in_proj", hidden_states)
        x, gate = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        self.watch("conv", x)
        u = self.convolved(x)
        dt, B, C = self.operands(u)
        # Called through forward, as the models that this is about do: hooks of torch do not see such calls.
        y = self.scan.forward(u, dt, B, C)
        return self.gated(y, gate)

    def convolved(self, x: Tensor) -> Tensor:
        u: Tensor = self.conv.forward(x)[0]
        self.watch("u", u)
        return u

    def operands(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the scan is given beside its input: the step sizes, and the matrices into and out of the state."""
        dt, B, C = self.x_proj(u.transpose(1, 2)).split([self.rank, self.states, self.states], dim=-1)
        self.watch("dt_proj", dt)
        dt = nn.functional.softplus(self.dt_proj(dt)).transpose(1, 2)
        for name, values in (("dt", dt), ("B", B), ("C", C)):
            self.watch(name, values)
        return dt, B, C

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        y = (y * nn.functional.silu(gate)).transpose(1, 2)
        self.watch("out_proj", y)
        found: Tensor = self.out_proj(y)
        return found


class Int8Mixer(Mixer):
    """A mixer whose projections are in int8; convolution and scan as the settings say."""

    def __init__(self, source: Any, weights: Mapping[str, Tensor], scales: Mapping[str, float], how: Settings) -> None:
        super().__init__(source)
        self.how = how
        for name in ("in_proj", "x_proj", "dt_proj", "out_proj"):
            bias = getattr(self, name).bias
            given = scales["u" if name == "x_proj" else name]
            setattr(self, name, Int8Linear(weights[f"{name}.weight"], weights[f"{name}.weight_scale"], bias, given))
        weight, weight_scale, bias = weights["conv.weight"], weights["conv.weight_scale"], weights["conv.bias"]
        if how.conv == "int8":
            self.conv = Int8Conv(weight, weight_scale, bias, scales["conv"], scales["u"], how.dynamic)
        else:
            self.conv = Conv(dequantise(weight, weight_scale), bias)
        self.u = Quantiser(scales["u"], how.dynamic)
        A, A_scale, D = weights["A"], weights["A_scale"], weights["D"]
        if how.scan == "fp32":
            self.scan = Scan(dequantise(A, A_scale), D)
        else:
            kernel = how.scan == "kernel"
            self.scan = Int8Scan(A, A_scale, D, scales, kernel=kernel, dynamic=how.dynamic)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        x, gate = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        u, scale = self.conv.forward(x)
        codes = u if self.how.conv == "int8" else None
        if codes is not None:
            u = dequantise(codes, scale)
        dt, B, C = self.operands(u)
        if self.how.scan == "fp32":  # after an int8 convolution: float32 arithmetic on the int8 grid
            return self.gated(self.scan.forward(u, dt, B, C), gate)
        if codes is None or self.how.round_trip:
            codes, scale = self.u.forward(u)
        return self.gated(self.scan.forward(codes, dt, B, C, scale=scale), gate)
