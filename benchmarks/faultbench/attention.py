"""Faults inside attention, between its projections: grouping, mask, softmax, heads.

`attend` is scaled_dot_product_attention written out, with a switch for each fault; a faulty module calls it in place of
torch's, for the length of its own forward.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.faultbench.faults import LISTED, Around, Plant, fault, replaced, rewrite
from torch import nn


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    groups: int = 1,
    interleave: bool = True,
    ahead: int = 0,
    masked: bool = True,
    axis: int = -1,
    dead_head: int | None = None,
    cast: bool = False,
    blind: bool = False,
) -> torch.Tensor:
    """Attention by its definition; with the switches as they are, what torch computes."""
    key, value = (_expand(kv, query.shape[1], groups, interleave) for kv in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if masked:
        scores = scores + _additive(attn_mask, is_causal, scores, ahead)
    if blind:
        scores[:, :, 2] = float("-inf")  # one query sees no key at all: 0 ÷ 0
    if cast:
        scores = scores.to(torch.bfloat16 if scores.dtype == torch.float32 else torch.float8_e4m3fn).to(scores.dtype)
    output = torch.softmax(scores, axis) @ value
    if dead_head is not None:
        output[:, dead_head] = 0
    return output


def inside(**switches: Any) -> Plant:
    """Plant `attend` with these switches in one attention module."""

    def plant(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
        def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
            groups = getattr(self, "num_key_value_groups", 1)

            def wrong(*tensors: Any, **options: Any) -> torch.Tensor:
                return attend(*tensors, **options, groups=groups, **switches)

            with replaced(F, "scaled_dot_product_attention", wrong):
                return forward(*args, **kwargs)

        rewrite(model.get_submodule(path), around)

    return plant


def _mask_maker(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The model makes a mask that lets every query see one key too many; all layers are given it."""
    module = model.get_submodule(path)
    home = sys.modules[type(module).__module__]
    right = home.create_causal_mask

    def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
        embedded = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        length = embedded.shape[1]

        def wrong(*_: Any, **__: Any) -> torch.Tensor:
            return torch.ones(len(embedded), 1, length, length, dtype=torch.bool).tril(1)

        with replaced(home, right.__name__, wrong):
            return forward(*args, **kwargs)

    rewrite(module, around)


def _keys_off_by_one(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The keys are rotated by their neighbour's position, the queries by their own."""
    module = model.get_submodule(path)
    home = sys.modules[type(module).__module__]
    right = home.apply_rotary_pos_emb

    def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
        def wrong(query: Any, key: Any, cos: Any, sin: Any, *rest: Any, **more: Any) -> Any:
            rotated, _ = right(query, key, cos, sin, *rest, **more)
            _, late = right(query, key, cos.roll(1, -2), sin.roll(1, -2), *rest, **more)
            return rotated, late

        with replaced(home, "apply_rotary_pos_emb", wrong):
            return forward(*args, **kwargs)

    rewrite(module, around)


def _expand(kv: torch.Tensor, heads: int, groups: int, interleave: bool) -> torch.Tensor:
    if kv.shape[1] == heads and groups > 1:
        kv = kv[:, ::groups]  # expanded by the caller: take that back
    groups = heads // kv.shape[1]
    return kv.repeat_interleave(groups, 1) if interleave else kv.repeat(1, groups, 1, 1)


def _additive(mask: torch.Tensor | None, causal: bool, scores: torch.Tensor, ahead: int) -> torch.Tensor:
    if mask is None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        mask = seen.tril(ahead) if causal else seen
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
    return mask


FAULTS = [
    fault("head-grouping", "grouped", "permutation structure config", inside(interleave=False)),
    fault("mask-off-by-one", "causal", "mask shift", inside(ahead=1)),
    fault("mask-missing", "causal", "mask", inside(masked=False)),
    fault("softmax-axis", "attention", "transpose structure unknown", inside(axis=-2)),
    fault("dead-head", "attention", "mask", inside(dead_head=1)),
    fault("cast-in-attention", "attention", "precision quantization", inside(cast=True)),
    fault("blind-query", "attention", "nonfinite mask", inside(blind=True)),
    fault("mask-maker", LISTED, "mask shift", _mask_maker),
    fault("keys-off-by-one", "grouped", "shift unknown", _keys_off_by_one),
]
