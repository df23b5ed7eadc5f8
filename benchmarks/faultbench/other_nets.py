"""Small models of further architectures, and other ways to write them: the same numbers from other modules."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.faultbench.families import VOCAB, Built, _enliven
from torch import nn


def seeded(make: type[nn.Module], *inputs: torch.Tensor) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        _enliven(model)
        return model.eval(), inputs


def ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def image() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class MaskedAttention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.scale: float | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (project(x).unflatten(-1, (4, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=self.scale)
        return self.o(mixed.transpose(1, 2).flatten(2))


class MaskedBlock(nn.Module):
    approximate = "none"

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), MaskedAttention(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class MaskedNet(nn.Module):
    """A decoder whose causal mask has the form that `form` says."""

    form = "bool"

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCAB, 32), nn.ModuleList(MaskedBlock() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50)

    def mask(self, tokens: int) -> torch.Tensor | None:
        seen = torch.ones(tokens, tokens).tril().bool()[None, None]
        if self.form == "none":
            return None
        lowest = -math.inf if self.form == "inf" else torch.finfo(torch.float32).min
        return seen if self.form == "bool" else torch.zeros(seen.shape).masked_fill(~seen, lowest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, mask = self.embed(x), self.mask(x.shape[1])
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(self.norm(hidden))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(VOCAB, 24), nn.LSTM(24, 32, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.lstm(self.embed(x))[0]))


class WrittenLstm(nn.Module):
    """The gates by hand, in the order in which torch keeps them, or with the last two exchanged."""

    def __init__(self, lstm: nn.LSTM, exchanged: bool) -> None:
        super().__init__()
        for name, parameter in lstm.named_parameters():
            setattr(self, name, parameter)
        self._exchanged = exchanged

    def forward(self, x: torch.Tensor) -> Any:
        hidden = cell = x.new_zeros(x.shape[0], self.weight_hh_l0.shape[1])
        found = []
        for at in range(x.shape[1]):
            gates = F.linear(x[:, at], self.weight_ih_l0, self.bias_ih_l0)
            take, keep, new, show = (gates + F.linear(hidden, self.weight_hh_l0, self.bias_hh_l0)).chunk(4, -1)
            new, show = (show, new) if self._exchanged else (new, show)
            cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            found.append(hidden)
        return torch.stack(found, 1), (hidden[None], cell[None])


class ConvBlock(nn.Module):
    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(given, width, 3, padding=1), nn.GroupNorm(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))


class UpBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = ConvBlock(2 * width, width)
        self.align_corners, self.skip_first = False, False

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=self.align_corners)
        return self.block(torch.cat([skip, x] if self.skip_first else [x, skip], 1))


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.out = ConvBlock(3, width), nn.Conv2d(width, 3, 1)
        self.down1, self.down2, self.middle = (ConvBlock(width, width) for _ in range(3))
        self.up1, self.up2 = UpBlock(width), UpBlock(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.stem(x)
        half = self.down1(F.avg_pool2d(wide, 2))
        quarter = self.middle(self.down2(F.avg_pool2d(half, 2)))
        return self.out(self.up2(self.up1(quarter, half), wide))


class Fourier(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft2(x.float())


class WrittenFourier(nn.Module):
    def __init__(self, sign: float) -> None:
        super().__init__()
        self._sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = (_waves(size, sign) for size, sign in zip(x.shape[-2:], (self._sign, 1.0), strict=True))
        return left @ x.to(torch.complex64) @ right


def _waves(size: int, sign: float) -> torch.Tensor:
    angle = -2 * math.pi * sign * torch.outer(torch.arange(size), torch.arange(size)).double() / size
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


class FourierNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCAB, 32), nn.ModuleList(Fourier() for _ in range(3))
        self.linear = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for mix, linear, norm in zip(self.mix, self.linear, self.norm, strict=True):
            hidden = norm(hidden + linear(mix(hidden).real.to(hidden.dtype)))
        return hidden


class Experts(nn.Module):
    """Each expert sees the tokens that were sent to it."""

    def __init__(self, width: int = 32, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        expert = [nn.Sequential(nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, width)) for _ in range(count)]
        self.experts, self.normalised = nn.ModuleList(expert), True

    def shares(self, x: torch.Tensor) -> torch.Tensor:
        share = self.router(x).softmax(-1)
        most, chosen = share.topk(2, -1)
        return torch.zeros_like(share).scatter(
            -1, chosen, most / most.sum(-1, keepdim=True) if self.normalised else most
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, output = self.shares(x), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            sent = shares[..., number] > 0
            if sent.any():
                output[sent] += expert(x[sent]) * shares[..., number][sent][:, None]
        return output


class DenseExperts(Experts):
    """Every expert sees every token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.shares(x)
        return sum(expert(x) * shares[..., at : at + 1] for at, expert in enumerate(self.experts))  # type: ignore[return-value]


class ExpertsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, 32), nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.experts, self.head = nn.ModuleList(Experts() for _ in range(3)), nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for norm, experts in zip(self.norm, self.experts, strict=True):
            hidden = hidden + experts(norm(hidden))
        return self.head(hidden)


class PaddedNet(nn.Module):
    """torch's own encoder; the last tokens of the second sequence are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(x.shape[1]) >= torch.tensor([[x.shape[1]], [x.shape[1] - 3]])
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=padding))
