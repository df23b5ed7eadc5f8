"""Networks whose weights were moved about so that the whole computes the same: folded, permuted, rescaled."""

from __future__ import annotations

import torch
from benchmarks.faultbench.roles import roles
from torch import nn


@torch.no_grad()
def fold_batchnorms(model: nn.Module) -> None:
    """Each BatchNorm goes into the convolution before it."""
    for block in model.blocks:
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            folded = nn.utils.fusion.fuse_conv_bn_eval(block.get_submodule(conv), block.get_submodule(norm))
            setattr(block, conv, folded)
            setattr(block, norm, nn.Identity())


@torch.no_grad()
def fold_norms(model: nn.Module) -> None:
    """The weight of each RMSNorm goes into the linear layers that read it."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            _fold(norm, readers)
    _fold(model.model.norm, (model.lm_head,))


def _fold(norm: nn.Module, readers: tuple[nn.Module, ...]) -> None:
    for reader in readers:
        reader.weight.mul_(norm.weight)
    norm.weight.fill_(1.0)


@torch.no_grad()
def permute_heads(model: nn.Module, heads: int = 4, groups: int = 2) -> None:
    """Heads are in another order in every attention, those that share a key together."""
    for path in roles(model)["attention"]:
        attention = model.get_submodule(path)
        size = attention.o_proj.weight.shape[1] // heads
        keys = torch.arange(heads // groups).flip(0)
        order = (keys[:, None] * groups + torch.arange(groups)).flatten()
        for name, blocks in (("q_proj", order), ("k_proj", keys), ("v_proj", keys)):
            _reorder(attention.get_submodule(name), blocks, size)
        index = (order[:, None] * size + torch.arange(size)).flatten()
        attention.o_proj.weight.copy_(attention.o_proj.weight[:, index].clone())


def _reorder(linear: nn.Module, blocks: torch.Tensor, size: int) -> None:
    index = (blocks[:, None] * size + torch.arange(size)).flatten()
    linear.weight.copy_(linear.weight[index].clone())
    if linear.bias is not None:
        linear.bias.copy_(linear.bias[index].clone())


@torch.no_grad()
def permute_hidden(model: nn.Module) -> None:
    """The hidden units of every feed-forward are in another order."""
    for path in roles(model)["mlp"]:
        mlp = model.get_submodule(path)
        names = ("gate_proj", "up_proj") if hasattr(mlp, "gate_proj") else ("fc1",) if hasattr(mlp, "fc1") else ("up",)
        last = next(mlp.get_submodule(name) for name in ("down_proj", "fc2", "down") if hasattr(mlp, name))
        order = torch.randperm(last.weight.shape[1], generator=torch.Generator().manual_seed(1))
        for name in names:
            _reorder(mlp.get_submodule(name), order, 1)
        last.weight.copy_(last.weight[:, order].clone())


@torch.no_grad()
def permute_experts(model: nn.Module) -> None:
    """Experts are in another order, and the router knows."""
    for layer in model.model.layers:
        router, experts = layer.mlp.gate, layer.mlp.experts
        order = torch.arange(len(router.weight)).flip(0)
        router.weight.copy_(router.weight[order].clone())
        for name, value in (*experts.named_parameters(), *layer.mlp.named_buffers()):
            if "bias" in name or value.ndim == 3:
                value.copy_(value[order].clone())


@torch.no_grad()
def move_scales(model: nn.Module) -> None:
    """What the value projections give is twice as large, what the output projections do with it half."""
    for path in roles(model)["attention"]:
        attention = model.get_submodule(path)
        for tensor in attention.v_proj.parameters():
            tensor.mul_(2.0)
        attention.o_proj.weight.mul_(0.5)


@torch.no_grad()
def smooth(model: nn.Module) -> None:
    """As SmoothQuant does: the norms divide by what the linear layers after them multiply with."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            by = sum(reader.weight.abs().amax(0) for reader in readers).clamp_min(0.1)
            norm.weight.div_(by)
            for reader in readers:
                reader.weight.mul_(by)
