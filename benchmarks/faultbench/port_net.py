"""One small decoder, and the ways in which a port of it may be written: other layouts, other calls, the same numbers.

Each port is a set of classes that a copy of the plain decoder is given in the place of its own, so that the weights
stay what they are.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.faultbench.families import VOCAB, Built, _enliven
from torch import nn

HEADS, GROUPS = 4, 2
"""Heads, and how many of them share a key and a value."""


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.size = width // HEADS
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width // GROUPS, bias=False)
        self.v_proj = nn.Linear(width, width // GROUPS)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        return self.o_proj(self.mix(self.rotated(q), self.rotated(k), v, bias))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mixed = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        angle = angles(x)
        even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
        turned = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)
        return turned.flatten(-2).to(x.dtype)


def angles(x: torch.Tensor) -> torch.Tensor:
    """The angle of each pair of channels at each position."""
    pairs = x.shape[-1] // 2
    return torch.outer(torch.arange(x.shape[-2]).float(), 100.0 ** -(torch.arange(pairs) / pairs))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.ff = FeedForward(width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), bias)
        return x + self.ff(self.norm2(x))


class Body(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.embed(ids), self.bias(ids)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x)

    def bias(self, ids: torch.Tensor) -> torch.Tensor:
        """ALiBi: the further back, the less a key counts; what is ahead is closed by the lowest number."""
        at = torch.arange(ids.shape[1])
        back = (at - at[:, None]).float()
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        bias = back * slopes[:, None, None]
        return bias.masked_fill(back > 0, torch.finfo(torch.float32).min)[None]


class Net(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.body = Body(layers, width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(ids))


def build_net(*, layers: int = 3, width: int = 32, seed: int = 0, tokens: int = 10) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Net(layers, width)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.8 / width**0.5)
        _enliven(model)
        return model.eval(), (torch.randint(3, VOCAB, (4, tokens)),)


def become(model: nn.Module, **classes: type[nn.Module]) -> None:
    """Gives every module whose class has that name another class."""
    for module in model.modules():
        if type(module).__name__ in classes:
            module.__class__ = classes[type(module).__name__]


class TupleBlock(Block):
    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> Any:
        return super().forward(x, bias), None


class TupleBody(Body):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.embed(ids), self.bias(ids)
        for block in self.blocks:
            x, _ = block(x, bias)
        return self.norm(x)


class FlatBlock(Block):
    """Tokens of all sequences in one list; only attention knows where one ends."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor, batch: int) -> torch.Tensor:
        x = x + self.attn(self.norm1(x).unflatten(0, (batch, -1)), bias).flatten(0, 1)
        return x + self.ff(self.norm2(x))


class FlatBody(Body):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.embed(ids.flatten()), self.bias(ids)
        for block in self.blocks:
            x = block(x, bias, len(ids))
        return self.norm(x).unflatten(0, ids.shape)


class DeferredBlock(Block):
    """Hands on what it would have added, and the next one adds it."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        residual = x if residual is None else x + residual
        x = self.attn(self.norm1(residual), bias)
        residual = x + residual
        return self.ff(self.norm2(residual)), residual


class DeferredBody(Body):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias, residual = self.embed(ids), self.bias(ids), None
        for block in self.blocks:
            x, residual = block(x, bias, residual)
        return self.norm(x + residual)


class ChunkedBlock(Block):
    """The feed-forward sees a few tokens at a time."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), bias)
        return x + torch.cat([self.ff(part) for part in self.norm2(x).split(4, 1)], 1)


class ChunkedFeedForward(FeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.down(self.act(self.up(part))) for part in x.split(3, 1)], 1)


class ChannelsBlock(Block):
    """Takes and gives channels before tokens, as convolutions do."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return super().forward(x.transpose(1, 2), bias).transpose(1, 2)


class ChannelsBody(Body):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.embed(ids).transpose(1, 2), self.bias(ids)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x.transpose(1, 2))


class TimeFirstBlock(Block):
    """Tokens before sequences."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x).transpose(0, 1), bias).transpose(0, 1)
        return x + self.ff(self.norm2(x))


class TimeFirstBody(Body):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.embed(ids.T), self.bias(ids)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x).transpose(0, 1)


class SortedBody(Body):
    """Sorts the batch, as packing does, and puts it back at the end."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        order = ids[:, 0].argsort(descending=True)
        if bool((order == torch.arange(len(order))).all()):
            order = order.flip(0)
        return super().forward(ids[order])[order.argsort()]


class WrittenOutAttention(Attention):
    """Each head has its own copy of key and value, and the softmax is written out."""

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        k, v = k.repeat_interleave(GROUPS, 1), v.repeat_interleave(GROUPS, 1)
        scores = q @ k.transpose(-1, -2) * self.size**-0.5 + bias.to(q.dtype)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class ComplexAttention(Attention):
    """Rotates by complex numbers."""

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        turn = torch.polar(torch.ones(()), angles(x))
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class FusedAttention(Attention):
    """One projection makes query, key and value."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        width = self.o_proj.in_features
        q, k, v = self.qkv_proj(x).split([width, width // GROUPS, width // GROUPS], -1)
        return self.o_proj(self.mix(self.rotated(self.split(q)), self.rotated(self.split(k)), self.split(v), bias))


def fuse(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            parts = [module.q_proj, module.k_proj, module.v_proj]
            fused = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts))
            with torch.no_grad():
                fused.weight.copy_(torch.cat([part.weight for part in parts]))
                fused.bias.copy_(torch.cat([torch.zeros(p.out_features) if p.bias is None else p.bias for p in parts]))
            del module.q_proj, module.k_proj, module.v_proj
            module.qkv_proj = fused
            module.__class__ = FusedAttention


def share(model: nn.Module) -> None:
    """All blocks use one feed-forward and one second norm."""
    first = model.body.blocks[0]
    for block in model.body.blocks[1:]:
        block.ff, block.norm2 = first.ff, first.norm2


def unshare(model: nn.Module) -> None:
    """Every block has its own copy."""
    for block in model.body.blocks:
        block.ff, block.norm2 = copy.deepcopy(block.ff), copy.deepcopy(block.norm2)


def build_shared(**shape: int) -> Built:
    model, inputs = build_net(**shape)
    share(model)
    return model, inputs


PORTS: dict[str, dict[str, type[nn.Module]]] = {
    "tuple": {"Block": TupleBlock, "Body": TupleBody},
    "flat": {"Block": FlatBlock, "Body": FlatBody},
    "deferred-residual": {"Block": DeferredBlock, "Body": DeferredBody},
    "chunked": {"Block": ChunkedBlock},
    "chunked-inside": {"FeedForward": ChunkedFeedForward},
    "channels-first": {"Block": ChannelsBlock, "Body": ChannelsBody},
    "time-first": {"Block": TimeFirstBlock, "Body": TimeFirstBody},
    "sorted-batch": {"Body": SortedBody},
    "written-out": {"Attention": WrittenOutAttention},
    "complex": {"Attention": ComplexAttention},
}
